package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// TestE2E_Migrate follows docs/migrate.md step by step, with its commands, from a
// relay that polls to this one, while writers go on and both relays are killed at
// random moments. Some rows are locked by somebody for as long as the old relay runs,
// so that it never sends them.
func TestE2E_Migrate(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true})
	r.pg.Exec(t, polledTable, "INSERT INTO outbox (id, aggregateid, payload) SELECT 'before-' || n, 'k' || n % 20, 'x' FROM generate_series(1, 500) n")
	m := &migration{rig: r, t: t, real: r.topic, shadow: r.k.Topic(t, "shadow", 6)}
	m.mapTo(m.shadow)
	w := startBusyWriters(t, r.pg, 1)
	old := startPolling(t, r, m.real)

	// 1. Publication and slot, beside the old relay. Rows from before are its own.
	m.says(r.setup(t), "gap: rows of public.outbox")
	afterSetup := r.pg.Query(t, "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
	m.command0("check")

	// 2. Shadow topics.
	m.killed(3)
	relay := r.startReady(t)
	stuck := m.lockSome()
	time.Sleep(500 * time.Millisecond)
	m.command0("verify", "--since", afterSetup)
	same := m.sameRecords()

	// 3. The switch, with the old relay going on; and back, and again.
	m.stop(relay)
	r.relayYAML = markYAML
	m.mapTo(m.real)
	m.command0("check")
	m.killed(2)
	m.stop(r.startReady(t)) // rollback: the old relay goes on alone
	m.honest()
	time.Sleep(300 * time.Millisecond)
	m.killed(2)
	relay = r.startReady(t)
	time.Sleep(500 * time.Millisecond)
	m.honest()

	// 4. The old relay is stopped, in the middle of whatever it does.
	killedOld := old.stop()
	left := r.pg.Query(t, "SELECT count(*) FROM outbox WHERE status = 'pending' AND id = ANY ($1)", stuck.ids)
	stuck.release()

	// 5. What it left: published and marked, killed in the middle once.
	p := e2e.StartRelay(t, e2e.RelayOptions{Config: r.config(), Command: "backfill", Args: []string{"--where", "status = 'pending'", "--order-by", "created_at", "--closes-gaps"}})
	time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
	p.Kill()
	m.says(m.command0("backfill", "--where", "status = 'pending'", "--order-by", "created_at", "--closes-gaps"), "gap covered")
	m.stop(relay)
	m.killed(1)
	relay = r.startReady(t)
	m.says(m.command0("status"), "open gaps")

	// 6. The proof.
	m.command0("verify")
	w.Stop()
	r.waitCaughtUp(t, time.Minute)
	m.honest()
	pending := r.pg.Query(t, "SELECT count(*) FROM outbox WHERE status <> 'completed'")
	m.stop(relay)
	missing, duplicates, ordered := m.judge()
	ok := missing == 0 && pending == "0" && killedOld > 0 && m.kills > 0 && left != "0" && same > 0 && ordered && m.lies == 0 && !t.Failed()
	e2e.Result(t, "migrate", ok, "missing", missing, "duplicates", duplicates, "killed_old", killedOld, "killed_new", m.kills, "pending", pending,
		"left_by_old", left, "marked_unpublished", m.lies, "rows", r.pg.Query(t, "SELECT count(*) FROM outbox"), "compared", same, "order_of_new", ordered, "pg", r.pg.Version)
}

// migration is the procedure and what was seen on the way.
type migration struct {
	*rig
	t            testing.TB
	real, shadow string
	kills        int
	lies         int // rows that are completed and not in the real topic
}

func (m *migration) mapTo(topic string) {
	m.topic = topic
	m.outboxYAML = "outbox:\n  - table: public.outbox\n    topic: " + topic + "\n    columns:\n      timestamp: created_at\n"
}

