package live

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// Errors of Run.
var (
	ErrUnknown = errors.New("there is no such scenario")
	ErrBusy    = errors.New("another walk is on the way: wait until it has ended")
)

const walkTimeout = 3 * time.Minute // of a whole walk

// Run begins a scenario and returns the id of its walk. One runs at a time: they hold and kill the same processes.
func (e *Engine) Run(name string) (string, error) {
	sc, ok := scenarios[name]
	if !ok {
		return "", fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	ctx, done, err := e.occupy()
	if err != nil {
		return "", err
	}
	if down := e.down(); len(down) > 0 {
		done()
		return "", fmt.Errorf("%s: down; put everything right first", strings.Join(down, ", "))
	}
	e.mu.Lock()
	e.walks++
	w := &walk{engine: e, stage: e.stage, id: fmt.Sprintf("w%d", e.walks), began: time.Now(), answers: make(chan answer, 2)}
	e.mu.Unlock()
	w.customer = fmt.Sprintf("walk %s of %s", w.id, w.began.UTC().Format(time.RFC3339Nano))
	e.rec.begin(w.id, name, sc.expected)
	e.wg.Go(func() { // until Close at the latest
		defer done()
		ctx, cancel := context.WithTimeout(ctx, walkTimeout)
		defer cancel()
		w.run(ctx, sc)
		if w.err != nil && e.life.Err() == nil {
			e.startAll(e.life)
		}
	})
	return w.id, nil
}

// Reset ends the walk that is on the way, whose holds are let go with it, and starts every process that is down. It does not wait.
func (e *Engine) Reset() {
	e.mu.Lock()
	if e.running != nil {
		e.running()
	}
	idle := e.idle
	e.mu.Unlock()
	e.wg.Go(func() {
		if idle != nil {
			<-idle
		}
		ctx, done, err := e.occupy()
		if err != nil {
			return // somebody was faster, or the engine ends
		}
		defer done()
		e.startAll(ctx)
	})
}

// occupy makes the caller the only one who acts on the stage, until done.
func (e *Engine) occupy() (ctx context.Context, done func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running != nil {
		return nil, nil, ErrBusy
	}
	if e.life.Err() != nil {
		return nil, nil, errors.New("the engine ends")
	}
	ctx, cancel := context.WithCancel(e.life)
	idle := make(chan struct{})
	e.running, e.idle = cancel, idle
	return ctx, func() {
		cancel()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.running = nil
		close(idle)
	}, nil
}

func (e *Engine) down() (names []string) {
	for _, p := range e.stage.Processes() {
		if !p.Up() {
			names = append(names, p.Name)
		}
	}
	return names
}

// startAll starts what is down, what others need first. What does not start stays down, which the processes' list shows.
func (e *Engine) startAll(ctx context.Context) {
	s := e.stage
	for _, p := range []*stage.Process{s.Postgres, s.Kafka, s.Provider, s.Relay, s.Serve, s.Bill, s.Mail} {
		_ = p.Start(ctx)
		e.lookAtProcesses()
	}
}

func (e *Engine) watchProcesses(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		e.lookAtProcesses()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (e *Engine) lookAtProcesses() {
	for _, p := range e.stage.Processes() {
		pid := p.Pid()
		e.rec.process(Process{Name: p.Name, Up: pid != 0, PID: pid, Starts: p.Starts()})
	}
}
