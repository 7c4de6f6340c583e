package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// ordersPerKill are placed before each kill, together.
const ordersPerKill = 3

// wholePath kills one process after the other at one arrow after the other, while orders come whose clients ask until they
// are answered.
func wholePath(kills int) Scene {
	n := kills * ordersPerKill
	return Scene{
		Name:   "whole_path",
		Window: fmt.Sprintf("everything in turn killed at every arrow, %d times, with orders on the way", kills),
		Expect: fmt.Sprintf("kills=%d orders=%d invoices=%d mails=%d, none twice", kills, n, n, n),
		run:    func(ctx context.Context, l *lab) (string, error) { return l.killPath(ctx, kills) },
	}
}

// arrow is a process, and where it is killed; "" is wherever it is.
type arrow struct {
	p     *stage.Process
	point stage.Point
}

func (l *lab) arrows() []arrow {
	var arrows []arrow
	for _, p := range l.Processes() {
		for _, point := range p.Points() {
			arrows = append(arrows, arrow{p, point})
		}
	}
	return arrows
}

func (l *lab) killPath(ctx context.Context, kills int) (string, error) {
	// Markers stay: what was published before may come again, too.
	before, err := l.quiet(ctx)
	if err != nil {
		return "", err
	}
	servers := []arrow{{l.Postgres, ""}, {l.Kafka, ""}}
	arrows := l.arrows()
	clients := clients{l: l}
	defer clients.wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v := &supervisor{processes: []*stage.Process{l.Relay, l.Serve, l.Bill, l.Mail}}
	clients.wg.Go(func() { v.run(ctx) }) // ends by cancel
	for i := range kills {
		a := arrows[i%len(arrows)]
		if i%25 == 24 { // a server takes seconds to come back
			a = servers[i/25%len(servers)]
		}
		l.say(fmt.Sprintf("whole_path: kill %d of %d, %s %s", i+1, kills, a.p.Name, a.point))
		if err := l.killOne(ctx, a, &clients, v); err != nil {
			return "", fmt.Errorf("kill %d, of %s at %q: %w", i+1, a.p.Name, a.point, err)
		}
	}
	l.say("whole_path: waiting for the effects")
	if err := clients.wait(ctx); err != nil {
		return "", err
	}
	c, err := l.quiet(ctx)
	orders, invoices, mails := c.Orders-before.Orders, c.Invoices-before.Invoices, c.Mails-before.Mails
	said := fmt.Sprintf("kills=%d orders=%d invoices=%d mails=%d", kills, orders, invoices, mails)
	if err == nil && c.OrdersOdd == 0 && c.Outbox == c.Orders && mails == orders {
		said += ", none twice"
	}
	return said, err
}

// killOne kills where a message of new orders stands at the arrow, and starts again what was killed.
func (l *lab) killOne(ctx context.Context, a arrow, clients *clients, v *supervisor) error {
	if a.point == "" {
		clients.place(ctx)
		return v.replace(ctx, a.p, func() {})
	}
	h := a.p.Hold(a.point)
	defer h.Release()
	clients.place(ctx)
	wait, cancel := context.WithTimeout(ctx, step)
	defer cancel()
	if err := h.Wait(wait); err != nil {
		return fmt.Errorf("it was not reached: %w: %s", err, tailOf(a.p))
	}
	return v.replace(ctx, a.p, h.Release)
}

// supervisor starts again what ended by itself, as a worker does that is started while a server is away.
type supervisor struct {
	mu        sync.Mutex // over a kill and the start behind it
	processes []*stage.Process
}

func (v *supervisor) run(ctx context.Context) {
	for ctx.Err() == nil {
		v.mu.Lock()
		for _, p := range v.processes {
			_ = p.Start(ctx) // tried again
		}
		v.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// replace kills p, does what is to be done while it is dead, and starts it.
func (v *supervisor) replace(ctx context.Context, p *stage.Process, dead func()) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	p.Kill()
	dead()
	return p.Start(ctx)
}

// clients place orders, each with a key of its own, until they are answered.
type clients struct {
	l  *lab
	wg sync.WaitGroup

	mu       sync.Mutex
	waiting  int // for an answer
	problems []error
}

func (c *clients) place(ctx context.Context) {
	for range ordersPerKill {
		key := c.l.name("key")
		c.add(1, nil)
		c.wg.Go(func() { // waited for by killPath
			_, err := c.l.place(ctx, key)
			c.add(-1, err)
		})
	}
}

func (c *clients) add(n int, problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting += n
	if problem != nil {
		c.problems = append(c.problems, problem)
	}
}

// wait waits until every client has its answer.
func (c *clients) wait(ctx context.Context) error {
	err := await(ctx, "all clients have an answer", func(context.Context) (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.waiting == 0, nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(append(c.problems, err)...)
}
