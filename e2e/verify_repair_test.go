package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// missingRows are, of each table, more than one batch of a repair.
const missingRows = 2500

// verifyRepair publishes what is missing again, of two tables, one with an id of
// bytea: the same record but for its position, once, and nothing else.
func verifyRepair(t *testing.T) bool {
	t.Helper()
	r := newRig(t, rigOptions{noTable: true})
	blobs := r.k.Topic(t, "blobs", 2)
	r.outboxYAML = "outbox:\n  - table: public.outbox\n    topic: " + r.topic +
		"\n    columns: {id: id, key: aggregateid, type: type, payload: payload, timestamp: created_at}\n" +
		"  - table: public.blobs\n    topic: " + blobs + "\n    columns: {id: id, key: k, type: '', payload: body}\n"
	r.pg.Exec(t, timedOutbox, `CREATE TABLE blobs (id bytea PRIMARY KEY, k text, body bytea)`,
		fmt.Sprintf(`INSERT INTO outbox (id, aggregateid, payload) SELECT 'old ''' || n, 'k' || n, 'of ' || n FROM generate_series(1, %d) n`, missingRows),
		fmt.Sprintf(`INSERT INTO blobs SELECT decode(lpad(to_hex(n), 8, '0'), 'hex') || '\xff'::bytea, 'k', '\x0102ff' FROM generate_series(1, %d) n`, missingRows))
	r.setup(t)
	relay := r.startReady(t)
	r.pg.Exec(t, `INSERT INTO outbox (id, aggregateid, payload) SELECT 'new ' || n, 'k' || n, 'of ' || n FROM generate_series(1, 500) n`)
	r.waitCaughtUp(t, time.Minute)
	config := configOf(t, relay)
	count := func() int64 { return total(r.k.EndOffsets(t, r.topic)) + total(r.k.EndOffsets(t, blobs)) }
	ok := true
	hold := func(is bool, format string, args ...any) {
		t.Helper()
		if !is {
			ok = false
			t.Logf(format, args...)
		}
	}
	run := func(answer func() string, args ...string) (int, string, string) {
		return e2e.RunRelay(t, time.Minute, e2e.RelayOptions{Config: config, Command: "verify", Args: args, Answer: answer})
	}
	code, stdout, stderr := run(nil, "--repair", "--dry-run")
	hold(code == 1 && strings.Contains(stdout, "5000 records would be published again") && count() == 500, "dry run: %d\n%s%s", code, stdout, stderr)
	code, stdout, stderr = run(nil, "--repair")
	hold(code == 1 && strings.Contains(stdout, "nothing was published") && count() == 500, "nobody agreed: %d\n%s%s", code, stdout, stderr)
	// A row is deleted while a person thinks.
	code, stdout, stderr = run(func() string {
		r.pg.Exec(t, `DELETE FROM outbox WHERE id = 'old ''7'`)
		return "yes"
	}, "--repair")
	hold(code == 1 && strings.Contains(stdout, "4999 records, all of them acknowledged") && strings.Contains(stdout, "1 rows are in the table no more") &&
		strings.Contains(stdout, "gone  id old '7"), "repaired: %d\n%s%s", code, stdout, stderr)
	hold(count() == 500+2*missingRows-1, "%d records", count())
	seen := map[string]bool{}
	for _, rec := range r.k.Consume(t, r.topic, blobs) {
		id, _ := rec.Header("id")
		seen[id] = true
		_, from := rec.Header("backfilled")
		lsn, _ := rec.Header("lsn")
		n, old := strings.CutPrefix(id, "old '")
		switch {
		case rec.Topic == blobs:
			hold(from && string(rec.Value) == "\x01\x02\xff" && string(rec.Key) == "k" && len(id) == 5, "record %q: %q, %t", id, rec.Value, from)
		case old:
			hold(from && string(rec.Value) == "of "+n && string(rec.Key) == "k"+n && len(lsn) == 16, "record %q: %q, %t", id, rec.Value, from)
		default:
			hold(!from, "record %q was published again", id)
		}
	}
	hold(len(seen) == 500+2*missingRows-1, "%d ids", len(seen))
	v := r.verify(t, config, "--repair", "--yes")
	hold(v.Code == 0 && v.OK && v.Counts.Missing == 0 && v.Counts.Duplicate == 0 && v.Counts.Extra == 0, "after the repair: %d, %v\n%s", v.Code, v.findings, v.Stdout)
	return ok
}

