package e2e_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// payloadCase is a table with a payload column of one type. Each value is an SQL
// expression.
type payloadCase struct {
	name   string // of the table, behind bytes_
	typ    string
	values []string
	raw    bool // bytea: the bytes themselves are published
	idType string
}

const (
	awkward = `E'quotes " and '' and \\ backslash \\x41, tab\t, newline\n, cr\r, {"a": [1]}, %s, \u00e9\u20ac\U0001F600\u200b, $1, end '`
	large   = 5 << 20
)

// payloadCases are the types, by the ways in which PostgreSQL prints them.
func payloadCases() []payloadCase {
	return []payloadCase{
		{name: "text", typ: "text", values: []string{awkward, "''", "' '", "'NULL'", "'\\N'",
			fmt.Sprintf("repeat('0123456789abcdefg', %d)", large/17), fmt.Sprintf("repeat(E'\\u20ac\\n\"', %d)", large/5)}},
		{name: "varchar", typ: "varchar(200)", values: []string{awkward, "''"}},
		{name: "bpchar", typ: "char(12)", values: []string{"'padded'", "''"}},
		{name: "name", typ: "name", values: []string{"'a name'"}},
		{name: "json", typ: "json", values: []string{`'{"b" : 1.10,  "a":1e400, "a": "twice", "n": 12345678901234567890.000}'`, `'"\u00e9 \u0000"'`,
			"'null'", "' 1 '", fmt.Sprintf(`('"' || repeat('j', %d) || '"')::json`, large)}},
		{name: "jsonb", typ: "jsonb", values: []string{`'{"b" : 1.10,  "a":1e400, "a": "twice", "n": 12345678901234567890.000}'`, `'"\u00e9\n"'`,
			"'null'", "'[]'"}},
		{name: "bytea", typ: "bytea", raw: true, values: []string{`'\x'`, `'\x00ff5c785c30'`, `'\x5c7834'`, "convert_to('caf\u00e9', 'LATIN1')",
			fmt.Sprintf(`decode(repeat('00ff7fde', %d), 'hex')`, large/4)}},
		{name: "numeric", typ: "numeric", values: []string{"1.000", "-0.00", "'NaN'", "1e100", "123456789012345678901234567890.1234567890"}},
		{name: "float8", typ: "float8", values: []string{"0.1::float8 + 0.2::float8", "'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "1e308", "5e-324", "1"}},
		{name: "float4", typ: "float4", values: []string{"0.1", "'-Infinity'", "16777216", "1e-45"}},
		{name: "int8", typ: "bigint", values: []string{"9223372036854775807", "-9223372036854775808", "0"}},
		{name: "int2", typ: "smallint", values: []string{"-32768"}},
		{name: "bool", typ: "boolean", values: []string{"true", "false"}},
		{name: "uuid", typ: "uuid", values: []string{"'ABCDEF01-2345-6789-ABCD-EF0123456789'"}},
		{name: "timestamptz", typ: "timestamptz", values: []string{"'2024-02-29 12:00:00.123456+05:30'", "'infinity'", "'-infinity'", "'4713-01-01 BC'", "'294276-12-31'"}},
		{name: "timestamp", typ: "timestamp", values: []string{"'2024-02-29 12:00:00.1'", "'0001-01-01 BC'"}},
		{name: "date", typ: "date", values: []string{"'2024-02-03'", "'infinity'", "'0044-03-15 BC'"}},
		{name: "timetz", typ: "timetz", values: []string{"'04:05:06.789-08'"}},
		{name: "interval", typ: "interval", values: []string{"'1 year 2 mons -3 days 04:05:06.7'", "'-1 mon +1 day'", "'0'"}},
		{name: "array", typ: "text[]", values: []string{`ARRAY['a "b"', NULL, 'NULL', '', 'c,d', E'e\\f\n']`, "'{}'", "'[2:3]={x,y}'", "'{{a,b},{c,d}}'"}},
		{name: "intarray", typ: "int[]", values: []string{"ARRAY[1, NULL, -3]"}},
		{name: "byteaarray", typ: "bytea[]", values: []string{`ARRAY['\x00ff'::bytea, NULL]`}},
		{name: "enum", typ: "mood", values: []string{"'so so'", "'\u00fcbel'"}},
		{name: "domain", typ: "email", values: []string{"'a@b'"}},
		{name: "domainbytea", typ: "blob", raw: true, values: []string{`'\x00ff'`, `'\x'`}},
		{name: "composite", typ: "pair", values: []string{`ROW('x "y", \ z', 7)`, "ROW('', NULL)", "ROW(NULL, NULL)"}},
		{name: "range", typ: "tstzrange", values: []string{"'[2024-01-01 00:00+01, infinity)'", "'empty'"}},
		{name: "inet", typ: "inet", values: []string{"'10.1.2.3/8'", "'::ffff:1.2.3.4'", "'10.0.0.1'"}},
		{name: "macaddr", typ: "macaddr", values: []string{"'08:00:2B:01:02:03'"}},
		{name: "bit", typ: "varbit", values: []string{"B'10110'", "B''"}},
		{name: "point", typ: "point", values: []string{"point(0.1, -1e-7)"}},
		{name: "tsvector", typ: "tsvector", values: []string{`$$'a ''b''':1A,2 'c\d'$$`}},
		{name: "xml", typ: "xml", values: []string{`'<a b="1">&lt;</a>'`}},
		{name: "oddcase", typ: `"Odd ""Type"`, values: []string{"'left'"}},
		// A narrow id and keys of every kind, see keyTypes.
		{name: "bigid", typ: "text", idType: "bigint", values: []string{"'by a number'"}},
		{name: "uuidid", typ: "text", idType: "uuid", values: []string{"'by a uuid'"}},
	}
}

// TestE2E_Bytes writes values of every type into a table each, and compares key
// and value of each record with what PostgreSQL itself prints.
func TestE2E_Bytes(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true, topicConf: map[string]string{"max.message.bytes": fmt.Sprint(8 << 20)}})
	r.pg.Exec(t, "CREATE TYPE mood AS ENUM ('so so', '\u00fcbel')", "CREATE DOMAIN email AS text CHECK (VALUE LIKE '%@%')",
		"CREATE DOMAIN bytes AS bytea", "CREATE DOMAIN blob AS bytes", "CREATE TYPE pair AS (a text, b int)", `CREATE TYPE "Odd ""Type" AS ENUM ('left')`)
	var tables []printedTable
	r.outboxYAML = "outbox:\n"
	for _, c := range payloadCases() {
		if c.name == "xml" && !hasXML(r.pg) {
			t.Log("this server has no xml")
			continue
		}
		tables = append(tables, r.payloadTable(t, c))
	}
	tables = append(tables, r.keyTables(t)...)
	r.setup(t)
	sampler := e2e.SampleConfirmed(t, r.pg, r.slot)
	r.startReady(t)
	rows := 0
	for _, table := range tables {
		rows += len(table.insert)
		r.pg.Exec(t, table.insert...)
	}
	r.waitCaughtUp(t, 60*time.Second)

	records := r.k.Consume(t, r.topic)
	want := r.printed(t, tables)
	differences := comparePrinted(t, want, records)
	ok := differences == 0 && len(want) == rows && len(records) == rows && sampler.OK()
	e2e.Result(t, "bytes", ok, "tables", len(tables), "rows", rows, "records", len(records), "different", differences,
		"bytes", totalBytes(records), "pg", r.pg.Version)
}

