package e2e_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_Renamed gives the outbox another name for a while, in which no relay runs:
// what was inserted under it is published, by the relay and by a replay.
func TestE2E_Renamed(t *testing.T) {
	r := newRig(t, rigOptions{noSetup: true})
	r.historyYAML = "history:\n  max_bytes: 1GiB\n"
	r.setup(t)
	from := r.confirmed(t)
	relay := r.startReady(t)
	r.pg.Exec(t, "INSERT INTO outbox (id, aggregateid) VALUES ('before', 'k')")
	r.waitCaughtUp(t, 30*time.Second)
	if code := relay.Terminate(t, 30*time.Second); code != 0 {
		t.Fatalf("the relay ended with %d", code)
	}
	r.pg.Exec(t, "ALTER TABLE outbox RENAME TO events", "INSERT INTO events (id, aggregateid) VALUES ('renamed', 'k')",
		"ALTER TABLE events RENAME TO outbox", "INSERT INTO outbox (id, aggregateid) VALUES ('after', 'k')")
	relay = r.startReady(t)
	defer relay.Kill()
	r.waitCaughtUp(t, 30*time.Second)
	want := []string{"before", "renamed", "after"}
	streamed := ids(r.k.Consume(t, r.topic))
	code, stdout, stderr := r.command(t, "replay", "--from", from)
	again := ids(r.k.Consume(t, r.topic))[len(streamed):]
	ok := slices.Equal(streamed, want) && code == 0 && slices.Equal(again, want)
	if !ok {
		t.Logf("streamed %v, replayed %v:\n%s%s", streamed, again, stdout, stderr)
	}
	e2e.Result(t, "renamed", ok, "streamed", len(streamed), "replayed", len(again), "expected", len(want))
}
