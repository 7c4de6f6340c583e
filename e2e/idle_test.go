package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

var fullIdle = flag.Bool("full", false, "let TestE2E_IdleOutbox measure the WAL of an idle server for 120 s, not 40 s")

const (
	busyMB        = 300 // written beside the outbox
	retainedLimit = 32  // MiB
	extraLimitKB  = 16.0
	extraWindow   = 120 * time.Second // that the limit is for
)

// TestE2E_IdleOutbox writes beside an idle outbox: the slot lets the WAL go, by
// what the server reports alone. The relay makes no WAL itself, a position
// confirmed in idleness is not held against it at the next start, and an event
// that races it is not lost.
func TestE2E_IdleOutbox(t *testing.T) {
	t.Parallel() // it mostly waits
	r := newRig(t, rigOptions{pg: pgserver.Options{Settings: map[string]string{"autovacuum": "off"}}})
	sampler := e2e.SampleConfirmed(t, r.pg, r.slot)
	relay := r.startReady(t)
	r.pg.Exec(t, "INSERT INTO outbox (id, aggregateid, payload) VALUES ('first', 'k', 'x')", busyTable)
	r.waitCaughtUp(t, 30*time.Second)
	before := total(r.k.EndOffsets(t, r.topic))

	busy := r.retainedAfterWriting(t, r.pg.Database)
	r.pg.ExecOn(t, "postgres", "CREATE DATABASE other")
	r.pg.ExecOn(t, "other", busyTable)
	other := r.retainedAfterWriting(t, "other")
	published := total(r.k.EndOffsets(t, r.topic)) - before

	sampler.Stop() // from here on nothing else runs on the server
	window := 40 * time.Second
	if *fullIdle {
		window = extraWindow
	}
	with := r.walWithin(t, window)
	if code := relay.Terminate(t, 30*time.Second); code != 0 {
		t.Errorf("the relay ended with %d after a clean stop", code)
	}
	without := r.walWithin(t, window)
	extraKB := float64(with-without) / 1024
	extraKBLimit := extraLimitKB * window.Seconds() / extraWindow.Seconds()

	refused := r.startsAgain(t)
	lost := r.raceIdleAdvance(t)
	ok := sampler.OK() && busy <= retainedLimit && other <= retainedLimit && published == 0 && extraKB <= extraKBLimit && refused == 0 && lost == 0
	e2e.Result(t, "idle_outbox", ok, "retained_mb_busy", busy, "retained_mb_other_db", other, "limit_mb", retainedLimit,
		"extra_wal_kb", extraKB, "extra_limit_kb", extraKBLimit, "window_s", int(window.Seconds()), "wal_kb_with", float64(with)/1024,
		"published", published, "refused", refused, "lost", lost)
}

const (
	busyTable = "CREATE TABLE busy (n bigserial, filler text)"
	busyRows  = "INSERT INTO busy (filler) SELECT repeat('x', 1000) FROM generate_series(1, 1000)" // about 1.1 MB of WAL
)