func hasXML(pg *e2e.PG) bool {
	_, err := pg.TryQuery(`SELECT '<a/>'::xml`)
	return err == nil
}

// printedTable is a table whose rows are compared with what PostgreSQL prints.
type printedTable struct {
	name             string // quoted for SQL
	id, key, payload string // columns, quoted for SQL; key "" for none
	raw, rawKey      bool
	insert           []string // statements, a row each
}

// payloadTable makes the table of a case: a row for each value, and one with NULL.
func (r *rig) payloadTable(t testing.TB, c payloadCase) printedTable {
	t.Helper()
	name := "bytes_" + c.name
	p := printedTable{name: name, id: "event_id", key: "k", payload: "body", raw: c.raw}
	idType, id := "text", `'%s "%d"'`
	switch c.idType {
	case "bigint":
		idType, id = "bigint", "length('%s') * 0 - 7000000000 - %d"
	case "uuid":
		idType, id = "uuid", "md5('%s%d')::uuid"
	}
	r.pg.Exec(t, fmt.Sprintf("CREATE TABLE %s (body %s, k text, event_id %s)", name, c.typ, idType)) // no primary key
	for i, v := range append(c.values, "NULL") {
		p.insert = append(p.insert, fmt.Sprintf("INSERT INTO %s SELECT (%s)::%s, 'key of %s', %s", name, v, c.typ, c.name, fmt.Sprintf(id, c.name, i)))
	}
	r.outboxYAML += fmt.Sprintf("  - table: %s\n    topic: %s\n    columns: {id: event_id, key: k, payload: body}\n", name, r.topic)
	return p
}