// verifyHistory compares events of which no row is left, and logical messages: what
// an adopt skipped is missing, and comes out of the WAL.
func verifyHistory(t *testing.T) bool {
	t.Helper()
	r := newRig(t, rigOptions{noSetup: true})
	r.historyYAML = "history:\n  max_bytes: 1GiB\nmessages:\n  prefix: outbox\n  topic: " + r.topic + "\n"
	early := r.position(t)
	r.setup(t)
	write := func(prefix string, n int) {
		r.pg.Exec(t, fmt.Sprintf(`DO $$ BEGIN FOR n IN 1..%d LOOP
				INSERT INTO outbox (id, aggregateid) VALUES ('%s-row-' || n, 'k'); DELETE FROM outbox;
				PERFORM pg_logical_emit_message(true, 'outbox', json_build_object('id', '%s-message-' || n, 'aggregateid', 7, 'payload', n)::text);
				COMMIT;
			END LOOP; END $$`, n, prefix, prefix))
	}
	relay := r.startReady(t)
	write("first", 50)
	r.waitCaughtUp(t, time.Minute)
	middle := r.position(t)
	if code := relay.Terminate(t, 30*time.Second); code != 0 {
		t.Fatalf("the relay ended with %d", code)
	}
	r.pg.Exec(t, `SELECT pg_logical_emit_message(true, 'outbox', 'no body')`)
	behind := r.position(t)
	write("skipped", 20)
	code, stdout, stderr := r.command(t, "adopt", "--lsn", r.pg.Query(t, "SELECT pg_current_wal_lsn()"), "--yes")
	if code != 0 {
		t.Fatalf("adopt ended with %d: %s%s", code, stdout, stderr)
	}
	relay = r.startReady(t)
	write("last", 30)
	r.waitCaughtUp(t, time.Minute)
	alien := func(id string, lsn string) {
		rec := &kgo.Record{Topic: r.topic, Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}
		if lsn != "" {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: "lsn", Value: []byte(lsn)})
		}
		if err := r.k.Client(t).ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	inside := fmt.Sprintf("%016X", uint64(middle))
	alien("alien", inside)
	alien("alien elsewhere", "FFFFFFFF00000000")
	alien("alien nowhere", "")
	alien("first-row-7", inside)
	config := configOf(t, relay)
	ok := true
	check := func(name string, is bool, v *verified) {
		t.Helper()
		if !is {
			ok = false
			t.Logf("%s: exit code %d, %v\n%s\n%s", name, v.Code, v.findings, v.Stdout, v.Stderr)
		}
	}
	var skipped []string
	for n := range 20 {
		skipped = append(skipped, fmt.Sprintf("skipped-row-%d", n+1), fmt.Sprintf("skipped-message-%d", n+1))
	}
	v := r.verify(t, config, "--source", "history")
	check("whole", v.Code == 1 && v.Counts.Expected == 200 && v.Counts.Seen == 160 && v.only("missing", skipped...) && v.only("extra", "alien") &&
		v.Counts.Unroutable == 1 && v.only("duplicate", "first-row-7") && strings.Contains(strings.Join(v.Notes, "\n"), "a gap is open"), v)
	v = r.verify(t, config, "--source", "history", "--to", middle.String())
	check("to", strings.Contains(v.Stdout, `"to": "`+middle.String()+`"`) && v.Code == 0 && v.Counts.Expected == 100 && v.Counts.Seen == 100 && v.Counts.Extra == 0, v)
	v = r.verify(t, config, "--source", "history", "--from", early.String())
	check("early", v.Code == 1 && strings.Contains(v.Stderr, "not retained as a whole") && strings.Contains(v.Stderr, "can be replayed"), v)
	v = r.verify(t, config, "--source", "history", "--repair", "--dry-run")
	check("dry run", v.Code == 1 && v.Counts.Missing == 40, v)
	v = r.verify(t, config, "--source", "history", "--from", behind.String(), "--repair", "--yes")
	check("repair", v.Code == 0 && v.Counts.Expected == 100 && v.Counts.Missing == 40 && strings.Contains(v.Stdout, `"published": 40`), v)
	v = r.verify(t, config, "--source", "history")
	check("after", v.Code == 1 && v.Counts.Seen == 200 && v.Counts.Missing == 0 && v.Counts.Unroutable == 1 && v.Counts.Duplicate == 1, v)
	return ok
}
