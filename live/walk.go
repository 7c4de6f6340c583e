package live

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

const (
	waitTimeout = 40 * time.Second // for one thing to happen; a worker that joins again may take half of it
	lookEvery   = 10 * time.Millisecond
)

// walk is one run of a scenario, on one goroutine. The first error stays, and makes what follows do nothing.
type walk struct {
	engine   *Engine
	stage    *stage.Stage
	id       string
	customer string // of this walk alone, by whom its rows are found
	began    time.Time

	ctx     context.Context
	err     error
	now     sight // what was seen last
	holds   []*stage.Hold
	answers chan answer // of requests; room for all
	sent    int
}

// run runs the scenario, and judges by what is in the tables and topics afterwards.
func (w *walk) run(ctx context.Context, sc scenario) {
	w.ctx = ctx
	defer func() {
		for _, h := range w.holds {
			h.Release()
		}
	}()
	sc.script(w)
	// In one look: a later one may miss a server, and what is not known is not as expected.
	w.await("both groups have read everything, PostgreSQL has the relay's confirmation, and the provider answers", sight.settled)
	got := w.now.counts()
	switch {
	case w.err != nil && ctx.Err() != nil:
		w.engine.rec.finish(w.id, NotAsExpected, got, "It was ended before its time.")
	case w.err != nil:
		w.engine.rec.finish(w.id, NotAsExpected, got, "It could not go on: "+w.err.Error())
	case got != sc.expected:
		w.engine.rec.finish(w.id, NotAsExpected, got, "The counts differ from what was expected.")
	default:
		w.engine.rec.finish(w.id, AsExpected, got, "")
	}
}

// look reads everything anew.
func (w *walk) look() {
	if w.err != nil {
		return
	}
	s, err := w.engine.look.see(w.ctx, w.customer, w.began)
	if err != nil {
		w.err = err
		return
	}
	w.now = s
}

// await looks until ok.
func (w *walk) await(what string, ok func(sight) bool) {
	deadline := time.Now().Add(waitTimeout)
	for w.err == nil {
		w.look()
		if w.err != nil || ok(w.now) {
			return
		}
		if time.Now().After(deadline) {
			w.err = fmt.Errorf("waited %s in vain until %s", waitTimeout, what)
			return
		}
		w.pause(lookEvery)
	}
}

func (w *walk) pause(d time.Duration) {
	select {
	case <-w.ctx.Done():
		w.fail(w.ctx.Err())
	case <-time.After(d):
	}
}

func (w *walk) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// hold keeps a process at a point, until its release, at the latest that of the walk's end.
func (w *walk) hold(p *stage.Process, point stage.Point) *stage.Hold {
	h := p.Hold(point)
	w.holds = append(w.holds, h)
	return h
}

// reached waits until the process of the hold stands there.
func (w *walk) reached(h *stage.Hold, what string) {
	if w.err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, waitTimeout)
	defer cancel()
	if err := h.Wait(ctx); err != nil {
		w.fail(fmt.Errorf("wait until %s: %w", what, err))
	}
}

// step records what happened, with the values that are there now.
func (w *walk) step(box Box, kind Kind, title, text string, facts ...Fact) {
	if w.err != nil {
		return
	}
	w.engine.rec.step(Step{Walk: w.id, Box: box, Kind: kind, Title: title, Text: text, Facts: facts, Fields: w.now.fields()})
}

// kill ends a process as a crash would.
func (w *walk) kill(p *stage.Process, box Box, title, text string, facts ...Fact) {
	if w.err != nil {
		return
	}
	pid := p.Pid()
	p.Kill()
	w.engine.lookAtProcesses()
	w.look()
	w.step(box, Killed, title, text, append([]Fact{{"pid", strconv.Itoa(pid)}, {"signal", "SIGKILL"}}, facts...)...)
}

func (w *walk) start(p *stage.Process, box Box, title, text string, facts ...Fact) {
	if w.err != nil {
		return
	}
	if err := p.Start(w.ctx); err != nil {
		w.fail(err)
		return
	}
	w.engine.lookAtProcesses()
	w.look()
	w.step(box, Started, title, text, append([]Fact{{"pid", strconv.Itoa(p.Pid())}, {"starts", strconv.Itoa(p.Starts())}}, facts...)...)
}

// send sends the order's request; the walk has one key. cancel makes the client go away.
func (w *walk) send() (cancel context.CancelFunc) {
	if w.err != nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(w.ctx)
	w.sent++
	w.engine.wg.Go(func() { // ends with ctx, or by the client's time-out
		defer cancel()
		w.answers <- placeOrder(ctx, w.stage.OrdersURL, w.customer, w.key())
	})
	return cancel
}

func (w *walk) key() string { return "key-" + w.id }

// answered waits for the answer to a request.
func (w *walk) answered() (a answer) {
	if w.err != nil {
		return a
	}
	select {
	case a = <-w.answers:
		if a.err != nil {
			w.fail(a.err)
		}
	case <-w.ctx.Done():
		w.fail(errors.Join(errors.New("the order service did not answer"), w.ctx.Err()))
	}
	return a
}
