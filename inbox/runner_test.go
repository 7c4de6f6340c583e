package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
)

func TestRunner_DuplicateDeliveryIsOneEffect(t *testing.T) {
	e := newKafkaEnv(t, 2)
	e.produce(0, "a:k", "b:k", "a:k", "c", "b:k")
	e.produce(1, "d", `quo"te\d`, "a:k")
	r := e.run(bill)
	waitFor(t, "both offsets", func() bool { return e.offset(e.topic, 0) == 5 && e.offset(e.topic, 1) == 3 })
	e.must(r.stop())
	if e.invoices() != 5 || e.markers() != 5 || r.count(inbox.Duplicates) != 3 || r.count(inbox.Processed) != 5 {
		t.Errorf("%d invoices, %d markers, %d duplicates", e.invoices(), e.markers(), r.count(inbox.Duplicates))
	}
	if n := e.count(`SELECT count(*) FROM inbox WHERE event_id = 'quo"te\d' AND kafka_topic = $1 AND kafka_partition = 1 AND kafka_offset = 1 AND key_hash IS NULL`, e.topic); n != 1 {
		t.Error("the marker does not say where its record was")
	}
}

func TestRunner_OneTransactionPerRecordWithDatabaseSQL(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "b", "a", "c")
	runner, err := inbox.ForSQL(func(ctx context.Context) (*sql.Tx, error) { return e.std.BeginTx(ctx, nil) },
		func(ctx context.Context, tx *sql.Tx, r inbox.Record) error {
			if n := e.count("SELECT count(*) FROM inbox"); r.ID == "c" && n != 2 {
				t.Errorf("%d markers were committed before the last record", n)
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO invoices (order_id) VALUES ($1)", r.ID)
			return err
		}, e.config(func(c *inbox.Config) { c.PerRecord = true }))
	e.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 4 })
	cancel()
	e.must(<-done)
	if e.invoices() != 3 || e.markers() != 3 {
		t.Errorf("%d invoices, %d markers", e.invoices(), e.markers())
	}
}

func TestRunner_FailedHandlerLeavesNeitherEffectNorMarker(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "b", "c")
	var heal atomic.Bool
	r := e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		if err := bill(ctx, tx, r); err != nil {
			return err
		}
		if r.ID == "b" && !heal.Load() {
			return errors.New("no such order")
		}
		return nil
	}, func(c *inbox.Config) { c.Attempts = 1e6 })
	// What is before it is committed with its offset, and what is behind it waits.
	waitFor(t, "some attempts", func() bool { return r.count(inbox.Retried) > 3 && e.offset(e.topic, 0) == 1 })
	if e.invoices() != 1 || e.markers() != 1 || e.count("SELECT count(*) FROM inbox WHERE event_id = 'a'") != 1 {
		t.Errorf("%d invoices, %d markers while the handler fails", e.invoices(), e.markers())
	}
	heal.Store(true)
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 3 })
	if e.invoices() != 3 || e.markers() != 3 {
		t.Errorf("%d invoices, %d markers", e.invoices(), e.markers())
	}
}

func TestRunner_KilledBetweenCommitAndOffsetSkipsTheRedelivery(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "b", "c")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "INBOX_WORKER_DSN="+server.DSN(e.db), "INBOX_WORKER_KAFKA="+e.addr, "INBOX_WORKER_DB="+e.db)
	cmd.Stderr = os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the worker ended with %v", err)
	}
	effects := e.invoices()
	if effects == 0 || e.offset(e.topic, 0) > 0 {
		t.Fatalf("the worker left %d invoices and offset %d", effects, e.offset(e.topic, 0))
	}
	r := e.run(bill)
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 3 })
	if e.invoices() != 3 || r.count(inbox.Duplicates) != int64(effects) {
		t.Errorf("%d invoices, %d duplicates after %d effects", e.invoices(), r.count(inbox.Duplicates), effects)
	}
}

func TestRunner_TwoWorkersWithTheSameRecordsAreOneEffect(t *testing.T) {
	e := newKafkaEnv(t, 1)
	ids := make([]string, 200)
	for i := range ids {
		ids[i] = "event-" + string(rune('a'+i%26)) + string(rune('a'+i/26))
	}
	e.produce(0, ids...)
	other := func(c *inbox.Config) { c.Consumer, c.Group, c.Batch = e.db, e.db+"-other", 7 }
	one, two := e.run(bill, func(c *inbox.Config) { c.Batch = 10 }), e.run(bill, other)
	waitFor(t, "both to have read all", func() bool {
		return one.count(inbox.Processed)+one.count(inbox.Duplicates) >= 200 && two.count(inbox.Processed)+two.count(inbox.Duplicates) >= 200
	})
	if e.invoices() != 200 || e.count("SELECT count(DISTINCT order_id) FROM invoices") != 200 || one.count(inbox.Processed)+two.count(inbox.Processed) != 200 {
		t.Errorf("%d invoices", e.invoices())
	}
}

func TestRunner_DeadLetterIsThereBeforeTheOffsetMoves(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a:k:secret")
	type state struct {
		letters, offset int64
		rows            int
	}
	at := make(chan state, 1)
	r := e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		return errors.New("bad value " + string(r.Value))
	}, func(c *inbox.Config) {
		c.Observe = func(ev inbox.Event) {
			if ev.Kind == inbox.DeadLettered {
				at <- state{e.end(e.dead), e.offset(e.topic, 0), e.count("SELECT count(*) FROM inbox_dead_letters WHERE state = 'open' AND attempts = 3")}
			}
		}
	})
	if got := <-at; got.letters != 1 || got.offset > 0 || got.rows != 1 {
		t.Errorf("when the record was given up: %+v", got)
	}
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 1 })
	if e.invoices() != 0 || e.markers() != 0 || r.count(inbox.Retried) != 2 {
		t.Errorf("%d invoices, %d markers, %d retries", e.invoices(), e.markers(), r.count(inbox.Retried))
	}
	if e.count("SELECT count(*) FROM inbox_dead_letters WHERE reason LIKE '%secret%'") != 0 {
		t.Error("the reason shows the payload")
	}
}

