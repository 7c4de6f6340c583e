package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_ReplayTable publishes rows again that are still in the table, chosen by
// time, key, aggregate type and id, in the order of their timestamp; never before
// their first copies.
func TestE2E_ReplayTable(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true})
	r.outboxYAML = "outbox:\n  - table: public.outbox\n    topic: " + r.topic +
		"\n    columns: {id: id, key: aggregateid, type: type, payload: payload, timestamp: created_at}\n"
	r.pg.Exec(t, timedOutbox)
	r.setup(t)
	relay := r.startReady(t)
	// In the table, and in the WAL, the other way round than by their time.
	r.pg.Exec(t, `INSERT INTO outbox (id, aggregatetype, aggregateid, payload, created_at)
		SELECT 'day ' || d, CASE WHEN d % 2 = 0 THEN 'even' ELSE 'odd' END, 'k' || d % 3, 'of ' || d, now() - d * interval '1 day' FROM generate_series(0, 9) d`)
	r.waitCaughtUp(t, time.Minute)
	config := configOf(t, relay)
	ok, cases := true, 0
	run := func(args ...string) (int, string, string) {
		return e2e.RunRelay(t, time.Minute, e2e.RelayOptions{Config: config, Command: "replay", Args: append([]string{"--source", "table"}, args...)})
	}
	again := r.k.Topic(t, "again", 1)
	read := int64(0)
	// published are the ids that came to the topic since it was asked last.
	published := func() (ids []string) {
		for i, rec := range r.k.Consume(t, again) {
			if int64(i) < read {
				continue
			}
			id, _ := rec.Header("id")
			from, marked := rec.Header(replayedFrom)
			table, backfilled := rec.Header("backfilled")
			if !marked || !backfilled || from != table || string(rec.Value) != "of "+strings.TrimPrefix(id, "day ") {
				t.Logf("record %q: %s=%s, backfilled=%s, %q", id, replayedFrom, from, table, rec.Value)
				ok = false
			}
			ids = append(ids, strings.TrimPrefix(id, "day "))
		}
		read += int64(len(ids))
		return ids
	}
	check := func(name string, code int, said string, want string, args ...string) {
		t.Helper()
		got, stdout, stderr := run(args...)
		if ids := strings.Join(published(), " "); got != code || !strings.Contains(stdout+stderr, said) || ids != want {
			t.Logf("%s: exit code %d, published %q, want %q\n%s%s", name, got, ids, want, stdout, stderr)
			ok = false
		}
		cases++
	}
	ago := func(hours int) string {
		return time.Now().Add(-time.Duration(hours) * time.Hour).UTC().Format(time.RFC3339)
	}
	check("dry run", 0, "4 rows would be published again, from the table; 0 left out", "", "--dry-run", "--from", ago(132), "--to", ago(36), "--topic", again)
	check("range", 0, "4 rows published again", "5 4 3 2", "--from", ago(132), "--to", ago(36), "--topic", again)
	check("order", 0, "not in that in which they were committed", "9 8 7 6 5 4 3 2 1 0", "--topic", again, "--rate", "200")
	check("key", 0, "6 left out", "9 6 3 0", "--topic", again, "--key", "k0")
	check("aggregate", 0, "2 left out", "4 2", "--topic", again, "--aggregate-type", "even", "--from", ago(132), "--to", ago(36))
	check("id", 0, "1 rows published again", "7", "--topic", again, "--id", "day 7", "--id", "it's none")
	check("position", 2, "takes times", "", "--topic", again, "--from", "0/10")
	check("topic", 1, "correct --topic; table public.outbox has the columns id, aggregatetype", "", "--topic", "again.{nope}")
	check("future", 2, "is in the future", "", "--topic", again, "--to", ago(-48))
	waits := r.replayTableWaits(t, relay, run)
	e2e.Result(t, "replay_table", ok && waits, "table", ok, "cases", cases, "waits", waits)
}

// replayTableWaits replays while a row is on its way: its first copy is the
// relay's.
func (r *rig) replayTableWaits(t *testing.T, relay *e2e.Relay, run func(...string) (int, string, string)) bool {
	t.Helper()
	relay.Pause(t)
	r.pg.Exec(t, `INSERT INTO outbox (id, aggregateid, payload) VALUES ('on its way', 'k', 'x')`)
	resumed := time.AfterFunc(3*time.Second, func() { relay.Resume(t) })
	defer resumed.Stop()
	code, stdout, stderr := run("--id", "on its way")
	var copies []string
	for _, rec := range r.k.Consume(t, r.topic) {
		if id, _ := rec.Header("id"); id == "on its way" {
			_, marked := rec.Header(replayedFrom)
			copies = append(copies, fmt.Sprint(marked))
		}
	}
	ok := code == 0 && strings.Contains(stderr, "waiting until the relay") && slices.Equal(copies, []string{"false", "true"})
	if !ok {
		t.Logf("a replay of a row that is on its way: exit code %d, copies marked %v\n%s%s", code, copies, stdout, stderr)
	}
	return ok
}
