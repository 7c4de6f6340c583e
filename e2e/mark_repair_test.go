package e2e_test

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_MarkRepair: a row that verify --repair publishes is marked, as one that a
// backfill publishes is.
func TestE2E_MarkRepair(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true})
	r.pg.Exec(t, polledTable)
	r.relayYAML = markYAML
	r.setup(t)
	r.pg.Exec(t, "INSERT INTO outbox (id, aggregateid) VALUES ('skipped', 'k')")
	code, stdout, stderr := r.command(t, "adopt", "--yes", "--lsn", r.pg.Query(t, "SELECT pg_current_wal_lsn()"))
	if code != 0 {
		t.Fatalf("adopt ended with %d: %s%s", code, stdout, stderr)
	}
	relay := r.startReady(t)
	defer relay.Kill()
	r.pg.Exec(t, "INSERT INTO outbox (id, aggregateid) VALUES ('streamed', 'k')")
	r.waitCaughtUp(t, 30*time.Second)
	const pending = "SELECT coalesce(string_agg(id, ' '), '') FROM outbox WHERE status = 'pending'"
	before := r.pg.Query(t, pending)
	code, stdout, stderr = r.command(t, "verify", "--repair", "--yes")
	after := r.pg.Query(t, pending)
	ok := code == 0 && before == "skipped" && after == "" && len(ids(r.k.Consume(t, r.topic))) == 2
	if !ok {
		t.Logf("verify --repair ended with %d, pending before %q, after %q:\n%s%s", code, before, after, stdout, stderr)
	}
	e2e.Result(t, "mark_repair", ok, "marked", after == "")
}
