package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// What an id has in it that must never be published.
const (
	undoneID  = "-undone"  // rolled back, with its transaction or its savepoint
	nontxID   = "-nontx"   // of a message that is not transactional
	foreignID = "-foreign" // of a message with another prefix
)

// messagesTest is the rig with logical messages beside the table.
type messagesTest struct {
	*rig
	t      *testing.T
	oracle *e2e.Oracle
	log    string // what the relays said
}

// TestE2E_Messages emits logical messages among rows: they are published in
// their places, as they stand, and nothing that was rolled back, is not
// transactional or has another prefix is; a kill loses nothing; a malformed one
// halts reading and is named.
func TestE2E_Messages(t *testing.T) {
	m := &messagesTest{t: t, rig: newRig(t, rigOptions{noSetup: true})}
	m.outboxYAML = "outbox:\n  - table: public.outbox\n    topic: " + m.topic + "\nmessages:\n  prefix: outbox\n  topic: " + m.topic + "\n"
	m.relayYAML = "  max_row_bytes: 1MiB\n"
	said := m.setup(t)
	_, checked, _ := m.command(t, "check")
	warned := strings.Contains(said, "Any role of the database may emit one") && strings.Contains(checked, "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message")
	if !warned {
		t.Errorf("setup and check do not say who may emit messages:\n%s%s", said, checked)
	}
	m.oracle = e2e.NewOracle(t, m.pg)
	audit := m.startAudit(t)

	scripted := m.scripted()
	kills, w := m.underKills()
	inserts := m.oracle.Events(t, "public.outbox", "id", "outbox")
	records := m.k.Consume(t, m.topic)
	v := judge(inserts, records)
	v.early = audit.judge(t, records, w.ended)
	w.crossCheck(t, inserts)
	byHeaders := sameAsOracle(t, inserts, records)
	for _, d := range v.details {
		t.Log(d)
	}
	halts := m.malformed()
	alone := m.withoutATable()
	leak := strings.Contains(m.log, secretPayload)
	if leak {
		t.Error("a payload is shown in the log")
	}
	order := "ok"
	if v.overtaken > 0 || !byHeaders || !scripted {
		order = "wrong"
	}
	rolledBack, nontx, foreign := countIDs(records, undoneID), countIDs(records, nontxID), countIDs(records, foreignID)
	messages := 0
	for _, in := range inserts {
		if strings.Contains(in.Value, "-m") {
			messages++
		}
	}
	ok := v.ok() && v.duplicate > 0 && order == "ok" && rolledBack+nontx+foreign == 0 && halts && alone && warned && !leak && audit.OK() && messages > 100
	e2e.Result(t, "messages", ok, "records", v.records-v.duplicate, "expected", v.committed, "messages", messages, "order", order,
		"missing", v.missing, "rolled_back", rolledBack, "nontransactional", nontx, "foreign", foreign, "early", v.early,
		"kills", kills, "duplicates", v.duplicate, "malformed_halts", halts, "without_table", alone)
}

func countIDs(records []e2e.Record, part string) int {
	n := 0
	for _, rec := range records {
		if id, _ := rec.Header("id"); strings.Contains(id, part) {
			n++
		}
	}
	return n
}

// writer writes the rows and messages of one session.
type writer struct {
	t    testing.TB
	conn *pgx.Conn
	open []string
	want []string // id, seq and value of what was committed, in order
}

func (w *writer) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.conn.Exec(context.Background(), query, args...); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
}

func (w *writer) expect(id, value string) {
	w.open = append(w.open, fmt.Sprintf("%s %d %s", id, len(w.open), value))
}

func (w *writer) row(id string) {
	w.t.Helper()
	w.exec("INSERT INTO outbox (id, aggregateid, payload) VALUES ($1, 'k', '{\"row\": true}')", id)
	w.expect(id, `{"row": true}`)
}

// copyIn writes rows by one WAL record.
func (w *writer) copyIn(ids ...string) {
	w.t.Helper()
	var rows [][]any
	for _, id := range ids {
		rows = append(rows, []any{id, "k", `{"row": true}`})
		w.expect(id, `{"row": true}`)
	}
	if _, err := w.conn.CopyFrom(context.Background(), pgx.Identifier{"outbox"}, []string{"id", "aggregateid", "payload"}, pgx.CopyFromRows(rows)); err != nil {
		w.t.Fatal(err)
	}
}

// message emits one whose payload stands in its body as json, and is published as
// value.
func (w *writer) message(id, json, value string) {
	w.t.Helper()
	w.emit(true, "outbox", fmt.Sprintf(`{"id": "%s", "aggregateid": "k", "payload": %s , "type": "t"}`, id, json))
	w.expect(id, value)
}

