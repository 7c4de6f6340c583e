package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// In a transaction of several records an error may be another's fault: one record
// swallowed its error, and the next one meets the aborted transaction.
func TestRunner_OneRecordIsNotBlamedForAnother(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "swallows", "innocent", "b")
	e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		if r.ID == "swallows" {
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return nil
		}
		if err := bill(ctx, tx, r); err != nil {
			return inbox.Permanent("cannot bill", err)
		}
		return nil
	})
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 4 })
	if n := e.count("SELECT count(*) FROM inbox_dead_letters WHERE event_id <> 'swallows'"); n != 0 || e.invoices() != 3 || e.end(e.dead) != 1 {
		t.Errorf("%d innocent dead letters, %d invoices, %d dead letters", n, e.invoices(), e.end(e.dead))
	}
}

// A transaction that was ended by a statement of the handler has neither marker nor
// effect, and its COMMIT succeeds.
func TestRunner_NoticesATransactionThatWasEndedBySQL(t *testing.T) {
	for _, driver := range []string{"pgx", "database/sql"} {
		t.Run(driver, func(t *testing.T) {
			e := newKafkaEnv(t, 1)
			e.produce(0, "a", "b", "c")
			if driver == "pgx" {
				e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
					err := bill(ctx, tx, r)
					if r.ID == "b" {
						_, err = tx.Exec(ctx, "ROLLBACK")
					}
					return err
				})
			} else {
				runner, err := inbox.ForSQL(func(ctx context.Context) (*sql.Tx, error) { return e.std.BeginTx(ctx, nil) },
					func(ctx context.Context, tx *sql.Tx, r inbox.Record) error {
						_, err := tx.ExecContext(ctx, "INSERT INTO invoices (order_id) VALUES ($1)", r.ID)
						if r.ID == "b" {
							_, err = tx.ExecContext(ctx, "ROLLBACK")
						}
						return err
					}, e.config())
				e.must(err)
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- runner.Run(ctx) }()
				defer func() { cancel(); <-done }()
			}
			waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 3 })
			if n := e.count("SELECT count(*) FROM inbox_dead_letters WHERE event_id = 'b'"); n != 1 || e.markers() != 2 || e.count("SELECT count(DISTINCT order_id) FROM invoices WHERE order_id IN ('a', 'c')") != 2 {
				t.Errorf("%d dead letters of b, %d markers, %d invoices", n, e.markers(), e.invoices())
			}
		})
	}
}

func TestRunner_HandlerThatEndsItsGoroutineIsADeadLetter(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "b", "c")
	r := e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		if r.ID == "b" {
			runtime.Goexit()
		}
		return bill(ctx, tx, r)
	})
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 3 })
	if e.invoices() != 2 || e.end(e.dead) != 1 || r.count(inbox.Assigned) != 2 {
		t.Errorf("%d invoices, %d dead letters, %d assignments", e.invoices(), e.end(e.dead), r.count(inbox.Assigned))
	}
	waitFor(t, "no transaction to be left", func() bool {
		return e.count("SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND state LIKE 'idle in%'", e.db) == 0
	})
}

// A server that answers, and takes no writes, is no fault of a record.
func TestRunner_ReadOnlyServerMakesNoDeadLetter(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.must(server.Exec(t.Context(), e.db, "ALTER DATABASE "+e.db+" SET default_transaction_read_only = on"))
	e.pool.Reset()
	e.produce(0, "a", "b")
	r := e.run(bill, func(c *inbox.Config) { c.Attempts = 2 })
	waitFor(t, "it to wait", func() bool { return r.count(inbox.Waiting) > 5 || e.end(e.dead) > 0 })
	e.must(server.Exec(t.Context(), "postgres", "ALTER DATABASE "+e.db+" RESET default_transaction_read_only"))
	e.pool.Reset()
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 2 })
	if e.end(e.dead) != 0 || e.invoices() != 2 || r.count(inbox.Retried) != 0 {
		t.Errorf("%d dead letters, %d invoices, %d retries", e.end(e.dead), e.invoices(), r.count(inbox.Retried))
	}
}

func TestRunner_SerializationFailureIsNoAttempt(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a")
	var tries atomic.Int64
	r := e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		if tries.Add(1) < 6 {
			_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$")
			return err
		}
		return bill(ctx, tx, r)
	}, func(c *inbox.Config) { c.Attempts = 2 })
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 1 })
	if e.end(e.dead) != 0 || e.invoices() != 1 {
		t.Errorf("%d dead letters, %d invoices, %d retries", e.end(e.dead), e.invoices(), r.count(inbox.Retried))
	}
}

// The server has committed, and the connection broke before it said so.
func TestRunner_LostAnswerOfCommitIsOneEffect(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "b", "c")
	var lost atomic.Int64
	runner, err := inbox.ForPGX(func(ctx context.Context) (pgx.Tx, error) {
		tx, err := e.pool.Begin(ctx)
		return lostCommit{tx, &lost}, err
	}, bill, e.config())
	e.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	defer func() { cancel(); <-done }()
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 3 })
	if e.invoices() != 3 || e.markers() != 3 || e.end(e.dead) != 0 || lost.Load() == 0 {
		t.Errorf("%d invoices, %d markers, %d dead letters", e.invoices(), e.markers(), e.end(e.dead))
	}
}

type lostCommit struct {
	pgx.Tx
	lost *atomic.Int64
}

func (l lostCommit) Commit(ctx context.Context) error {
	if err := l.Tx.Commit(ctx); err != nil || l.lost.Add(1)%2 == 1 { // the check at the start is the first
		return err
	}
	return errors.New("connection reset by peer")
}

func TestRunner_LeavesNothingBehind(t *testing.T) {
	e := newKafkaEnv(t, 4)
	e.produce(0, "a")
	first := e.run(bill) // what is made once, is made
	waitFor(t, "the partitions", func() bool { return first.count(inbox.Assigned) >= 5 })
	e.must(first.stop())
	e.pool.Reset()
	before := runtime.NumGoroutine()
	for range 3 {
		r := e.run(bill)
		waitFor(t, "the partitions", func() bool { return r.count(inbox.Assigned) >= 5 })
		e.must(r.stop())
	}
	waitFor(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before+4 }) // those of pool and client
	waitFor(t, "transactions to end", func() bool {
		return e.count("SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND state LIKE 'idle in%'", e.db) == 0
	})
}
