package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_CleanStop stops the relay ten times under load, and in the middle of a
// transaction of 100,000 rows: a restart repeats nothing and misses nothing.
func TestE2E_CleanStop(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.relayYAML = "  shutdown_timeout: 120s\n"
	oracle := e2e.NewOracle(t, r.pg)
	audit := r.startAudit(t)
	w := startWorkload(t, r.pg, 8, 2*time.Millisecond)
	const stops = 10
	bad, within := 0, 0
	for i := range stops {
		relay := r.startReady(t)
		if i%2 == 1 {
			// One transaction of 100,000 rows; the stop comes while it is published.
			done := make(chan struct{})
			conn := r.pg.Conn(t)
			go func() {
				defer close(done)
				_, err := conn.Exec(context.Background(), `INSERT INTO outbox (id, aggregateid, payload)
					SELECT 'big'||$1::int||'-'||n, 'k'||(n % 50), repeat('x', 200) FROM generate_series(1, 100000) n`, i)
				if err != nil {
					t.Error(err)
				}
			}()
			<-done
			start := total(r.k.EndOffsets(t, r.topic))
			e2e.Eventually(t, 60*time.Second, "the large transaction to begin to arrive", func() bool {
				return total(r.k.EndOffsets(t, r.topic)) > start+2000
			})
		} else {
			time.Sleep(300 * time.Millisecond) // under load
		}
		before := mustLSN(t, r.confirmed(t))
		if code := relay.Terminate(t, 130*time.Second); code != 0 {
			bad++
		}
		if mustLSN(t, r.confirmed(t)) > before {
			within++
		}
	}
	w.Stop()
	last := r.startReady(t)
	r.waitCaughtUp(t, 4*time.Minute)
	if code := last.Terminate(t, 30*time.Second); code != 0 {
		bad++
	}
	v := r.judgeAll(t, oracle, w, audit)
	ok := v.ok() && v.duplicate == 0 && bad == 0 && audit.OK()
	e2e.Result(t, "clean_stop", ok, "stops", stops, "unclean", bad, "confirmed_at_stop", within, "committed", v.committed,
		"missing", v.missing, "uncommitted", v.uncommitted, "overtaken", v.overtaken, "early", v.early, "duplicates", v.duplicate)
}

func total(ends map[int32]int64) int64 {
	var n int64
	for _, e := range ends {
		n += e
	}
	return n
}