// command0 runs a command that must succeed, and returns what it prints.
func (m *migration) command0(command string, args ...string) string {
	m.t.Helper()
	code, stdout, stderr := m.command(m.t, command, args...)
	if code != 0 {
		m.t.Errorf("cdc-relay %s %s ended with %d:\n%s%s", command, strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout + stderr
}

func (m *migration) says(text, what string) {
	m.t.Helper()
	if !strings.Contains(text, what) {
		m.t.Errorf("no %q in:\n%s", what, text)
	}
}

func (m *migration) stop(relay *e2e.Relay) {
	m.t.Helper()
	if code := relay.Terminate(m.t, 30*time.Second); code != 0 {
		m.t.Errorf("the relay ended with %d after SIGTERM", code)
	}
}

// killed runs the relay n times, and kills it each time.
func (m *migration) killed(n int) {
	m.t.Helper()
	for range n {
		relay := m.startReady(m.t)
		time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond) // the random moment
		relay.Kill()
		m.kills++
		m.honest()
	}
}

// honest counts the rows that are completed and not in the topic that consumers read.
func (m *migration) honest() {
	m.t.Helper()
	completed := strings.Fields(m.pg.Query(m.t, "SELECT coalesce(string_agg(id, ' '), '') FROM outbox WHERE status = 'completed'"))
	published := map[string]bool{}
	for _, id := range ids(m.k.Consume(m.t, m.real)) {
		published[id] = true
	}
	for _, id := range completed {
		if !published[id] {
			m.lies++
			m.t.Logf("row %s is completed and not in the topic", id)
		}
	}
}

// sameRecords compares the shadow topic with the real one: a consumer sees the same
// key, value and headers at the same partition. It returns how many events are in both.
func (m *migration) sameRecords() (both int) {
	m.t.Helper()
	was := map[string]e2e.Record{}
	for _, rec := range m.k.Consume(m.t, m.real) {
		id, _ := rec.Header("id")
		was[id] = rec
	}
	for _, rec := range m.k.Consume(m.t, m.shadow) {
		id, _ := rec.Header("id")
		old, ok := was[id]
		if !ok {
			continue
		}
		both++
		kind, _ := rec.Header("eventType")
		oldKind, _ := old.Header("eventType")
		if !bytes.Equal(rec.Key, old.Key) || !bytes.Equal(rec.Value, old.Value) || rec.Partition != old.Partition || kind != oldKind {
			m.t.Errorf("record %s differs from that of the old relay", id)
		}
	}
	return both
}

// judge compares the ids of the table with the real topic. The order of the new
// relay's own records is that of commits, by their first copies.
func (m *migration) judge() (missing, duplicates int, ordered bool) {
	m.t.Helper()
	seen, streamed := map[string]bool{}, map[string]bool{}
	last := map[int32]string{}
	ordered = true
	for _, rec := range m.k.Consume(m.t, m.real) {
		id, _ := rec.Header("id")
		if seen[id] {
			duplicates++
		}
		seen[id] = true
		lsn, isNew := rec.Header("lsn")
		_, backfilled := rec.Header("backfilled")
		if !isNew || backfilled || streamed[id] {
			continue
		}
		streamed[id] = true
		seq, _ := rec.Header("seq")
		n, _ := strconv.Atoi(seq)
		at := fmt.Sprintf("%s/%08d", lsn, n)
		if at < last[rec.Partition] {
			ordered = false
			m.t.Errorf("record %s comes after a later one", id)
		}
		last[rec.Partition] = max(last[rec.Partition], at)
	}
	for _, id := range strings.Fields(m.pg.Query(m.t, "SELECT string_agg(id, ' ') FROM outbox")) {
		if !seen[id] {
			missing++
			m.t.Logf("row %s is not in the topic", id)
		}
	}
	return missing, duplicates, ordered
}

// lockedRows are rows that somebody holds, which the old relay skips.
type lockedRows struct {
	ids     []string
	release func()
}

// lockSome makes some rows, which somebody then holds: they are in the shadow topic,
// and the old relay cannot take them.
func (m *migration) lockSome() lockedRows {
	m.t.Helper()
	var l lockedRows
	for i := range 5 {
		l.ids = append(l.ids, fmt.Sprintf("stuck-%d", i))
	}
	ctx := context.Background()
	insert, hold := m.pg.Conn(m.t), m.pg.Conn(m.t)
	tx, err := hold.Begin(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	// As a transaction holds them that refers to them by a foreign key.
	for _, step := range []func() error{
		func() error {
			_, err := insert.Exec(ctx, "INSERT INTO outbox (id, aggregateid, payload, status) SELECT unnest($1::text[]), 'stuck', 'x', 'new'", l.ids)
			return err
		},
		func() error {
			_, err := tx.Exec(ctx, "SELECT FROM outbox WHERE id = ANY ($1) FOR KEY SHARE", l.ids)
			return err
		},
		func() error {
			_, err := insert.Exec(ctx, "UPDATE outbox SET status = 'pending' WHERE id = ANY ($1)", l.ids)
			return err
		},
	} {
		if err := step(); err != nil {
			m.t.Fatal(err)
		}
	}
	l.release = func() {
		if err := tx.Commit(ctx); err != nil {
			m.t.Fatal(err)
		}
	}
	return l
}

// polling runs the old relay, and kills it now and then.
type polling struct{ stop func() (kills int) }

var pollingRelay = sync.OnceValues(func() (string, error) {
	root, err := proc.ModuleRoot()
	if err != nil {
		return "", err
	}
	dir, err := proc.TempDir("polling")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "polling-relay"), "./e2e/cmd/polling-relay")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the polling relay: %w:\n%s", err, out)
	}
	return filepath.Join(dir, "polling-relay"), nil
})

func startPolling(t testing.TB, r *rig, topic string) polling {
	t.Helper()
	binary, err := pollingRelay()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "polling.log")
	done := make(chan struct{}) // closed by stop
	kills := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			p, err := proc.Start(proc.Spec{Path: binary, Args: []string{r.pg.DSN(), r.k.Addr(), topic}, LogFile: log})
			if err != nil {
				t.Errorf("start the polling relay: %v", err)
				return
			}
			stopped := false
			select {
			case <-done:
				stopped = true
			case <-time.After(time.Duration(300+rand.IntN(900)) * time.Millisecond):
			}
			if !p.Alive() {
				t.Errorf("the polling relay ended by itself; see %s", log)
			}
			_ = p.Signal(syscall.SIGKILL)
			<-p.Done()
			kills++
			if stopped {
				return
			}
		}
	})
	stop := sync.OnceValue(func() int {
		close(done)
		wg.Wait()
		return kills
	})
	t.Cleanup(func() { stop() })
	return polling{stop}
}
