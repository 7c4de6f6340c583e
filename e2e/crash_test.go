package e2e_test

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/e2e"
)

var crashes = flag.Int("crashes", 50, "how often TestE2E_Crash kills the relay")

// TestE2E_Crash kills the relay at random moments under load: nothing that was
// committed is missing, nothing else is published, and no record overtakes one
// that was committed before it on its partition.
func TestE2E_Crash(t *testing.T) {
	r := newRig(t, rigOptions{})
	oracle := e2e.NewOracle(t, r.pg)
	audit := r.startAudit(t)
	w := startWorkload(t, r.pg, 8, 2*time.Millisecond)
	rnd := rand.New(rand.NewPCG(7, 7))
	inflight := 0
	for range *crashes {
		relay := r.start(t)
		relay.WaitReady(t, 30*time.Second)
		time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond) // the random moment
		// Stop it, look, then kill: a committed id above the confirmed LSN is in
		// flight, or not even read.
		relay.Pause(t)
		if r.hasUnconfirmed(t, w) {
			inflight++
		}
		relay.Kill()
	}
	w.Stop()
	last := r.startReady(t)
	r.waitCaughtUp(t, 2*time.Minute)
	if code := last.Terminate(t, 30*time.Second); code != 0 {
		t.Errorf("the last relay ended with %d after a clean stop", code)
	}
	v := r.judgeAll(t, oracle, w, audit)
	ok := v.ok() && v.duplicate > 0 && inflight*100 >= *crashes*80 && audit.OK()
	e2e.Result(t, "crash", ok, "kills", *crashes, "inflight_kills", inflight, "committed", v.committed,
		"missing", v.missing, "uncommitted", v.uncommitted, "overtaken", v.overtaken, "early", v.early, "duplicates", v.duplicate)
}

// hasUnconfirmed tells whether a transaction that a writer saw committed lies
// above the confirmed LSN. The relay does not run meanwhile.
func (r *rig) hasUnconfirmed(t testing.TB, w *workload) bool {
	t.Helper()
	newest := w.Newest()
	confirmed, err := pglogrepl.ParseLSN(r.confirmed(t))
	if err != nil {
		t.Fatal(err)
	}
	return newest >= confirmed
}
