package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_SettingsAndSchema sets what could change the bytes, and finds them
// unchanged; then it changes outbox tables in every way, with the relay running
// and with a backlog: each row is published as the table was when it was written,
// or the relay ends and names the column, and goes on without a loss once the
// configuration follows.
func TestE2E_SettingsAndSchema(t *testing.T) {
	var same, sampled, latin, ascii bool
	var settings int
	var altered, stops, partitioned schemaOutcome
	t.Run("settings", func(t *testing.T) { same, settings, sampled = contrarySettings(t) })
	t.Run("latin1", func(t *testing.T) { latin = latinDatabase(t) })
	t.Run("sql_ascii", func(t *testing.T) { ascii = asciiDatabase(t) })
	t.Run("altered", func(t *testing.T) { altered = alteredTable(t) })
	t.Run("mapped", func(t *testing.T) { stops = mappedColumnChanges(t) })
	t.Run("partitioned", func(t *testing.T) { partitioned = partitionedTable(t) })
	ok := same && sampled && latin && ascii && altered.ok() && stops.ok() && partitioned.ok()
	e2e.Result(t, "settings_and_schema", ok, "settings", settings, "unchanged", same, "latin1_gives_utf8", latin, "sql_ascii_stops", ascii,
		"altered_rows", altered.rows, "altered_wrong", altered.wrong, "stops", stops.stops, "stops_unnamed", stops.unnamed,
		"stops_rows", stops.rows, "stops_wrong", stops.wrong, "partitioned_rows", partitioned.rows, "partitioned_wrong", partitioned.wrong)
}

// schemaOutcome is what one part of the test found.
type schemaOutcome struct {
	rows, wrong    int
	stops, unnamed int // ends of the relay, and those without the column's name
	disturbed      bool
}

func (o schemaOutcome) ok() bool { return o.rows > 0 && o.wrong == 0 && o.unnamed == 0 && !o.disturbed }

// alteredTable changes columns that are not mapped, and types of those that are,
// first while the relay streams, then while it is stopped.
func alteredTable(t *testing.T) schemaOutcome {
	r := newRig(t, rigOptions{partitions: 1})
	sampler := e2e.SampleConfirmed(t, r.pg, r.slot)
	relay := r.startReady(t)
	streaming := newLedger(t, r.pg, "streaming")
	alterEverything(streaming)
	r.waitCaughtUp(t, 30*time.Second)
	if code := relay.Terminate(t, 30*time.Second); code != 0 {
		t.Errorf("the relay ended with %d after tables were altered", code)
	}
	stopped := newLedger(t, r.pg, "stopped")
	alterEverything(stopped)
	relay = r.startReady(t)
	r.waitCaughtUp(t, 30*time.Second)
	records := r.k.Consume(t, r.topic)
	return schemaOutcome{rows: len(records), wrong: streaming.check(records) + stopped.check(records) + wrongSeq(t, records),
		disturbed: !relay.Alive() || !sampler.OK()}
}

func alterEverything(l *ledger) {
	l.put("payload", `'{"b": 1, "a": 2}'`)
	l.exec("ALTER TABLE outbox ADD COLUMN extra int DEFAULT 5")
	l.put("payload", `'{"after": "add"}'`)
	l.exec("ALTER TABLE outbox ADD COLUMN second text NOT NULL DEFAULT 'x', ADD COLUMN third bytea")
	l.put("payload, second, third", `'{"after": "add two"}', 'y', '\x00'`)
	l.exec("ALTER TABLE outbox DROP COLUMN extra")
	l.put("payload", `'{"after": "drop"}'`)
	l.exec("ALTER TABLE outbox RENAME COLUMN second TO other")
	l.put("payload, other", `'{"after": "rename"}', 'z'`)
	l.exec("ALTER TABLE outbox ALTER aggregateid TYPE bigint USING aggregateid::bigint") // writes the table anew
	l.put("payload", `'{"after": "a new type of the key"}'`)
	l.exec("ALTER TABLE outbox ALTER payload TYPE jsonb USING payload::jsonb")
	l.put("payload", `'{"b": 1,   "a": 2.0}'`)
	l.exec("ALTER TABLE outbox ALTER payload TYPE bytea USING convert_to(payload::text, 'UTF8')")
	l.payload = "convert_from(payload, 'UTF8')"
	l.put("payload", `'now\012bytes'`)
	l.exec("ALTER TABLE outbox ALTER payload TYPE text USING convert_from(payload, 'UTF8')")
	l.payload = "payload::text"
	l.put("payload", "NULL")
	l.exec("TRUNCATE outbox")
	l.put("payload", "'after truncate'")
	l.exec("BEGIN")
	l.put("payload", "'before truncate'")
	l.exec("TRUNCATE outbox")
	l.put("payload", "'and after, in one transaction'")
	l.exec("COMMIT", "TRUNCATE outbox")
	alterWithinTransaction(l)
	l.exec("ALTER TABLE outbox DROP COLUMN other, DROP COLUMN third, ALTER aggregateid TYPE text, ALTER payload TYPE text")
	l.put("payload", "'as it was'")
	l.exec("TRUNCATE outbox")
}

