package inbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// A pool without a free connection, or one that a server has dropped, says so at the
// begin; a moment later the database answers. The handler has not run, so it is not to
// blame, and its record must not become a dead letter.
func TestRunner_ATransactionThatDoesNotBeginIsNoAttempt(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a")
	var begins, letters atomic.Int64
	runner, err := inbox.ForPGX(func(ctx context.Context) (pgx.Tx, error) {
		// By its deadline it is one for a record.
		if end, ok := ctx.Deadline(); ok && time.Until(end) > time.Hour && begins.Add(1) <= 5 {
			return nil, errors.New("too many clients")
		}
		return e.pool.Begin(ctx)
	}, bill, e.config(func(c *inbox.Config) {
		c.Attempts, c.AttemptTime = 1, 2*time.Hour
		c.PerRecord = true
		c.Observe = func(ev inbox.Event) {
			if ev.Kind == inbox.DeadLettered {
				letters.Add(1)
			}
		}
	}))
	e.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	waitFor(t, "the effect or a dead letter", func() bool { return letters.Load() > 0 || e.offset(e.topic, 0) == 1 })
	cancel()
	e.must(<-done)
	if letters.Load() > 0 || e.invoices() != 1 {
		t.Errorf("%d dead letters and %d invoices", letters.Load(), e.invoices())
	}
}
