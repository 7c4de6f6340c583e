package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

const handoffWriters = 8

// orderedTable has a column to order by: one that no commit order follows.
const orderedTable = `CREATE TABLE outbox (
	id text PRIMARY KEY, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text,
	type text NOT NULL DEFAULT 'created', payload text, at timestamptz NOT NULL DEFAULT clock_timestamp())`

// TestE2E_Handoff publishes what is in the table while eight writers go on, and
// lets the stream take over. The oracle is the table: its ids, each of which must
// be in the topic, and, where the backfill made the slot, be there once.
func TestE2E_Handoff(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true})
	r.pg.RequireControl(t) // its databases stay
	h := &handoff{t: t, rig: r}
	h.fresh(3)
	h.interrupted()
	h.existing()
}

type handoff struct {
	*rig
	t *testing.T
}

// part is a database and a topic of its own, with rows from before.
func (h *handoff) part(name string, before int) *rig {
	h.t.Helper()
	r := h.inDatabase(h.t, name)
	r.topic = h.k.Topic(h.t, name, 6, nil)
	r.pg.Exec(h.t, orderedTable, fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload)
		SELECT 'before-' || n, 'k' || n %% 20, 'x' FROM generate_series(1, %d) n`, before))
	return r
}

// tally compares the table with the topic.
type tally struct {
	rows, backfilled, streamed             int
	missing, duplicate, uncommitted, twice int // twice: more than two copies
	overlap                                bool
}

func (h *handoff) count(r *rig) tally {
	h.t.Helper()
	inTable := map[string]int{}
	for _, id := range strings.Fields(r.pg.Query(h.t, "SELECT string_agg(id, ' ') FROM outbox")) {
		inTable[id] = 0
	}
	c := tally{rows: len(inTable)}
	lastBackfilled, firstStreamed := "", "~"
	for _, rec := range r.k.Consume(h.t, r.topic) {
		id, _ := rec.Header("id")
		lsn, _ := rec.Header("lsn")
		if _, ok := rec.Header("backfilled"); ok {
			c.backfilled++
			lastBackfilled = max(lastBackfilled, lsn)
		} else {
			c.streamed++
			firstStreamed = min(firstStreamed, lsn)
		}
		n, ok := inTable[id]
		switch {
		case !ok:
			if c.uncommitted++; c.uncommitted < 10 {
				h.t.Logf("record %s is not in the table", id)
			}
		case n == 1:
			c.duplicate++
		case n > 1:
			c.twice++
		}
		inTable[id] = n + 1
	}
	for id, n := range inTable {
		if n == 0 {
			if c.missing++; c.missing < 10 {
				h.t.Logf("row %s is not in the topic", id)
			}
		}
	}
	c.overlap = lastBackfilled >= firstStreamed
	return c
}

// fresh: a backfill makes the slot while the writers go on, and run goes on from
// there.
func (h *handoff) fresh(rounds int) {
	h.t.Helper()
	var sum tally
	ok := true
	for i := range rounds {
		r := h.part(fmt.Sprintf("handoff_%d", i), 1000)
		w := startBusyWriters(h.t, r.pg, handoffWriters)
		time.Sleep(time.Second) // they have committed, and have transactions open
		code, stdout, stderr := r.command(h.t, "backfill", "--all", "--order-by", "at")
		if code != 0 {
			h.t.Fatalf("backfill ended with %d:\n%s%s", code, stdout, stderr)
		}
		relay := r.startReady(h.t)
		time.Sleep(time.Second)
		w.Stop()
		r.waitCaughtUp(h.t, time.Minute)
		ok = relay.Terminate(h.t, 30*time.Second) == 0 && ok
		c := h.count(r)
		sum.rows += c.rows
		sum.backfilled += c.backfilled
		sum.streamed += c.streamed
		sum.missing += c.missing
		sum.duplicate += c.duplicate + c.twice
		sum.uncommitted += c.uncommitted
		ok = ok && c.backfilled > 1000 && c.streamed > 0 && !c.overlap && w.undone.Load() > 0
		_, status, _ := r.command(h.t, "status")
		if !strings.Contains(status, "open gaps") || !strings.Contains(status, "none") {
			ok = false
			h.t.Errorf("a backfill of every row leaves a gap:\n%s", status)
		}
	}
	ok = ok && sum.missing == 0 && sum.duplicate == 0 && sum.uncommitted == 0
	e2e.Result(h.t, "handoff", ok, "writers", handoffWriters, "rounds", rounds, "rows", sum.rows, "missing", sum.missing, "duplicate", sum.duplicate,
		"uncommitted", sum.uncommitted, "backfilled", sum.backfilled, "streamed", sum.streamed, "pg", h.pg.Version)
}

// slowly makes the server take a millisecond for each row from before the writers.
const slowly = "id NOT LIKE 'before-%' OR pg_sleep(0.001) IS NOT NULL"

// interrupted: a backfill is killed in the middle, and the next one by a signal.
// Both are told by run, and begun again.
func (h *handoff) interrupted() {
	h.t.Helper()
	r := h.part("handoff_killed", 5000)
	w := startBusyWriters(h.t, r.pg, handoffWriters)
	ok := true
	hold := func(holds bool, format string, args ...any) {
		h.t.Helper()
		if !holds {
			ok = false
			h.t.Errorf(format, args...)
		}
	}
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		had := h.published(r)
		p := e2e.StartRelay(h.t, e2e.RelayOptions{Config: r.config(), Command: "backfill", Args: []string{"--where", slowly, "--order-by", "at"}})
		e2e.Eventually(h.t, time.Minute, "the backfill to publish", func() bool { return h.published(r) > had || !p.Alive() })
		hold(p.Alive(), "the backfill ended before it was interrupted:\n%s", p.Log())
		if err := p.Signal(signal); err != nil {
			h.t.Fatal(err)
		}
		code := p.WaitExit(h.t, 20*time.Second)
		if signal == syscall.SIGINT {
			hold(code == 1 && strings.Contains(p.Log(), "has not finished") && strings.Contains(p.Log(), "--give-up"), "interrupted, it ends with %d:\n%s", code, p.Log())
		}
		run := r.start(h.t)
		hold(run.WaitExit(h.t, 30*time.Second) == 1 && strings.Contains(run.Log(), "has not finished") && strings.Contains(run.Log(), "cdc-relay backfill again"),
			"run does not tell of the backfill:\n%s", run.Log())
		code, stdout, _ := r.command(h.t, "status")
		hold(code == 1 && strings.Contains(stdout, "has not finished"), "status does not tell of the backfill (%d):\n%s", code, stdout)
		code, _, stderr := r.command(h.t, "setup")
		hold(code == 1 && strings.Contains(stderr, "--give-up"), "setup does not tell of the backfill (%d):\n%s", code, stderr)
	}
	copies := h.published(r)
	code, stdout, stderr := r.command(h.t, "backfill", "--all", "--order-by", "at")
	hold(code == 0 && strings.Contains(stdout, "starting over") && strings.Contains(stdout, "dropped slot"), "the last backfill ended with %d:\n%s%s", code, stdout, stderr)
	r.startReady(h.t)
	time.Sleep(500 * time.Millisecond)
	w.Stop()
	r.waitCaughtUp(h.t, time.Minute)
	c := h.count(r)
	extra := c.duplicate + c.twice
	ok = ok && c.missing == 0 && c.uncommitted == 0 && copies > 0 && int64(extra) == copies
	e2e.Result(h.t, "handoff_interrupted", ok, "writers", handoffWriters, "rows", c.rows, "missing", c.missing, "uncommitted", c.uncommitted,
		"published_before", copies, "duplicate", extra, "pg", h.pg.Version)
}

// published is how many records the topic holds.
func (h *handoff) published(r *rig) (n int64) {
	h.t.Helper()
	for _, end := range r.k.EndOffsets(h.t, r.topic) {
		n += end
	}
	return n
}

// existing: rows from before the slot are published beside a relay that runs; the
// gap is closed when it starts next.
func (h *handoff) existing() {
	h.t.Helper()
	r := h.part("handoff_existing", 1000)
	r.setup(h.t) // which records the gap
	w := startBusyWriters(h.t, r.pg, handoffWriters)
	relay := r.startReady(h.t)
	time.Sleep(500 * time.Millisecond)
	code, stdout, stderr := r.command(h.t, "backfill", "--all", "--order-by", "at")
	ok := code == 0 && strings.Contains(stdout, "published again") && strings.Contains(stdout, "gap covered")
	if !ok {
		h.t.Errorf("a backfill beside a running relay ended with %d:\n%s%s", code, stdout, stderr)
	}
	_, status, _ := r.command(h.t, "status")
	told := strings.Contains(status, "closes it at its next start")
	ok = relay.Terminate(h.t, 30*time.Second) == 0 && ok
	relay = r.startReady(h.t)
	_, after, _ := r.command(h.t, "status")
	closed := strings.Contains(after, "open gaps") && strings.Contains(after, "none")
	if !told || !closed {
		h.t.Errorf("status after the backfill:\n%s\nand after the next start:\n%s", status, after)
	}
	time.Sleep(500 * time.Millisecond)
	w.Stop()
	r.waitCaughtUp(h.t, time.Minute)
	ok = relay.Terminate(h.t, 30*time.Second) == 0 && ok
	c := h.count(r)
	ok = ok && told && closed && c.missing == 0 && c.uncommitted == 0 && c.backfilled > 1000 && c.twice == 0
	e2e.Result(h.t, "handoff_existing", ok, "writers", handoffWriters, "rows", c.rows, "missing", c.missing, "uncommitted", c.uncommitted,
		"duplicate", c.duplicate, "backfilled", c.backfilled, "streamed", c.streamed, "gap_closed", closed, "pg", h.pg.Version)
}

// busyWriters run transactions of several statements, some of which are rolled
// back, with pauses in which others commit.
type busyWriters struct {
	stop   context.CancelFunc
	wg     sync.WaitGroup
	undone atomic.Int64
	err    atomic.Pointer[error]
	// mayFail: the server is about to be killed.
	mayFail atomic.Bool
	t       testing.TB
}

func startBusyWriters(t testing.TB, pg *e2e.PG, n int) *busyWriters {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &busyWriters{stop: cancel, t: t}
	for i := range n {
		w.wg.Go(func() {
			if err := w.write(ctx, pg, i); err != nil {
				w.err.Store(&err)
			}
		})
	}
	t.Cleanup(w.Stop)
	return w
}

// Stop lets the transactions in hand end.
func (w *busyWriters) Stop() {
	w.stop()
	w.wg.Wait()
	if err := w.err.Load(); err != nil && !w.mayFail.Load() {
		w.t.Errorf("a writer failed: %v", *err)
	}
}

func (w *busyWriters) write(ctx context.Context, pg *e2e.PG, n int) error {
	background := context.Background()
	rnd := rand.New(rand.NewPCG(uint64(n), 3))
	conn, err := pgx.Connect(background, pg.DSN())
	if err != nil {
		return err
	}
	defer conn.Close(background)
	for i := 0; ctx.Err() == nil; i++ {
		tx, err := conn.Begin(background)
		if err != nil {
			return err
		}
		for s := range 2 + rnd.IntN(3) {
			_, err := tx.Exec(background, `INSERT INTO outbox (id, aggregateid, payload) SELECT $1::text || '-' || m, $2::text, 'x' FROM generate_series(1, $3::int) m`,
				fmt.Sprintf("w%d-%d-%d", n, i, s), fmt.Sprintf("k%d", rnd.IntN(20)), 1+rnd.IntN(3))
			if err != nil {
				return err
			}
			time.Sleep(time.Duration(rnd.IntN(4000)) * time.Microsecond)
		}
		if rnd.IntN(6) == 0 {
			w.undone.Add(1)
			err = tx.Rollback(background)
		} else {
			err = tx.Commit(background)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