// alterWithinTransaction alters the table between the inserts of a transaction.
// Its rows are numbered by their payload.
func alterWithinTransaction(l *ledger) {
	l.exec("BEGIN")
	l.put("payload", "'0'")
	l.exec("ALTER TABLE outbox ADD COLUMN within int")
	l.put("within, payload", "1, '1'")
	l.exec("SAVEPOINT s", "ALTER TABLE outbox DROP COLUMN within", "ALTER TABLE outbox ALTER payload TYPE varchar(40)")
	l.put("payload", "'undone'")
	l.exec("ROLLBACK TO s")
	l.undo(1)
	l.put("payload, within", "'2', 2")
	l.exec("ALTER TABLE outbox ALTER payload TYPE jsonb USING payload::jsonb")
	l.put("payload", "' 3 '")
	l.exec("ALTER TABLE outbox RENAME COLUMN within TO inside")
	l.put("payload, inside", "'4', 4")
	l.exec("ALTER TABLE outbox DROP COLUMN inside")
	l.put("payload", "'5'")
	l.exec("COMMIT")
}

// wrongSeq counts the rows of alterWithinTransaction whose seq header is not
// their number.
func wrongSeq(t testing.TB, records []e2e.Record) int {
	t.Helper()
	wrong := 0
	for _, rec := range records {
		if len(rec.Value) != 1 {
			continue
		}
		if seq, _ := rec.Header("seq"); seq != string(rec.Value) {
			t.Errorf("insert %s of its transaction has seq %q", rec.Value, seq)
			wrong++
		}
	}
	return wrong
}

// mappedColumns is a table whose mapped columns change under the relay.
type mappedColumns struct {
	t *testing.T
	r *rig
	l *ledger
	o schemaOutcome
}

// configure maps id, key and what is given.
func (m *mappedColumns) configure(columns string) {
	m.r.outboxYAML = fmt.Sprintf("outbox:\n  - table: outbox\n    topic: %s\n    columns: {id: id, key: aggregateid, %s}\n", m.r.topic, columns)
}

// ends waits until the relay has ended by itself and looks whether its last words
// name the column, the table and a position.
func (m *mappedColumns) ends(relay *e2e.Relay, column string) {
	m.t.Helper()
	code := relay.WaitExit(m.t, 30*time.Second)
	m.o.stops++
	last := lastLine(relay.Log())
	if code != 1 || !strings.Contains(last, `"`+column+`"`) || !strings.Contains(last, "public.outbox") || !lsnInText.MatchString(last) {
		m.t.Errorf("the relay ended with %d, and its last words do not name column %q of public.outbox and a position:\n%s", code, column, relay.Log())
		m.o.unnamed++
	}
}

// stop ends a relay that runs well, with all published.
func (m *mappedColumns) stop(relay *e2e.Relay) {
	m.t.Helper()
	m.r.waitCaughtUp(m.t, 30*time.Second)
	if code := relay.Terminate(m.t, 30*time.Second); code != 0 {
		m.t.Errorf("the relay ended with %d", code)
		m.o.disturbed = true
	}
}

