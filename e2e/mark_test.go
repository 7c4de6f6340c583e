package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// polledTable is an outbox as a relay that polls has it.
const polledTable = `CREATE TABLE outbox (
	id text PRIMARY KEY, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text,
	type text NOT NULL DEFAULT 'created', payload text,
	status text NOT NULL DEFAULT 'pending', created_at timestamptz NOT NULL DEFAULT clock_timestamp());
	CREATE INDEX ON outbox (created_at) WHERE status = 'pending'`

const markYAML = `mark:
  column: status
  value: completed
  batch_rows: 50
  lock_timeout: 50ms
  max_bytes: 1MiB
`

// updateLog keeps the id of each row that is updated.
var updateLog = []string{
	"CREATE TABLE updated (id text)",
	`CREATE FUNCTION log_update() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.updated VALUES (OLD.id); RETURN NULL; END $$`,
	"CREATE TRIGGER log_update AFTER UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION log_update()",
}

// TestE2E_Mark marks published rows while writers go on, others hold locks on rows
// and delete some, Kafka freezes, and the relay is killed. Whenever it is looked: what
// is marked is in the topic, and what is confirmed is marked.
func TestE2E_Mark(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true, proxy: true})
	r.pg.Exec(t, append([]string{polledTable}, updateLog...)...)
	r.relayYAML = markYAML
	setup := r.setup(t)
	w := startBusyWriters(t, r.pg, 2)
	stopLocks := startLocks(t, r.pg)
	m := &marked{rig: r, t: t}
	const kills = 8
	for i := range kills {
		relay := r.start(t)
		relay.WaitReady(t, 30*time.Second)
		for range 2 {
			time.Sleep(time.Duration(100+rand.IntN(500)) * time.Millisecond) // the random moment
			m.look()
		}
		if i%2 == 1 { // rows go on being read, and nothing is published
			r.proxy.WithholdProduce(r.topic)
			time.Sleep(600 * time.Millisecond)
			m.look()
		}
		relay.Kill()
		r.proxy.Release()
		m.look()
	}
	w.Stop()
	locks := stopLocks()
	relay := r.startReady(t)
	// More in one transaction than can be remembered.
	r.pg.Exec(t, "INSERT INTO outbox (id, aggregateid, payload) SELECT 'large-' || n, 'k' || n % 20, 'x' FROM generate_series(1, 20000) n")
	r.waitCaughtUp(t, 2*time.Minute)
	m.look()
	large := strings.Contains(relay.Metrics(t), "cdc_relay_unmarked_rows 0")
	relay, heldBack := m.columnGone(relay)
	rows, pending := m.number("SELECT count(*) FROM outbox"), m.number("SELECT count(*) FROM outbox WHERE status <> 'completed'")
	missing := m.missing()
	updates := m.number("SELECT count(*) FROM updated")
	time.Sleep(2 * time.Second)
	twice := m.number("SELECT count(*) - count(DISTINCT id) FROM updated") + m.number("SELECT count(*) FROM updated") - updates
	clean := relay.Terminate(t, 30*time.Second) == 0
	ok := m.unpublished == 0 && m.unmarked == 0 && pending == 0 && missing == 0 && twice == 0 && m.covered > 0 && m.marked > 0 &&
		locks > 0 && large && heldBack && clean && strings.Contains(setup, "completed")
	e2e.Result(t, "mark", ok, "rows", rows, "marked", rows-pending, "unpublished_marked", m.unpublished, "confirmed_unmarked", m.unmarked,
		"kills", kills, "missing", missing, "updated_twice", twice, "looks", m.looks, "locks", locks, "held_back", heldBack, "clean_stop", clean, "pg", r.pg.Version)
}

// marked is what was found by looking.
type marked struct {
	*rig
	t                     testing.TB
	looks                 int
	marked, covered       int // seen, in all looks
	unpublished, unmarked int
}

