package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// writeBacklog commits transactions of one row each; ids begin with prefix.
func (r *rig) writeBacklog(t *testing.T, prefix string, rows int) {
	t.Helper()
	r.pg.Exec(t, fmt.Sprintf(`DO $$ BEGIN
		SET synchronous_commit = off;
		FOR n IN 1..%d LOOP
			INSERT INTO outbox (id, aggregateid, payload) VALUES ('%s-' || n, 'k' || n %% 50, repeat('x', 300));
			COMMIT;
		END LOOP;
	END $$`, rows, prefix))
}

// inADrain waits until the relay reads a backlog at full speed, where it can in
// coalesced reads. It tells whether that was seen before the backlog's end.
func (r *rig) inADrain(t *testing.T, relay *e2e.Relay, end string) bool {
	t.Helper()
	hot := false
	e2e.Eventually(t, time.Minute, "the relay to read in a hurry, or to the end", func() bool {
		hot = metric(t, relay, "cdc_relay_decoded_transactions_total") > 2000
		return hot || r.reached(end)
	})
	return hot && !r.reached(end)
}

// reached tells that the slot is confirmed up to end.
func (r *rig) reached(end string) bool {
	got, err := r.pg.TryQuery(`SELECT confirmed_flush_lsn >= $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, r.slot, end)
	return err == nil && got == "true"
}

// TestE2E_StopInADrain sends SIGTERM in the middle of a backlog of small
// transactions that is read in coalesced reads: the relay ends soon and in order,
// and a restart repeats nothing and misses nothing.
func TestE2E_StopInADrain(t *testing.T) {
	const rows, stops = 400_000, 4
	r := newRig(t, rigOptions{})
	oracle := e2e.NewOracle(t, r.pg)
	r.writeBacklog(t, "a", rows)
	end := r.pg.Query(t, `SELECT pg_current_wal_insert_lsn()`)
	middle, unclean, slowest := 0, 0, time.Duration(0)
	for range stops {
		relay := r.start(t)
		relay.WaitReady(t, 30*time.Second)
		hot := r.inADrain(t, relay, end)
		began := time.Now()
		if code := relay.Terminate(t, time.Minute); code != 0 {
			unclean++
		}
		slowest = max(slowest, time.Since(began))
		if hot && !r.reached(end) {
			middle++
		}
	}
	last := r.startReady(t)
	r.waitCaughtUp(t, 2*time.Minute)
	if code := last.Terminate(t, 30*time.Second); code != 0 {
		unclean++
	}
	v := r.judgeAll(t, oracle, nil, nil)
	ok := v.ok() && v.committed == rows && v.duplicate == 0 && unclean == 0 && middle >= stops/2 && slowest < 10*time.Second
	e2e.Result(t, "stop_in_a_drain", ok, "stops", stops, "in_the_middle", middle, "unclean", unclean, "slowest_s", slowest.Seconds(),
		"committed", v.committed, "missing", v.missing, "overtaken", v.overtaken, "duplicates", v.duplicate)
}