func TestRunner_StopDrainsTheHandler(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a")
	in, out := make(chan struct{}, 1), make(chan struct{})
	r := e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		in <- struct{}{}
		<-out
		return bill(ctx, tx, r)
	})
	<-in
	r.cancel()
	select {
	case err := <-r.done:
		close(out)
		r.done <- err
		t.Fatal("it did not wait for the handler:", err)
	case <-time.After(500 * time.Millisecond):
	}
	close(out)
	e.must(r.stop())
	if e.invoices() != 1 || e.offset(e.topic, 0) != 1 {
		t.Errorf("%d invoices, offset %d", e.invoices(), e.offset(e.topic, 0))
	}
}

func TestRunner_StopEndsAHandlerAfterGrace(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a")
	in := make(chan struct{}, 1)
	r := e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		if err := bill(ctx, tx, r); err != nil {
			return err
		}
		in <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}, func(c *inbox.Config) { c.Grace = 200 * time.Millisecond })
	<-in
	e.must(r.stop())
	if e.invoices() != 0 || e.markers() != 0 || e.offset(e.topic, 0) > 0 || e.end(e.dead) != 0 {
		t.Errorf("%d invoices, %d markers, offset %d, %d dead letters", e.invoices(), e.markers(), e.offset(e.topic, 0), e.end(e.dead))
	}
}

func TestRunner_RebalanceInAHandlerKeepsItsEffectAndOffset(t *testing.T) {
	e := newKafkaEnv(t, 2)
	e.produce(0, "a")
	in, out := make(chan struct{}, 4), make(chan struct{})
	slow := func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		in <- struct{}{}
		<-out
		return bill(ctx, tx, r)
	}
	one := e.run(slow, func(c *inbox.Config) { c.SessionTimeout = 20 * time.Second })
	<-in
	two := e.run(bill, func(c *inbox.Config) { c.SessionTimeout = 20 * time.Second })
	waitFor(t, "the group to rebalance", func() bool { return e.groupState() == "PreparingRebalance" })
	close(out)
	waitFor(t, "each to have a partition", func() bool { return two.count(inbox.Assigned) > 0 && e.offset(e.topic, 0) == 1 })
	e.produce(0, "b")
	e.produce(1, "c")
	waitFor(t, "all effects", func() bool { return e.offset(e.topic, 0) == 2 && e.offset(e.topic, 1) == 1 })
	if e.invoices() != 3 || one.count(inbox.OffsetRefused) != 0 || one.count(inbox.Duplicates)+two.count(inbox.Duplicates) != 0 {
		t.Errorf("%d invoices, %d offsets refused, %d and %d duplicates", e.invoices(), one.count(inbox.OffsetRefused), one.count(inbox.Duplicates), two.count(inbox.Duplicates))
	}
}

// A handler that goes on after its generation is lost commits its transaction, which is
// harmless, and must not move the offset of the new owner.
func TestRunner_LostGenerationMovesNoOffset(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a")
	in, out := make(chan struct{}, 4), make(chan struct{})
	one := e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		in <- struct{}{}
		<-out
		return bill(ctx, tx, r)
	}, func(c *inbox.Config) { c.SessionTimeout = 1500 * time.Millisecond })
	<-in
	// The new owner gets the record, and waits for the transaction of the old one.
	two := e.run(bill, func(c *inbox.Config) { c.SessionTimeout = 1500 * time.Millisecond })
	waitFor(t, "the other to wait for the marker", func() bool {
		return e.count("SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'", e.db) == 1
	})
	close(out)
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 1 })
	waitFor(t, "the refusal", func() bool { return one.count(inbox.OffsetRefused) == 1 })
	if e.invoices() != 1 || two.count(inbox.Duplicates) != 1 {
		t.Errorf("%d invoices, %d duplicates", e.invoices(), two.count(inbox.Duplicates))
	}
}

func TestRunner_GoesOnWhenKafkaIsKilledAndBack(t *testing.T) {
	e := newKafkaEnv(t, 1)
	ids := make([]string, 60)
	for i := range ids {
		ids[i] = "event-" + strconv.Itoa(i)
	}
	e.produce(0, ids...)
	half, on := make(chan struct{}), make(chan struct{})
	var handled atomic.Int64
	r := e.run(func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
		if handled.Add(1) == 32 {
			close(half)
			<-on
		}
		return bill(ctx, tx, r)
	}, func(c *inbox.Config) { c.Batch = 5 })
	<-half
	broker.k.Kill9()
	close(on)
	waitFor(t, "an offset to be refused", func() bool { return r.count(inbox.OffsetRefused)+r.count(inbox.GroupFailed) > 0 })
	e.must(broker.k.Start(t.Context()))
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 60 })
	if e.invoices() != 60 || e.markers() != 60 || r.count(inbox.Duplicates) == 0 {
		t.Errorf("%d invoices, %d markers, %d duplicates", e.invoices(), e.markers(), r.count(inbox.Duplicates))
	}
}