// retainedAfterWriting writes WAL in a database, and returns how many MiB the
// slot retains afterwards: the highest value seen in the ten seconds after it
// was first within the limit, or the last one of sixty seconds.
func (r *rig) retainedAfterWriting(t *testing.T, db string) float64 {
	t.Helper()
	begin := mustLSN(t, r.pg.Query(t, "SELECT pg_current_wal_lsn()"))
	for mustLSN(t, r.pg.Query(t, "SELECT pg_current_wal_lsn()"))-begin < busyMB*1_000_000 {
		r.pg.ExecOn(t, db, busyRows, busyRows, busyRows, busyRows, busyRows, busyRows, busyRows, busyRows, busyRows, busyRows)
	}
	retained := func() float64 {
		n, err := strconv.ParseInt(r.pg.Query(t, `SELECT (pg_current_wal_lsn() - restart_lsn)::bigint
			FROM pg_replication_slots WHERE slot_name = $1`, r.slot), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return float64(n) / mib
	}
	wrote := time.Now()
	for deadline := wrote.Add(60 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		mb := retained()
		if mb <= retainedLimit {
			break
		}
		if time.Now().After(deadline) {
			return mb
		}
	}
	t.Logf("%d MB written to database %s; let go after %v", busyMB, db, time.Since(wrote).Round(100*time.Millisecond))
	worst := 0.0
	for stays := time.Now().Add(10 * time.Second); time.Now().Before(stays); time.Sleep(200 * time.Millisecond) {
		worst = max(worst, retained())
	}
	return worst
}

// walWithin is how many bytes of WAL the server writes in d, once it has come to
// rest.
func (r *rig) walWithin(t *testing.T, d time.Duration) int64 {
	t.Helper()
	position := func() int64 { return int64(mustLSN(t, r.pg.Query(t, "SELECT pg_current_wal_insert_lsn()"))) }
	at, since := position(), time.Now()
	e2e.Eventually(t, time.Minute, "the server to rest", func() bool {
		time.Sleep(500 * time.Millisecond)
		if now := position(); now != at {
			at, since = now, time.Now()
		}
		return time.Since(since) > 5*time.Second
	})
	time.Sleep(d)
	return position() - at
}

// startsAgain starts the relay after what may have moved slot and mark apart: a
// clean stop, a kill, restarts of the server. It counts refusals.
func (r *rig) startsAgain(t *testing.T) (refused int) {
	t.Helper()
	for _, between := range []func(){
		func() {},
		func() { r.pg.StopFastIn(t, 30*time.Second); r.pg.StartAgain(t) },
		func() { r.pg.Kill9(); r.pg.StartAgain(t) },
	} {
		between()
		relay := r.start(t)
		deadline := time.Now().Add(30 * time.Second)
		for {
			if ready, _ := relay.Ready(); ready {
				break
			}
			if !relay.Alive() || time.Now().After(deadline) {
				t.Logf("the relay does not start:\n%s", relay.Log())
				refused++
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		r.pg.Exec(t, busyRows) // an idle position to confirm
		r.waitCaughtUp(t, 30*time.Second)
		relay.Kill()
	}
	return refused
}

// raceIdleAdvance inserts single events at random moments while another table
// keeps idle positions coming, and kills the relay again and again. It returns
// how many events are missing.
func (r *rig) raceIdleAdvance(t *testing.T) int {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var writers sync.WaitGroup
	write := func(f func(conn *pgx.Conn) error) {
		writers.Go(func() {
			conn, err := pgx.Connect(context.Background(), r.pg.DSN())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			for ctx.Err() == nil {
				if err := f(conn); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	write(func(conn *pgx.Conn) error {
		_, err := conn.Exec(context.Background(), "INSERT INTO busy (filler) VALUES ('x')")
		return err
	})
	rnd := rand.New(rand.NewPCG(5, 5))
	inserted := 0 // the goroutine below owns it until writers has ended
	write(func(conn *pgx.Conn) error {
		sleep(ctx, time.Duration(rnd.IntN(8000))*time.Microsecond)
		_, err := conn.Exec(context.Background(), "INSERT INTO outbox (id, aggregateid, payload) VALUES ($1, 'k', 'x')", fmt.Sprintf("race-%d", inserted))
		if err == nil {
			inserted++
		}
		return err
	})
	kills := rand.New(rand.NewPCG(6, 6))
	for range 10 {
		relay := r.startReady(t)
		time.Sleep(time.Duration(200+kills.IntN(600)) * time.Millisecond) // the random moment
		relay.Kill()
	}
	stop()
	writers.Wait()
	relay := r.startReady(t)
	r.waitCaughtUp(t, time.Minute)
	relay.Kill()
	seen := map[string]bool{}
	r.k.Each(t, func(rec *e2e.Record) {
		id, _ := rec.Header("id")
		seen[id] = true
	}, r.topic)
	lost := 0
	for i := range inserted {
		if !seen[fmt.Sprintf("race-%d", i)] {
			lost++
		}
	}
	t.Logf("%d events raced idle positions, %d lost", inserted, lost)
	return lost
}
