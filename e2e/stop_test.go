package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// bigRows is the size of the transaction in the middle of which the relay is
// stopped.
const bigRows = 100_000

// TestE2E_CleanStop stops the relay ten times under load, and ten times in the
// middle of a transaction of 100,000 rows: a restart repeats nothing and misses
// nothing.
func TestE2E_CleanStop(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.relayYAML = "  shutdown_timeout: 120s\n"
	oracle := e2e.NewOracle(t, r.pg)
	audit := r.startAudit(t)
	w := startWorkload(t, r.pg, 8, 2*time.Millisecond)
	const stops = 10
	bad, middle := 0, 0
	for i := range stops {
		w.Resume()
		relay := r.startReady(t)
		time.Sleep(300 * time.Millisecond) // under load
		if code := relay.Terminate(t, 130*time.Second); code != 0 {
			bad++
		}
		w.Pause()
		relay = r.startReady(t)
		r.waitCaughtUp(t, 2*time.Minute)
		if r.reachMiddle(t, relay, i) {
			middle++
		}
		if code := relay.Terminate(t, 130*time.Second); code != 0 {
			bad++
		}
	}
	w.Stop()
	last := r.startReady(t)
	r.waitCaughtUp(t, 4*time.Minute)
	if code := last.Terminate(t, 30*time.Second); code != 0 {
		bad++
	}
	v := r.judgeAll(t, oracle, w, audit)
	// How far a transaction has come when it is looked at is the machine's matter.
	ok := v.ok() && v.duplicate == 0 && bad == 0 && middle*2 >= stops && audit.OK()
	e2e.Result(t, "clean_stop", ok, "stops", 2*stops, "in_the_middle", middle, "unclean", bad, "committed", v.committed,
		"missing", v.missing, "uncommitted", v.uncommitted, "overtaken", v.overtaken, "early", v.early, "duplicates", v.duplicate)
}

// reachMiddle commits one large transaction and returns as soon as some of it has
// arrived; nothing else is written. It tells whether some of it had not, looked
// at while the relay stands still.
func (r *rig) reachMiddle(t *testing.T, relay *e2e.Relay, n int) bool {
	t.Helper()
	before := total(r.k.EndOffsets(t, r.topic))
	r.pg.Exec(t, fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload)
		SELECT 'big%d-' || n, 'k' || n %% 50, repeat('x', 200) FROM generate_series(1, %d) n`, n, bigRows))
	e2e.Eventually(t, time.Minute, "the large transaction to begin to arrive", func() bool {
		return total(r.k.EndOffsets(t, r.topic)) > before
	})
	relay.Pause(t)
	arrived := total(r.k.EndOffsets(t, r.topic)) - before
	relay.Resume(t)
	return arrived > 0 && arrived < bigRows
}

func total(ends map[int32]int64) int64 {
	var n int64
	for _, e := range ends {
		n += e
	}
	return n
}
