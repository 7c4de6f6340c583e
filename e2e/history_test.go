package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

const (
	historyMax  = 8 << 20
	historyHard = 48 << 20
)

// TestE2E_History lets WAL pass by: the history slot follows within its window,
// never past the main one. A transaction that was open for long holds its WAL: once
// the main slot has let go of that the history slot is dropped, loudly; the stream
// does not notice, and setup makes it anew.
func TestE2E_History(t *testing.T) {
	t.Parallel() // it mostly waits
	r := newRig(t, rigOptions{noSetup: true, pg: pgserver.Options{Settings: map[string]string{"autovacuum": "off"}}})
	r.historyYAML = "history:\n  max_bytes: 8MiB\n  hard_max_bytes: 48MiB\n"
	r.setup(t)
	r.pg.Exec(t, busyTable, "CREATE ROLE least LOGIN REPLICATION")
	if r.pg.Server != nil { // to run, to replay, and to make the history slot again
		r.dsn = r.pg.Server.DSNAs("least", "", r.pg.Database)
	}
	relay := r.startReady(t)
	start := r.position(t)
	behind, ahead := r.historyFollows(t)
	r.waitCaughtUp(t, 30*time.Second)
	code, stdout, stderr := r.command(t, "replay", "--from", start.String())
	refused := code == 1 && strings.Contains(stderr, "not retained as a whole")
	if !refused {
		t.Errorf("a replay from %s, which is let go, ended with %d:\n%s%s", start, code, stdout, stderr)
	}
	code, stdout, stderr = r.command(t, "check")
	if code != 0 || !strings.Contains(stdout, "can be replayed") {
		t.Errorf("check ended with %d:\n%s%s", code, stdout, stderr)
	}
	r.pg.Exec(t, "INSERT INTO outbox (id, aggregateid, payload) VALUES ('kept', 'k', 'x')")

	took := r.pinsHistory(t, relay)
	told := strings.Contains(relay.Log(), "history slot dropped") && strings.Contains(relay.Metrics(t), "cdc_relay_history_drops_total 1") &&
		strings.Contains(relay.Metrics(t), "cdc_relay_history_available 0")
	code, stdout, _ = r.command(t, "check")
	told = told && code == 1 && strings.Contains(stdout, "nothing can be replayed")
	ready, _ := relay.Ready()
	main := r.pg.Query(t, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active", r.slot) == "1"
	r.setup(t)
	e2e.Eventually(t, 10*time.Second, "the relay to see the new history slot", func() bool {
		return strings.Contains(relay.Metrics(t), "cdc_relay_history_available 1")
	})
	ok := behind <= historyMax+4<<20 && ahead == 0 && refused && told && ready && main
	e2e.Result(t, "history", ok, "max_behind_mb", float64(behind)/mib, "window_mb", historyMax>>20, "ahead", ahead, "refused", refused,
		"dropped_after_s", took.Seconds(), "told", told, "stream_ready", ready, "main_slot", main)
}

// historyFollows writes WAL and returns how far the history slot was behind the
// main one at most, and how often ahead of it.
func (r *rig) historyFollows(t *testing.T) (behind int64, ahead int) {
	t.Helper()
	for range 40 {
		r.pg.Exec(t, busyRows) // 1.1 MB
		time.Sleep(500 * time.Millisecond)
		gap := int64(mustLSN(t, r.confirmed(t))) - int64(mustLSN(t, r.pg.Query(t,
			`SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1`, r.slot+"_history")))
		behind = max(behind, gap)
		if gap < 0 {
			ahead++
		}
	}
	return behind, ahead
}

// pinsHistory holds a transaction open over more WAL than the hard limit, which the
// main slot keeps too as long, and returns how long it took from its end until the
// history slot was gone.
func (r *rig) pinsHistory(t *testing.T, relay *e2e.Relay) time.Duration {
	t.Helper()
	pin := newScripted(t, r.pg)
	pin.begin()
	pin.exec("INSERT INTO busy (filler) VALUES ('open')")
	for range historyHard>>20 + 10 {
		r.pg.Exec(t, busyRows)
	}
	r.waitCaughtUp(t, 30*time.Second)
	kept := r.pg.Query(t, `SELECT pg_current_wal_lsn() - min(restart_lsn) > $1 FROM pg_replication_slots WHERE slot_name IN ($2, $3) HAVING count(*) = 2`,
		historyHard, r.slot, r.slot+"_history")
	pin.exec("ROLLBACK")
	if kept != "true" {
		t.Errorf("the open transaction did not hold back both slots: %q", kept)
	}
	began := time.Now()
	e2e.Eventually(t, 3*time.Minute, "the history slot to be dropped", func() bool {
		time.Sleep(time.Second)
		r.pg.Exec(t, "INSERT INTO busy (filler) VALUES ('x')") // something goes on
		r.pg.Exec(t, "CHECKPOINT")                             // it writes which transactions run, by which slots let go of WAL
		return r.pg.Query(t, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", r.slot+"_history") == "0"
	})
	took := time.Since(began)
	relay.WaitLog(t, 10*time.Second, "history slot dropped")
	return took
}