// mappedColumnChanges renames, drops and retypes mapped columns: the relay ends,
// names the column, and goes on when the configuration follows.
func mappedColumnChanges(t *testing.T) schemaOutcome {
	r := newRig(t, rigOptions{partitions: 1, noTable: true})
	r.pg.Exec(t, `CREATE TABLE outbox (id text, aggregateid text, kind text, payload text, part int)`)
	m := &mappedColumns{t: t, r: r}
	m.configure("payload: payload, type: kind, partition: part")
	r.setup(t)
	sampler := e2e.SampleConfirmed(t, r.pg, r.slot)
	m.l = newLedger(t, r.pg, "mapped")
	m.whileStreaming()
	m.withBacklog()
	m.withinTransaction()
	relay := r.startReady(t)
	m.l.put("note", "'last'")
	r.waitCaughtUp(t, 30*time.Second)
	records := r.k.Consume(t, r.topic)
	m.o.rows, m.o.wrong = len(records), m.l.check(records)
	m.o.disturbed = m.o.disturbed || !relay.Alive() || !sampler.OK()
	return m.o
}

func (m *mappedColumns) whileStreaming() {
	r, l := m.r, m.l
	relay := r.startReady(m.t)
	l.put("payload, kind, part", "'first', 'a', 0")
	l.exec("ALTER TABLE outbox RENAME COLUMN payload TO body")
	l.payload = "body"
	l.put("body, kind, part", "'renamed', 'a', 0")
	m.ends(relay, "payload")
	l.put("body, kind, part", "'while ended', 'a', 0")
	m.ends(r.start(m.t), "payload") // again, until somebody acts

	m.configure("payload: body, type: kind, partition: part")
	relay = r.startReady(m.t)
	l.exec("ALTER TABLE outbox DROP COLUMN kind")
	l.put("body, part", "'dropped', 0")
	m.ends(relay, "kind")

	m.configure("payload: body, partition: part")
	relay = r.startReady(m.t)
	l.exec("ALTER TABLE outbox ALTER part TYPE text")
	l.put("body, part", "'retyped', '0'")
	m.ends(relay, "part")

	m.configure("payload: body")
	m.stop(r.startReady(m.t))
}

func (m *mappedColumns) withBacklog() {
	r, l := m.r, m.l
	l.put("body", "'backlog of the old shape'")
	l.exec("ALTER TABLE outbox RENAME COLUMN body TO content")
	l.payload = "content"
	l.put("content", "'of the new shape'")
	m.configure("payload: content") // too early: the old rows are not published
	m.ends(r.start(m.t), "content")
	m.configure("payload: body") // publishes those, and ends at the first new one
	m.ends(r.start(m.t), "body")
	m.configure("payload: content")
	m.stop(r.startReady(m.t))
}

// withinTransaction renames a mapped column between the inserts of a transaction:
// no configuration publishes it whole, so that it takes adopt to pass it.
func (m *mappedColumns) withinTransaction() {
	r, l := m.r, m.l
	l.exec("BEGIN")
	l.put("content", "'before the rename'")
	l.exec("ALTER TABLE outbox RENAME COLUMN content TO note")
	l.payload = "note"
	l.put("note", "'after the rename'")
	l.undo(1) // what adopt skips
	l.exec("COMMIT")
	end := r.pg.Query(m.t, "SELECT pg_current_wal_insert_lsn()")
	m.ends(r.start(m.t), "content") // has published the first row of the two
	m.configure("payload: note")
	m.ends(r.start(m.t), "note")
	if code, stdout, stderr := r.command(m.t, "adopt", "--lsn", end, "--yes"); code != 0 || !strings.Contains(stdout+stderr, "gap") {
		m.t.Errorf("adopt ended with %d and does not tell of a gap:\n%s%s", code, stdout, stderr)
		m.o.disturbed = true
	}
}

