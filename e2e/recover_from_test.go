package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_RecoverFrom begins again at a position, by the history slot: everything
// from there is published once more, in commit order, and the stream goes on. A
// position that is not retained is refused with the range that is; and the same
// brings back a slot that was dropped, without a row missing.
func TestE2E_RecoverFrom(t *testing.T) {
	r := newRig(t, rigOptions{noSetup: true, partitions: 1})
	r.historyYAML = "history:\n  max_bytes: 1GiB\n"
	early := r.position(t)
	r.pg.Exec(t, busyTable)
	r.setup(t)
	oracle := e2e.NewOracle(t, r.pg)
	ok := true
	hold := func(holds bool, format string, args ...any) {
		t.Helper()
		if !holds {
			ok = false
			t.Errorf(format, args...)
		}
	}
	says := func(exit, want int, text string, words ...string) {
		t.Helper()
		hold(exit == want, "ended with %d: %s", exit, text)
		for _, w := range words {
			hold(strings.Contains(text, w), "does not say %q: %s", w, text)
		}
	}
	put := func(name string) {
		for i := range 50 {
			r.pg.Exec(t, fmt.Sprintf("INSERT INTO outbox (id, aggregateid, payload) SELECT '%s-%d-' || n, 'k', 'x' FROM generate_series(1, 4) n", name, i))
		}
	}
	relay := r.startReady(t)
	put("before")
	r.waitCaughtUp(t, time.Minute)
	from := r.position(t)
	put("again")
	r.waitCaughtUp(t, time.Minute)
	exit, stdout, stderr := r.command(t, "recover", "--from", from.String(), "--yes")
	says(exit, 1, stdout+stderr, "stop the relay")
	hold(relay.Terminate(t, 30*time.Second) == 0, "the relay did not stop cleanly")

	was := r.confirmed(t)
	exit, stdout, stderr = r.command(t, "recover", "--from", early.String(), "--yes")
	begins := r.pg.Query(t, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1", r.slot+"_history")
	says(exit, 1, stdout+stderr, "not retained as a whole", "from "+begins+" up to ")
	exit, stdout, stderr = r.command(t, "recover", "--from", "FFFF/0", "--yes")
	says(exit, 1, stdout+stderr, "beyond what was published", "from "+begins+" up to ")
	exit, stdout, stderr = r.command(t, "recover", "--from", from.String(), "--dry-run")
	says(exit, 0, stdout+stderr, "nothing was changed", from.String())
	exit, stdout, stderr = r.command(t, "recover", "--from", from.String())
	says(exit, 1, stdout+stderr, "nothing was changed")
	hold(r.confirmed(t) == was, "what was refused moved the slot from %s to %s", was, r.confirmed(t))

	exit, stdout, stderr = r.command(t, "recover", "--from", from.String(), "--yes")
	says(exit, 0, stdout+stderr, "is at "+from.String())
	hold(r.confirmed(t) == from.String(), "the slot is at %s, want %s", r.confirmed(t), from)
	put("new")
	relay = r.startReady(t)
	r.waitCaughtUp(t, time.Minute)
	hold(relay.Terminate(t, 30*time.Second) == 0, "the relay did not stop cleanly")
	copies := r.copiesByPrefix(t)
	hold(copies["before"] == 200 && copies["again"] == 400 && copies["new"] == 200, "the records: %v", copies)

	// The slot is dropped while rows wait in it: the history has them.
	put("waiting")
	r.pg.Exec(t, "SELECT pg_drop_replication_slot('"+r.slot+"')")
	put("dropped")
	mark := r.markLSN(t)
	exit, stdout, stderr = r.command(t, "recover", "--from", mark, "--yes")
	says(exit, 0, stdout+stderr, "is gone", "is at "+mark)
	relay = r.startReady(t)
	r.waitCaughtUp(t, time.Minute)
	hold(relay.Terminate(t, 30*time.Second) == 0, "the relay did not stop cleanly")
	copies = r.copiesByPrefix(t)
	hold(copies["waiting"] == 200 && copies["dropped"] == 200 && copies["new"] == 200, "the records after the slot was dropped: %v", copies)
	v := r.judgeAll(t, oracle, nil, nil)
	ok = ok && v.ok() && v.duplicate == 200
	e2e.Result(t, "recover_from", ok, "committed", v.committed, "missing", v.missing, "duplicate", v.duplicate, "overtaken", v.overtaken, "pg", r.pg.Version)
}

// copiesByPrefix counts records by their ids up to the first dash.
func (r *rig) copiesByPrefix(t testing.TB) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, rec := range r.k.Consume(t, r.topic) {
		id, _ := rec.Header("id")
		prefix, _, _ := strings.Cut(id, "-")
		n[prefix]++
	}
	return n
}

// markLSN is what the relay's mark says, by cdc-relay status.
func (r *rig) markLSN(t testing.TB) string {
	t.Helper()
	_, stdout, _ := r.command(t, "status")
	for line := range strings.Lines(stdout) {
		if rest, ok := strings.CutPrefix(line, "mark"); ok {
			at, _, _ := strings.Cut(strings.TrimSpace(rest), ",")
			return at
		}
	}
	t.Fatalf("status shows no mark:\n%s", stdout)
	return ""
}
