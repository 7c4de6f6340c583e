package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"

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
	if err := l.reset(ctx); err != nil {
		return "", err
	}
	servers := []arrow{{l.Postgres, ""}, {l.Kafka, ""}}
	arrows := l.arrows()
	clients := clients{l: l}
	defer clients.wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range kills {
		a := arrows[i%len(arrows)]
		if i%25 == 24 { // a server takes seconds to come back
			a = servers[i/25%len(servers)]
		}
		l.say(fmt.Sprintf("whole_path: kill %d of %d, %s %s", i+1, kills, a.p.Name, a.point))
		if err := l.killOne(ctx, a, &clients); err != nil {
			return "", fmt.Errorf("kill %d, of %s at %q: %w", i+1, a.p.Name, a.point, err)
		}
	}
	l.say("whole_path: waiting for the effects")
	clients.wg.Wait()
	if err := clients.err(); err != nil {
		return "", err
	}
	c, err := l.quiet(ctx)
	if err != nil {
		return fmt.Sprintf("kills=%d orders=%d invoices=%d mails=%d", kills, c.Orders, c.Invoices, c.Mails), err
	}
	said := fmt.Sprintf("kills=%d orders=%d invoices=%d mails=%d", kills, c.Orders, c.Invoices, c.Mails)
	if c.OrdersOdd == 0 && c.Outbox == c.Orders && c.Orders == kills*ordersPerKill {
		return said + ", none twice", nil
	}
	return fmt.Sprintf("%s, %d orders without exactly one invoice, %d events", said, c.OrdersOdd, c.Outbox), nil
}

// killOne kills where a message of new orders stands at the arrow, and starts again what was killed.
func (l *lab) killOne(ctx context.Context, a arrow, clients *clients) error {
	if a.point == "" {
		clients.place(ctx)
		a.p.Kill()
		return a.p.Start(ctx)
	}
	h := a.p.Hold(a.point)
	defer h.Release()
	clients.place(ctx)
	if err := reach(ctx, a.p, h, a.point); err != nil {
		return err
	}
	a.p.Kill()
	h.Release()
	return a.p.Start(ctx)
}

// clients place orders, each with a key of its own, until they are answered.
type clients struct {
	l  *lab
	wg sync.WaitGroup

	mu       sync.Mutex
	problems []error
}

func (c *clients) place(ctx context.Context) {
	for range ordersPerKill {
		key := c.l.name("key")
		c.wg.Go(func() { // waited for by killPath
			if _, err := c.l.place(ctx, key); err != nil {
				c.mu.Lock()
				c.problems = append(c.problems, err)
				c.mu.Unlock()
			}
		})
	}
}

func (c *clients) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.problems...)
}

// reset empties the tables and has all processes run, so that the counts are of this scene alone. The workers' offsets stay
// where they are.
func (l *lab) reset(ctx context.Context) error {
	for _, p := range l.Processes() {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	err := await(ctx, "the workers have read everything", func(ctx context.Context) (bool, error) {
		for _, group := range []string{stage.BillGroup, stage.MailGroup} {
			if ok, err := l.caughtUp(ctx, group); !ok {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	l.Provider.Kill() // forgets its mails
	if err := l.Provider.Start(ctx); err != nil {
		return err
	}
	_, err = l.DB.Exec(ctx, `TRUNCATE orders, outbox, invoices, inbox, idempotency_keys`)
	if err != nil {
		return fmt.Errorf("empty the tables: %w", err)
	}
	return nil
}