// partitionedTable publishes a partitioned outbox under the root's name.
// Partitions come and go while it streams and while it is stopped.
func partitionedTable(t *testing.T) schemaOutcome {
	r := newRig(t, rigOptions{partitions: 1, noTable: true})
	r.pg.Exec(t, `CREATE TABLE outbox (id text, aggregateid text, payload text, region int NOT NULL) PARTITION BY LIST (region)`,
		`CREATE TABLE region_1 PARTITION OF outbox FOR VALUES IN (1)`,
		`CREATE TABLE ready_made (region int NOT NULL, junk int, payload text, aggregateid text, id text)`, // another order of columns
		`ALTER TABLE ready_made DROP COLUMN junk`,
		`INSERT INTO ready_made VALUES (2, 'was there before', 'k', 'not-streamed')`)
	r.outboxYAML = fmt.Sprintf("outbox:\n  - table: outbox\n    topic: %s\n    columns: {key: aggregateid}\n", r.topic)
	r.setup(t)
	sampler := e2e.SampleConfirmed(t, r.pg, r.slot)
	relay := r.startReady(t)
	stopWriter := writeRegion(t, r.pg)

	l := newLedger(t, r.pg, "parts")
	row := "payload, region"
	l.put(row, "'before', 1")
	l.exec("ALTER TABLE outbox ATTACH PARTITION ready_made FOR VALUES IN (2)")
	l.put(row, "'attached', 2") // at once
	l.into("ready_made", row, "'straight into the partition', 2")
	l.exec("CREATE TABLE region_3 PARTITION OF outbox FOR VALUES IN (3)")
	l.put(row, "'created', 3")
	l.exec("BEGIN", "CREATE TABLE region_4 PARTITION OF outbox FOR VALUES IN (4)")
	l.put(row, "'created in this transaction', 4")
	l.exec("COMMIT")
	l.exec("CREATE TABLE region_5 PARTITION OF outbox FOR VALUES IN (5) PARTITION BY LIST (aggregateid)",
		"CREATE TABLE region_5_any PARTITION OF region_5 DEFAULT")
	l.put(row, "'two levels', 5")
	time.Sleep(2500 * time.Millisecond) // the watcher, which looks every second, sees the new partitions
	l.put(row, "'seen', 2")
	l.exec("DROP TABLE region_3")
	l.put(row, "'after a drop', 4")
	time.Sleep(1500 * time.Millisecond) // and that one has gone
	l.exec("TRUNCATE outbox")
	l.put(row, "'after truncate', 2")
	written := stopWriter()
	r.waitCaughtUp(t, 30*time.Second)
	if code := relay.Terminate(t, 30*time.Second); code != 0 {
		t.Errorf("the relay ended with %d while partitions came and went", code)
	}
	l.exec("CREATE TABLE region_6 PARTITION OF outbox FOR VALUES IN (6)")
	l.put(row, "'while stopped', 6")
	l.exec("DROP TABLE region_4")
	relay = r.startReady(t)
	l.put(row, "'started again', 6")
	r.waitCaughtUp(t, 30*time.Second)

	records := r.k.Consume(t, r.topic)
	wrong := l.check(records)
	if got := len(records) - len(l.want); got != written {
		t.Errorf("%d records of the %d rows that were written meanwhile", got, written)
		wrong++
	}
	if slices.Contains(ids(records), "not-streamed") {
		t.Error("a row that was in a table before it was attached was streamed")
		wrong++
	}
	return schemaOutcome{rows: len(records), wrong: wrong, disturbed: !relay.Alive() || !sampler.OK()}
}

// writeRegion inserts into the first partition until the function that it
// returns is called, which tells how many rows it wrote.
func writeRegion(t testing.TB, pg *e2e.PG) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn := pg.Conn(t)
	n := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			_, err := conn.Exec(context.Background(), `INSERT INTO outbox (id, aggregateid, payload, region) VALUES ($1, 'w', 'x', 1)`, fmt.Sprintf("meanwhile-%d", n))
			if err != nil {
				t.Errorf("insert while partitions come and go: %v", err)
				return
			}
			n++
			sleep(ctx, 5*time.Millisecond)
		}
	})
	stop = func() int {
		cancel()
		wg.Wait()
		return n
	}
	t.Cleanup(func() { stop() })
	return stop
}