// keyTables have keys of several types and names that need quotes; one has none.
func (r *rig) keyTables(t testing.TB) []printedTable {
	t.Helper()
	keys := []struct {
		typ, value string
		raw        bool
	}{
		{"uuid", "'ABCDEF01-2345-6789-ABCD-EF0123456789'", false}, {"bigint", "-42", false}, {"int", "2147483647", false},
		{"text", awkward, false}, {"text", "''", false}, {"numeric", "1.50", false}, {"bytea", `'\x00ff'`, true}, {"bytea", `'\x'`, true},
		{"jsonb", `'{"k":1}'`, false}, {"timestamptz", "'2024-02-03 04:05+01'", false}, {"mood", "'so so'", false}, {"text", "NULL", false},
		{"char(5)", "'ab'", false}, {"email", "'x@y'", false},
	}
	r.pg.Exec(t, `CREATE SCHEMA "Mixed.Case"`)
	var tables []printedTable
	for i, k := range keys {
		name := fmt.Sprintf(`"Key ""%d"`, i)
		p := printedTable{name: `"Mixed.Case".` + name, id: `"Id.Of"`, key: `"K"`, payload: `"pay load"`, rawKey: k.raw}
		r.pg.Exec(t, fmt.Sprintf(`CREATE TABLE %s ("K" %s, "pay load" text, "Id.Of" text)`, p.name, k.typ))
		p.insert = []string{fmt.Sprintf(`INSERT INTO %s VALUES (%s, 'keyed', 'key %d')`, p.name, k.value, i)}
		tables = append(tables, p)
		r.outboxYAML += fmt.Sprintf("  - table: '%s'\n    topic: %s\n    columns: {id: Id.Of, key: K, payload: pay load}\n", p.name, r.topic)
	}
	r.pg.Exec(t, `CREATE TABLE keyless (id text, payload text)`)
	r.outboxYAML += fmt.Sprintf("  - table: keyless\n    topic: %s\n    columns: {key: \"\", id: id}\n", r.topic)
	return append(tables, printedTable{name: "keyless", id: "id", payload: "payload", insert: []string{"INSERT INTO keyless VALUES ('keyless 1', 'x')"}})
}

// printedRow is a row as PostgreSQL prints it; nil is NULL.
type printedRow struct{ key, payload []byte }

// plainSession is a session that prints values as documented: the settings are
// given by the client, which no ALTER DATABASE overrides.
func plainSession(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"client_encoding": "UTF8", "DateStyle": "ISO, MDY", "TimeZone": "UTC", "bytea_output": "hex",
		"IntervalStyle": "postgres", "extra_float_digits": "1",
	} {
		cfg.RuntimeParams[name] = value
	}
	ctx, cancel := context.WithTimeout(context.Background(), e2e.Timeout)
	defer cancel()
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// printed selects all rows of the tables in the simple protocol, which carries
// what the types' output functions print, by id.
func (r *rig) printed(t testing.TB, tables []printedTable) map[string]printedRow {
	t.Helper()
	c := plainSession(t, r.pg.DSN())
	rows := map[string]printedRow{}
	for _, table := range tables {
		key := table.key
		if key == "" {
			key = "NULL"
		}
		results, err := c.PgConn().Exec(context.Background(), fmt.Sprintf("SELECT %s, %s, %s FROM %s", table.id, key, table.payload, table.name)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range results[0].Rows {
			id := string(row[0])
			if _, twice := rows[id]; twice {
				t.Fatalf("the id %s is there twice", id)
			}
			rows[id] = printedRow{unhex(t, table.rawKey, row[1]), unhex(t, table.raw, row[2])}
		}
	}
	return rows
}

// unhex returns the bytes of a bytea that was printed in hex.
func unhex(t testing.TB, raw bool, text []byte) []byte {
	t.Helper()
	if !raw || text == nil {
		return text
	}
	b, err := hex.DecodeString(strings.TrimPrefix(string(text), `\x`))
	if err != nil {
		t.Fatal(err)
	}
	if b == nil {
		b = []byte{}
	}
	return b
}

// comparePrinted counts the records that are not what was printed, and the rows
// without one.
func comparePrinted(t testing.TB, want map[string]printedRow, records []e2e.Record) int {
	t.Helper()
	bad := 0
	seen := map[string]bool{}
	for _, rec := range records {
		id, _ := rec.Header("id")
		w, ok := want[id]
		if !ok || seen[id] {
			bad++
			t.Errorf("record with the id %q: there is no such row, or it came twice", id)
			continue
		}
		seen[id] = true
		if !sameBytes(w.key, rec.Key) || !sameBytes(w.payload, rec.Value) {
			bad++
			t.Errorf("record %q: key %s, value %s; PostgreSQL prints key %s, value %s", id,
				brief(rec.Key), brief(rec.Value), brief(w.key), brief(w.payload))
		}
	}
	for id := range want {
		if !seen[id] {
			bad++
			t.Errorf("no record of row %q", id)
		}
	}
	return bad
}

// sameBytes tells NULL from the empty value.
func sameBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func brief(b []byte) string {
	if b == nil {
		return "null"
	}
	if len(b) > 80 {
		return fmt.Sprintf("%q... (%d bytes)", b[:80], len(b))
	}
	return fmt.Sprintf("%q", b)
}

func totalBytes(records []e2e.Record) int {
	n := 0
	for _, rec := range records {
		n += len(rec.Key) + len(rec.Value)
	}
	return n
}
