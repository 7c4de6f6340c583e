package e2e_test

import (
	"flag"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

var replayEvents = flag.Int("replay_events", 1_000_000, "events that TestE2E_ReplayRate drains, and replays")

// minReplayShare is the rate of a replay, measured against that of the relay.
const minReplayShare = 0.5

// TestE2E_ReplayRate lets the relay drain a backlog, and replays it: a replay is at
// least half as fast.
func TestE2E_ReplayRate(t *testing.T) {
	r := newRig(t, rigOptions{noSetup: true})
	r.historyYAML = "history:\n  max_bytes: 8GiB\n"
	r.setup(t)
	from := r.position(t)
	conn := r.pg.Conn(t)
	const perTx = 1000
	for i := range *replayEvents / perTx {
		_, err := conn.Exec(t.Context(), `INSERT INTO outbox (id, aggregateid, payload)
			SELECT $1::int || '-' || n, 'k' || n, repeat('x', 300) FROM generate_series(1, $2) n`, i, perTx)
		if err != nil {
			t.Fatal(err)
		}
	}
	to := r.position(t)
	began := time.Now()
	r.start(t)
	r.waitCaughtUp(t, 5*time.Minute)
	drain := float64(*replayEvents) / time.Since(began).Seconds()
	began = time.Now()
	published := r.replay(t, "--from", from.String(), "--to", to.String())
	rate := float64(published) / time.Since(began).Seconds()
	ok := published == *replayEvents && (rate >= minReplayShare*drain || !*judgeTimes) && total(r.k.EndOffsets(t, r.topic)) == 2*int64(*replayEvents)
	e2e.Result(t, "replay_rate", ok, "events", published, "drain_per_s", drain, "replay_per_s", rate, "ratio", rate/drain, "judged", *judgeTimes)
}
