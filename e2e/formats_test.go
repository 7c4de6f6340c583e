package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// formatPayloads are, by the type of the payload, expressions of SQL.
var formatPayloads = map[string][]string{
	"json":  {`'{"b" : 1.10,  "a":1e400, "a": "twice", "n": 0.10, "u": "\u00e9"}'`, "'null'", "'\"x\"'", "NULL", `('"' || repeat('j', 2000000) || '"')::json`},
	"jsonb": {`'{"b" : 1.10,  "a":1e400, "n": 12345678901234567890.000}'`, "'[]'", "'null'", "NULL"},
	"text":  {awkward, "''", `E'\b\f\x01\x1f\x7f/\u2028'`, "NULL", `repeat(E'\u20ac\n"', 300000)`},
	"bytea": {`'\x'`, `'\x00ff5c785c30'`, "NULL", `decode(repeat('00ff7f', 300000), 'hex')`},
}

// TestE2E_Formats streams rows of every kind in each format, backfills them and replays nothing: both
// copies have the bytes that PostgreSQL itself puts together, and verify finds every id.
func TestE2E_Formats(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true, topicConf: map[string]string{"max.message.bytes": fmt.Sprint(8 << 20)}})
	r.outboxYAML = "outbox:\n"
	var insert, selects []string
	for typ, values := range formatPayloads {
		for _, format := range []string{"raw", "json", "cloudevents"} {
			table := "f_" + format + "_" + typ
			r.pg.Exec(t, fmt.Sprintf("CREATE TABLE %s (event_id text PRIMARY KEY, agg text, k text, kind text, body %s, at timestamptz)", table, typ))
			extra := ""
			if format == "cloudevents" {
				extra = ", source: /shop"
			}
			r.outboxYAML += fmt.Sprintf("  - {table: %s, topic: %s, format: %s%s, columns: {id: event_id, key: k, type: kind, payload: body, timestamp: at, aggregate: agg}}\n",
				table, r.topic, format, extra)
			for i, v := range values {
				insert = append(insert, fmt.Sprintf(`INSERT INTO %s SELECT '%s é" %d', 'order', 'k\%d', 'Made', (%s)::%s, '2026-01-31 23:00:00.00000%d-02'`, table, table, i, i, v, typ, i))
			}
			selects = append(selects, expectedFormat(table, format, typ))
		}
	}
	r.setup(t)
	relay := r.startReady(t)
	r.pg.Exec(t, insert...)
	r.waitCaughtUp(t, time.Minute)
	code, stdout, stderr := r.command(t, "backfill", "--all")
	if code != 0 {
		t.Fatalf("backfill: %d\n%s%s", code, stdout, stderr)
	}
	want := formatRows(t, r, selects)
	copies, different := map[string]int{}, 0
	for _, rec := range r.k.Consume(t, r.topic) {
		var headers strings.Builder
		for _, h := range rec.Headers {
			if h.Key != "lsn" && h.Key != "seq" && h.Key != "backfilled" {
				fmt.Fprintf(&headers, "%s=%s|", h.Key, h.Value)
			}
		}
		id := string(rec.Headers[0].Value)
		w, known := want[id]
		copies[id]++
		if !known || headers.String() != w.headers || (rec.Value == nil) != (w.value == nil) || string(rec.Value) != string(w.value) {
			different++
			t.Errorf("record %q: value %s, headers %s; want %s, %s", id, brief(rec.Value), headers.String(), brief(w.value), w.headers)
		}
	}
	twice := 0
	for _, n := range copies {
		if n == 2 {
			twice++
		}
	}
	code, stdout, stderr = e2e.RunRelay(t, time.Minute, e2e.RelayOptions{Config: configOf(t, relay), Command: "verify"})
	if code != 0 {
		t.Errorf("verify: %d\n%s%s", code, stdout, stderr)
	}
	ok := different == 0 && twice == len(want) && len(want) == len(insert) && code == 0
	e2e.Result(t, "formats", ok, "rows", len(insert), "expected", len(want), "twice", twice, "different", different, "verify", code, "pg", r.pg.Version)
}

// expectedFormat selects id, headers and value (in hex) as PostgreSQL puts them together.
func expectedFormat(table, format, typ string) string {
	text := "body::text"
	bytes := "convert_to(body::text, 'UTF8')"
	content := map[string]string{"json": "application/json", "jsonb": "application/json", "bytea": "application/octet-stream", "text": "text/plain; charset=utf-8"}[typ]
	member := `',"payload":' || ` + text
	switch typ {
	case "text":
		member = `',"payload":' || to_json(body)::text`
	case "bytea":
		bytes = "body"
		member = `',"payload_encoding":"base64","payload":"' || translate(encode(body, 'base64'), E'\n', '') || '"'`
	}
	at := `to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
	headers := `'id=' || event_id || '|eventType=Made|'`
	switch format {
	case "json":
		bytes = `convert_to('{"id":' || to_json(event_id)::text || ',"type":"Made","aggregate":"order","key":' || to_json(k)::text || ',"time":"' || ` + at + ` || '"' || ` + member + ` || '}', 'UTF8')`
	case "cloudevents":
		headers = `'ce_id=' || event_id || '|ce_specversion=1.0|ce_source=/shop|ce_type=Made|ce_subject=' || k || '|ce_time=' || ` + at +
			` || '|ce_partitionkey=' || k || '|ce_aggregatetype=order|' || CASE WHEN body IS NULL THEN '' ELSE 'content-type=` + content + `|' END`
	}
	return fmt.Sprintf("SELECT event_id, %s, CASE WHEN body IS NOT NULL THEN %s END FROM %s", headers, bytes, table)
}

type formatRow struct {
	headers string
	value   []byte // nil: NULL
}

func formatRows(t testing.TB, r *rig, selects []string) map[string]formatRow {
	t.Helper()
	c := plainSession(t, r.pg.DSN())
	want := map[string]formatRow{}
	for _, sql := range selects {
		rows, _ := c.Query(t.Context(), sql)
		var id string
		var row formatRow
		if _, err := pgx.ForEachRow(rows, []any{&id, &row.headers, &row.value}, func() error {
			copied := row
			if row.value != nil {
				copied.value = append([]byte{}, row.value...)
			}
			want[id] = copied
			return nil
		}); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return want
}
