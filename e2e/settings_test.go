package e2e_test

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// contrary settings change what PostgreSQL prints, or end what takes long.
var contrary = map[string]string{
	"datestyle": "German, DMY", "timezone": "Asia/Kolkata", "bytea_output": "escape", "client_encoding": "LATIN1",
	"extra_float_digits": "-10", "intervalstyle": "sql_standard",
	"statement_timeout": "1ms", "lock_timeout": "1ms", "idle_in_transaction_session_timeout": "1ms",
	"idle_session_timeout": "1s", "transaction_timeout": "1s", // a startup parameter cannot name these: older servers know neither
}

// printing are those that a session of a test survives as well.
var printing = []string{"datestyle", "timezone", "bytea_output", "client_encoding", "extra_float_digits", "intervalstyle"}

// contrarySettings sets what decides how values print, and short time-outs, for
// the database and for the relay's role: neither changes the bytes nor disturbs
// the relay.
func contrarySettings(t *testing.T) (same bool, settings int, sampled bool) {
	r := newRig(t, rigOptions{noTable: true})
	r.pg.RequireControl(t) // roles outlive a database
	const role = "settled"
	r.pg.Exec(t, "CREATE ROLE "+role+" LOGIN REPLICATION SUPERUSER",
		`CREATE TABLE settled (id text, k timestamptz, payload text, at timestamptz)`,
		`CREATE TYPE mixed AS (t timestamptz, i interval, f float8, b bytea, e text)`)
	var statements []string
	for _, name := range printing {
		statements = append(statements, fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", r.pg.Database, name, contrary[name]))
	}
	for name, value := range contrary {
		if major, _ := strconv.Atoi(r.pg.Version); name == "transaction_timeout" && major < 17 || name == "idle_session_timeout" && major < 14 {
			continue
		}
		settings++
		statements = append(statements, fmt.Sprintf("ALTER ROLE %s SET %s = '%s'", role, name, value))
	}
	tables := []printedTable{{name: "settled", id: "id", key: "k", payload: "payload"}}
	types := []string{"timestamptz", "date", "interval", "bytea", "float8", "float4", "mixed", "timestamptz[]", "tstzrange", "timetz"}
	r.outboxYAML = fmt.Sprintf("outbox:\n  - table: settled\n    topic: %s\n    columns: {id: id, key: k, timestamp: at}\n", r.topic)
	for i, typ := range types {
		name := fmt.Sprintf("settled_%d", i)
		statements = append(statements, fmt.Sprintf("CREATE TABLE %s (id text, k timestamptz, payload %s, at timestamptz)", name, typ))
		tables = append(tables, printedTable{name: name, id: "id", key: "k", payload: "payload", raw: typ == "bytea"})
		r.outboxYAML += fmt.Sprintf("  - table: %s\n    topic: %s\n    columns: {id: id, key: k, timestamp: at}\n", name, r.topic)
	}
	r.pg.Exec(t, statements...)
	r.dsn = asRole(t, r.pg.DSN(), role)
	r.setup(t)
	sampler := e2e.SampleConfirmed(t, r.pg, r.slot)
	relay := r.startReady(t)
	values := []string{`E'caf\u00e9 \u20ac \U0001F600'::text`, "'2024-02-03 04:05:06.7+01'::timestamptz", "'2024-02-03'::date",
		"'1 year -2 mons 3 days -04:05:06.7'::interval", `'\x00ff5c'::bytea`, "0.1::float8 + 0.2::float8", "0.1::float4",
		`ROW('2024-02-03 04:05+01', '1 year 1 day', 1e-7, '\x5c00', E'\u20ac')::mixed`, "ARRAY['2024-02-03 04:05+01'::timestamptz, 'infinity']",
		"'[2024-02-03 04:05+01, infinity)'::tstzrange", "'04:05:06+03'::timetz"}
	for i := range tables {
		r.insertSettled(t, tables[i].name, fmt.Sprintf("row %d", i), values[i])
	}
	time.Sleep(2 * time.Second) // idle for longer than every time-out
	r.insertSettled(t, "settled", "after a pause", values[0])
	r.waitCaughtUp(t, 30*time.Second)

	records := r.k.Consume(t, r.topic)
	same = comparePrinted(t, r.printed(t, tables), records) == 0 && len(records) == len(tables)+1
	for _, rec := range records {
		if got := rec.Timestamp.UnixMilli(); got != 1709185530123 { // 2024-02-29 05:45:30.123 UTC
			t.Errorf("the record's time is %d", got)
			same = false
		}
	}
	if log := relay.Log(); strings.Contains(log, "connection lost") {
		t.Error("the relay lost its connection under these settings")
		same = false
	}
	return same, settings, sampler.OK()
}

func (r *rig) insertSettled(t testing.TB, table, id, value string) {
	t.Helper()
	r.pg.Exec(t, "SET client_encoding = 'UTF8'; SET datestyle = 'ISO'; "+
		fmt.Sprintf(`INSERT INTO %s VALUES (E'%s \u20ac', '2024-02-03 04:05:06+01', %s, '2024-02-29 11:15:30.123+05:30')`, table, id, value))
}

// asRole is the DSN with another role.
func asRole(t testing.TB, dsn, role string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

// latinDatabase publishes from a database of another encoding.
func latinDatabase(t *testing.T) bool {
	r := newRig(t, rigOptions{noTable: true})
	r.otherDatabase(t, "LATIN1")
	r.pg.Exec(t, outboxTable)
	r.setup(t)
	r.startReady(t)
	// Bytes of LATIN1, whatever the client: 0xE9 is an e with an acute accent.
	r.pg.Exec(t, `INSERT INTO outbox (id, aggregateid, payload) VALUES ('id-' || chr(233), 'key-' || chr(252), 'caf' || chr(233) || chr(163))`)
	r.waitCaughtUp(t, 30*time.Second)
	records := r.k.Consume(t, r.topic)
	if len(records) != 1 {
		t.Errorf("%d records from the LATIN1 database, want 1", len(records))
		return false
	}
	id, _ := records[0].Header("id")
	got := fmt.Sprintf("%s %s %s", id, records[0].Key, records[0].Value)
	if want := "id-\u00e9 key-\u00fc caf\u00e9\u00a3"; got != want {
		t.Errorf("the record from the LATIN1 database is %q, want %q", got, want)
		return false
	}
	return true
}

// otherDatabase lets the rig use a new database of that encoding.
func (r *rig) otherDatabase(t testing.TB, encoding string) {
	t.Helper()
	r.pg.RequireControl(t)
	name := strings.ToLower(encoding)
	r.pg.ExecOn(t, "postgres", fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' ENCODING '%s'", name, encoding))
	r.pg.Database = name
	r.dsn = r.pg.DSN()
}

// asciiDatabase meets bytes that are no UTF-8 in a database that does not know
// its encoding: what precedes is published, and the relay halts with a sentence
// that names the position and shows nothing of the row.
func asciiDatabase(t *testing.T) bool {
	r := newRig(t, rigOptions{noTable: true})
	r.otherDatabase(t, "SQL_ASCII")
	r.pg.Exec(t, outboxTable)
	r.setup(t)
	relay := r.startReady(t)
	r.pg.Exec(t, `SET client_encoding = 'SQL_ASCII'; INSERT INTO outbox (id, aggregateid, payload) VALUES ('good', 'k', E'caf\xc3\xa9')`)
	before := r.pg.Query(t, `SELECT pg_current_wal_insert_lsn()`)
	r.pg.Exec(t, `SET client_encoding = 'SQL_ASCII'; INSERT INTO outbox (id, aggregateid, payload) VALUES
		('same transaction', 'k', 'fine'), ('bad', 'k', E'geheim\xe9\xff')`)
	after := r.pg.Query(t, `SELECT pg_current_wal_insert_lsn()`)
	const told = "has no form in UTF-8"
	relay.WaitLog(t, 30*time.Second, told)
	ok := true
	if log := relay.Log(); !namesLSN(log[:strings.Index(log, told)], before, after) {
		t.Errorf("the relay halted without naming a position between %s and %s:\n%s", before, after, log)
		ok = false
	}
	code := relay.Terminate(t, 30*time.Second)
	log := relay.Log()
	if code != 1 || !strings.Contains(log, "stopped while halted") {
		t.Errorf("the relay that was halted at bytes that are no UTF-8 ended with %d:\n%s", code, log)
		ok = false
	}
	if strings.Contains(log, "geheim") || strings.Contains(log, "0xe9") {
		t.Error("the relay shows something of the row")
		ok = false
	}
	want := []string{"good", "same transaction"}
	if got := r.k.Consume(t, r.topic); !slices.Equal(slices.Sorted(slices.Values(ids(got))), want) {
		t.Errorf("published: %v, want the rows before, once", ids(got))
		ok = false
	}
	if now := mustLSN(t, r.confirmed(t)); now > mustLSN(t, before) {
		t.Errorf("confirmed %s, which passes the row that was not published", now)
		ok = false
	}
	return ok
}

var lsnInText = regexp.MustCompile(`\b[0-9A-F]+/[0-9A-F]+\b`)

// namesLSN tells whether the last line of a log names a position from one on,
// and below another.
func namesLSN(log, from, below string) bool {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	for _, found := range lsnInText.FindAllString(lines[len(lines)-1], -1) {
		lsn, err := pglogrepl.ParseLSN(found)
		low, _ := pglogrepl.ParseLSN(from)
		high, _ := pglogrepl.ParseLSN(below)
		if err == nil && lsn >= low && lsn < high {
			return true
		}
	}
	return false
}