func (m *marked) number(sql string) int {
	m.t.Helper()
	n, err := strconv.Atoi(m.pg.Query(m.t, sql))
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// statuses are those of the rows, by id.
func (m *marked) statuses() map[string]string {
	m.t.Helper()
	st := map[string]string{}
	for _, row := range strings.Fields(m.pg.Query(m.t, "SELECT coalesce(string_agg(id || '=' || status, ' '), '') FROM outbox")) {
		id, status, _ := strings.Cut(row, "=")
		st[id] = status
	}
	return st
}

// missing counts the rows that are not in the topic.
func (m *marked) missing() (n int) {
	m.t.Helper()
	published := map[string]bool{}
	for _, id := range ids(m.k.Consume(m.t, m.topic)) {
		published[id] = true
	}
	for id := range m.statuses() {
		if !published[id] {
			m.t.Logf("row %s is not in the topic", id)
			n++
		}
	}
	return n
}

// look reads what was confirmed, then the rows, then the topic: what is true of one
// is true of those that are read later, while the relay goes on.
func (m *marked) look() {
	m.t.Helper()
	m.looks++
	confirmed, err := pglogrepl.ParseLSN(m.confirmed(m.t))
	if err != nil {
		m.t.Fatal(err)
	}
	status := m.statuses()
	commits := map[string]pglogrepl.LSN{}
	for _, rec := range m.k.Consume(m.t, m.topic) {
		id, _ := rec.Header("id")
		lsn, _ := rec.Header("lsn")
		n, err := strconv.ParseUint(lsn, 16, 64)
		if err != nil {
			m.t.Fatal(err)
		}
		commits[id] = pglogrepl.LSN(n)
	}
	for id, st := range status {
		commit, published := commits[id]
		switch {
		case st == "completed" && !published:
			m.unpublished++
			m.t.Logf("row %s is marked and not in the topic", id)
		case st == "completed":
			m.marked++
		case published && commit < confirmed:
			m.unmarked++
			m.t.Logf("row %s, committed at %s, is not marked, and %s is confirmed", id, commit, confirmed)
		}
		if published && commit < confirmed {
			m.covered++
		}
	}
}

// columnGone takes the column away: events go on, nothing is confirmed, and the relay
// says why; a stop ends at once, and is not clean; then it heals by itself.
func (m *marked) columnGone(relay *e2e.Relay) (_ *e2e.Relay, heldBack bool) {
	m.t.Helper()
	m.pg.Exec(m.t, "ALTER TABLE outbox RENAME status TO state", "INSERT INTO outbox (id, aggregateid) SELECT 'gone-' || n, 'k' FROM generate_series(1, 10) n")
	before, _ := pglogrepl.ParseLSN(m.pg.Query(m.t, "SELECT pg_current_wal_insert_lsn()"))
	relay.WaitNotReady(m.t, 20*time.Second, "published rows are not marked")
	relay.WaitNotReady(m.t, 20*time.Second, `has no column \"status\"`)
	e2e.Eventually(m.t, 20*time.Second, "events to be published without the column", func() bool {
		return slices.Contains(ids(m.k.Consume(m.t, m.topic)), "gone-10")
	})
	time.Sleep(1500 * time.Millisecond) // longer than status_interval
	confirmed, _ := pglogrepl.ParseLSN(m.confirmed(m.t))
	held := confirmed < before
	_, check, _ := m.command(m.t, "check")
	told := strings.Contains(check, "FAIL  mark public.outbox") && strings.Contains(relay.Metrics(m.t), "cdc_relay_marking_failing 1")
	began := time.Now()
	code := relay.Terminate(m.t, 30*time.Second)
	unclean := code == 1 && time.Since(began) < 10*time.Second && strings.Contains(relay.Log(), "stopped before published rows were marked")
	relay = m.start(m.t)
	relay.WaitNotReady(m.t, 20*time.Second, `has no column \"status\"`)
	m.pg.Exec(m.t, "ALTER TABLE outbox RENAME state TO status")
	relay.WaitReady(m.t, 20*time.Second)
	m.waitCaughtUp(m.t, 20*time.Second)
	m.look()
	if !held || !told || !unclean {
		m.t.Errorf("held back: %t, told: %t, stopped with code %d after %s", held, told, code, time.Since(began))
	}
	return relay, held && told && unclean
}

// startLocks holds locks on rows that are not marked, for longer than the relay waits
// for one, and deletes some of them.
func startLocks(t testing.TB, pg *e2e.PG) (stop func() (locks int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	n := 0
	conn := pg.Conn(t)
	wg.Go(func() {
		for ctx.Err() == nil {
			rows, err := lockSome(conn, rand.IntN(4) == 0)
			if err != nil {
				t.Errorf("hold locks: %v", err)
				return
			}
			n += rows
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func() int {
		cancel()
		wg.Wait()
		return n
	}
}

func lockSome(conn *pgx.Conn, remove bool) (rows int, err error) {
	ctx := context.Background()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	tag, err := tx.Exec(ctx, "SELECT id FROM outbox WHERE status = 'pending' ORDER BY created_at DESC LIMIT 7 FOR UPDATE SKIP LOCKED")
	if err != nil {
		return 0, err
	}
	time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
	if remove {
		_, err = tx.Exec(ctx, fmt.Sprintf("DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE status = 'pending' ORDER BY created_at DESC LIMIT %d FOR UPDATE SKIP LOCKED)", 1+rand.IntN(3)))
	}
	if err != nil {
		return 0, err
	}
	return int(tag.RowsAffected()), tx.Commit(ctx)
}