func (w *writer) emit(transactional bool, prefix, body string) {
	w.t.Helper()
	w.exec("SELECT pg_logical_emit_message($1, $2, $3::text)", transactional, prefix, body)
}

// never emits a message that must not be published.
func (w *writer) never(transactional bool, prefix, id string) {
	w.t.Helper()
	w.emit(transactional, prefix, fmt.Sprintf(`{"id": "%s", "aggregateid": "k", "payload": "%s"}`, id, secretPayload))
}

func (w *writer) commit() {
	w.t.Helper()
	w.exec("COMMIT")
	w.want = append(w.want, w.open...)
	w.open = nil
}

// scripted tells whether transactions that were written by hand are published as
// they were written.
func (m *messagesTest) scripted() bool {
	relay := m.startReady(m.t)
	a := &writer{t: m.t, conn: m.pg.Conn(m.t)}
	a.exec("BEGIN") // rows and messages in turn
	a.row("s-r1")
	a.message("s-m1", `{"b":  1, "a": [ "\u00e9" ]}`, `{"b":  1, "a": [ "\u00e9" ]}`)
	a.never(true, "other", "s"+foreignID)
	a.row("s-r2")
	a.message("s-m2", `"a \"text\" \ud83d\ude00"`, `a "text" 😀`)
	a.message("s-m3", `null`, "")
	a.commit()

	a.exec("BEGIN") // a savepoint
	a.message("s-m4", `[1,2]`, `[1,2]`)
	a.exec("SAVEPOINT s")
	a.never(true, "outbox", "s-1"+undoneID)
	a.exec("INSERT INTO outbox (id) VALUES ('s-2" + undoneID + "')")
	a.exec("ROLLBACK TO s")
	a.exec("SAVEPOINT s2")
	a.message("s-m5", `1.50`, `1.50`)
	a.exec("RELEASE s2")
	a.row("s-r3") // in the WAL right behind the message, and of no savepoint
	a.exec("SAVEPOINT s3")
	a.message("s-m11", `{}`, `{}`)
	a.exec("RELEASE s3")
	a.copyIn("s-r6", "s-r7", "s-r8")
	a.exec("SAVEPOINT s4")
	a.row("s-r9")
	a.exec("RELEASE s4")
	a.message("s-m12", `{}`, `{}`)
	a.commit()

	a.exec("BEGIN") // all of it, and what stays in the WAL nevertheless
	a.never(true, "outbox", "s-3"+undoneID)
	a.never(false, "outbox", "s-1"+nontxID)
	a.exec("ROLLBACK")
	a.never(false, "outbox", "s-2"+nontxID)
	a.exec("BEGIN")
	a.never(false, "outbox", "s-3"+nontxID)
	a.message("s-m6", `true`, `true`) // nothing but messages
	a.commit()

	before := m.pg.Query(m.t, "SELECT pg_current_wal_insert_lsn()")
	a.exec("BEGIN") // other prefixes only, malformed and larger than any row may be
	a.emit(true, "other", "not JSON")
	a.emit(true, "outbox2", "{}")
	a.exec("SELECT pg_logical_emit_message(true, 'other', repeat('x', 2000000))")
	a.exec("SELECT pg_logical_emit_message(false, 'other', repeat('x', 2000000))")
	a.commit()
	m.waitCaughtUp(m.t, 30*time.Second) // past before: an empty transaction
	if mustLSN(m.t, m.confirmed(m.t)) <= mustLSN(m.t, before) {
		m.t.Error("a transaction with messages of other prefixes is not passed")
	}

	b := &writer{t: m.t, conn: m.pg.Conn(m.t)} // two that interleave: the later one commits first
	a.exec("BEGIN")
	b.exec("BEGIN")
	a.message("s-m7", `"a"`, "a")
	b.message("s-m8", `"b"`, "b")
	a.row("s-r4")
	b.row("s-r5")
	b.message("s-m9", `"b"`, "b")
	b.commit()
	a.message("s-m10", `"a"`, "a")
	first := len(a.want)
	a.commit()
	want := append(append(a.want[:first:first], b.want...), a.want[first:]...)

	m.waitCaughtUp(m.t, 30*time.Second)
	metrics := relay.Metrics(m.t)
	counted := strings.Contains(metrics, "\ncdc_relay_ignored_messages_total 3\n") && strings.Contains(metrics, "\ncdc_relay_decoded_messages_total 12\n")
	warned := strings.Count(relay.Log(), "not transactional") == 1
	if !counted || !warned {
		m.t.Errorf("messages that are not transactional: counted %v, warned of once %v", counted, warned)
	}
	code := relay.Terminate(m.t, 30*time.Second)
	m.log += relay.Log()
	var got []string
	for _, rec := range m.k.Consume(m.t, m.topic) {
		id, _ := rec.Header("id")
		seq, _ := rec.Header("seq")
		got = append(got, id+" "+seq+" "+string(rec.Value))
	}
	same := strings.Join(got, "\n") == strings.Join(want, "\n")
	if !same {
		m.t.Errorf("published:\n%s\nwritten:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return same && counted && warned && code == 0
}

// malformed tells whether a body that cannot be read halts reading, with its
// place, at each start until it is given up.
func (m *messagesTest) malformed() bool {
	w := &writer{t: m.t, conn: m.pg.Conn(m.t)}
	w.row("bad-r1")
	m.startReady(m.t).Terminate(m.t, 30*time.Second)
	low := m.pg.Query(m.t, "SELECT pg_current_wal_insert_lsn()")
	w.exec("BEGIN")
	w.row("bad-r2")
	w.emit(true, "outbox", `{"id": "bad-m1", "aggregateid": "k", "payload": "`+secretPayload+`", "payload": 1}`)
	w.commit()
	high := m.pg.Query(m.t, "SELECT pg_current_wal_insert_lsn()")
	w.row("bad-r3")
	ok := true
	hold := func(holds bool, format string, args ...any) {
		m.t.Helper()
		if !holds {
			ok = false
			m.t.Errorf(format, args...)
		}
	}
	for range 2 {
		relay := m.start(m.t)
		relay.WaitNotReady(m.t, 20*time.Second, `has \"payload\" twice`)
		_, body := relay.Ready()
		hold(strings.Contains(body, "number 1 in the transaction committed at") && strings.Contains(body, "bad-m1") && namesLSN(strings.ReplaceAll(body, "\n", " "), low, high),
			"it is not named: %s", body)
		time.Sleep(1500 * time.Millisecond) // a status interval and more
		hold(mustLSN(m.t, m.confirmed(m.t)) <= mustLSN(m.t, low), "confirmed %s, past %s", m.confirmed(m.t), low)
		hold(relay.Terminate(m.t, 30*time.Second) == 1, "a halted relay did not end with 1")
		hold(!strings.Contains(body, secretPayload), "the payload is shown: %s", body)
		m.log += relay.Log()
	}
	hold(countIDs(m.k.Consume(m.t, m.topic), "bad-r3") == 0, "what came after it was published")
	code, stdout, stderr := m.command(m.t, "adopt", "--lsn", high, "--yes")
	hold(code == 0, "adopt ended with %d: %s%s", code, stdout, stderr)
	relay := m.startReady(m.t)
	m.waitCaughtUp(m.t, 30*time.Second)
	hold(countIDs(m.k.Consume(m.t, m.topic), "bad-r3") == 1, "what came after it is not published")
	hold(relay.Terminate(m.t, 30*time.Second) == 0, "the last relay did not end cleanly")
	return ok
}

// withoutATable tells whether messages are published from a database that has no
// outbox table.
func (m *messagesTest) withoutATable() bool {
	r := m.inDatabase(m.t, "messages_alone")
	r.outboxYAML = "outbox: []\nmessages:\n  prefix: outbox\n  topic: '{topic}'\n"
	said := r.setup(m.t)
	relay := r.startReady(m.t)
	c := m.pg.ConnTo(m.t, r.dsn)
	w := &writer{t: m.t, conn: c}
	w.exec(`SELECT pg_logical_emit_message(true, 'outbox', json_build_object('id', 'alone-m1', 'topic', $1::text, 'aggregateid', 7,
		'headers', json_build_object('tenant', 'acme'), 'partition', 5, 'timestamp', '2024-05-06 07:08:09.123+00'::timestamptz,
		'payload', json_build_object('cents', 4117))::text)`, r.topic)
	r.waitCaughtUp(m.t, 30*time.Second)
	code := relay.Terminate(m.t, 30*time.Second)
	var got string
	for _, rec := range m.k.Consume(m.t, r.topic) {
		if id, _ := rec.Header("id"); id == "alone-m1" {
			tenant, _ := rec.Header("tenant")
			got += fmt.Sprintf("%d %s %s %s %d", rec.Partition, rec.Key, rec.Value, tenant, rec.Timestamp.UnixMilli())
		}
	}
	ok := got == `5 7 {"cents" : 4117} acme 1714979289123` && code == 0 && strings.Contains(said, "without a table")
	if !ok {
		m.t.Errorf("without a table: %q, ended with %d\n%s", got, code, said)
	}
	return ok
}
