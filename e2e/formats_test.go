package e2e_test

import (
	"fmt"
	"maps"
	"mime"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// formatPayloads are, by the type of the payload, expressions of SQL.
var formatPayloads = map[string][]string{
	"json":  {`'{"b" : 1.10,  "a":1e400, "a": "twice", "n": 0.10, "u": "\u00e9"}'`, "'null'", "'\"x\"'", "NULL", `('"' || repeat('j', 400000) || '"')::json`},
	"jsonb": {`'{"b" : 1.10,  "a":1e400, "n": 12345678901234567890.000}'`, "'[]'", "'null'", "NULL"},
	"text":  {awkward, "''", `E'\b\f\x01\x1f\x7f/\u2028'`, "NULL", `repeat(E'\u20ac\n"', 100000)`},
	"bytea": {`'\x'`, `'\x00ff5c785c30'`, "NULL", `decode(repeat('00ff7f', 100000), 'hex')`},
}

// formatNames are all formats.
var formatNames = []string{"raw", "json", "cloudevents"}

const (
	formatFill = 120 // rows of each table in the transaction in which the relay is killed
	madeAt     = "2026-01-31T12:00:00.123456Z"
)

// TestE2E_Formats publishes rows of every kind of payload in each format: streamed, over kills of the relay, replayed from
// the history and backfilled. Every copy has the key, the headers and the value that PostgreSQL itself puts together;
// copies of a crash are the same to the last byte; a reader that knows only the specification takes every CloudEvent; and
// verify finds every id, and names a row that the format cannot hold.
func TestE2E_Formats(t *testing.T) {
	// The rows have times of their own, long ago, and Kafka goes by them.
	r := newRig(t, rigOptions{noTable: true, topicConf: map[string]string{"retention.ms": "-1"}})
	r.historyYAML = "history:\n  max_bytes: 4GiB\n"
	tables := "outbox:\n"
	var insert, fill, selects []string
	for typ, values := range formatPayloads {
		for _, format := range formatNames {
			table := "f_" + format + "_" + typ
			r.pg.Exec(t, fmt.Sprintf("CREATE TABLE %s (event_id text PRIMARY KEY, agg text, k text, kind text, body %s, at timestamptz, more text)", table, typ))
			extra := ""
			if format == "cloudevents" {
				extra = ", source: /shop"
			}
			tables += fmt.Sprintf("  - {table: %s, topic: %s, format: %s%s, headers: {more: tenant}, columns: {id: event_id, key: k, type: kind, payload: body, timestamp: at, aggregate: agg}}\n",
				table, r.topic, format, extra)
			for i, v := range values {
				insert = append(insert, fmt.Sprintf(`INSERT INTO %s SELECT '%s é" %d', 'order', 'k\%d', 'Made', (%s)::%s, '2026-01-31 23:00:00.00000%d-02', 'é %d'`, table, table, i, i, v, typ, i, i))
			}
			fill = append(fill, fmt.Sprintf(`INSERT INTO %s SELECT '%s fill ' || n || ' ROUND', 'order', 'k' || n %% 50, 'Made', (%s)::%s, '2026-02-01', 'x' FROM generate_series(1, %d) n`, table, table, values[0], typ, formatFill))
			selects = append(selects, expectedFormat(table, format, typ))
		}
	}
	want := map[string]formatRow{}
	var from pglogrepl.LSN
	for _, format := range formatNames { // of the messages, of which there is one format at a time
		r.outboxYAML = tables + "messages: {prefix: shop, topic: " + r.topic + ", format: " + format + map[bool]string{true: ", source: /messages"}[format == "cloudevents"] + "}\n"
		if format == formatNames[0] {
			r.setup(t)
		}
		relay := r.startReady(t)
		from = r.position(t)
		if format == formatNames[0] {
			r.pg.Exec(t, insert...)
		}
		emitFormats(t, r, format, want)
		before := total(r.k.EndOffsets(t, r.topic))
		r.pg.Exec(t, strings.ReplaceAll("BEGIN;"+strings.Join(fill, ";")+";COMMIT", "ROUND", format))
		e2e.Eventually(t, time.Minute, "the transaction to come to the topic", func() bool { return total(r.k.EndOffsets(t, r.topic)) > before+formatFill })
		relay.Kill()
		relay = r.startReady(t)
		r.waitCaughtUp(t, time.Minute)
		to := r.position(t)
		r.replay(t, "--from", from.String(), "--to", to.String())
		if format != formatNames[len(formatNames)-1] {
			relay.Terminate(t, 30*time.Second)
		}
	}
	if code, stdout, stderr := r.command(t, "backfill", "--all"); code != 0 {
		t.Fatalf("backfill: %d\n%s%s", code, stdout, stderr)
	}
	rows := formatRows(t, r, selects)
	messages := len(want)
	maps.Copy(want, rows)
	v := judgeFormats(t, r.k.Consume(t, r.topic), want)
	code, stdout, stderr := r.command(t, "verify")
	if code != 0 {
		t.Errorf("verify: %d\n%s%s", code, stdout, stderr)
	}
	if code == 0 { // also the messages of the last format
		if code, stdout, stderr = r.command(t, "verify", "--source", "history", "--from", from.String()); code != 0 {
			t.Errorf("verify of the history: %d\n%s%s", code, stdout, stderr)
		}
	}
	unfit := r.formatsUnfit(t)
	ok := v.different+v.unlike+v.notSpec == 0 && v.streamed == len(want) && v.replayed == len(want) && v.backfilled == len(rows) && v.duplicates > 0 &&
		len(rows) == len(insert)+len(formatNames)*len(fill)*formatFill && v.events > 0 && code == 0 && unfit
	e2e.Result(t, "formats", ok, "rows", len(rows), "messages", messages, "streamed", v.streamed, "replayed", v.replayed, "backfilled", v.backfilled,
		"different", v.different, "crash_duplicates", v.duplicates, "not_identical", v.unlike, "cloudevents", v.events, "not_by_spec", v.notSpec,
		"verify", code, "unfit_named", unfit, "pg", r.pg.Version)
}

// emitFormats emits messages with each kind of payload, and adds the records that they are to be.
func emitFormats(t testing.TB, r *rig, format string, want map[string]formatRow) {
	t.Helper()
	for i, payload := range []string{`{ "a" : 1.10, "b":1e400, "u":"\u00e9"}`, `"a\n\u00e9"`, `null`, `[]`} {
		id := fmt.Sprintf("m %s %d", format, i)
		r.pg.Exec(t, fmt.Sprintf(`SELECT pg_logical_emit_message(true, 'shop', $m${"id":%q,"aggregatetype":"order","aggregateid":"k","type":"Made","headers":{"tenant":"x"},"timestamp":"2026-01-31T12:00:00.123456+00:00","payload":%s}$m$)`, id, payload))
		value, content := []byte(payload), "application/json"
		switch i {
		case 1:
			value, content = []byte("a\né"), "text/plain; charset=utf-8"
		case 2:
			value = nil
		}
		w := formatRow{key: "k", headers: "id=" + id + "|eventType=Made|tenant=x|", value: value}
		switch format {
		case "json":
			if value != nil {
				w.value = []byte(`{"id":"` + id + `","type":"Made","aggregate":"order","key":"k","time":"` + madeAt + `","payload":` + strings.ReplaceAll(payload, `a\n\u00e9`, `a\né`) + `}`)
			}
		case "cloudevents":
			w.headers = "ce_id=" + id + "|ce_specversion=1.0|ce_source=/messages|ce_type=Made|ce_subject=k|ce_time=" + madeAt + "|ce_partitionkey=k|ce_aggregatetype=order|"
			if value != nil {
				w.headers += "content-type=" + content + "|"
			}
			w.headers += "ce_tenant=x|"
		}
		want[id] = w
	}
}

// formatsVerdict counts ids by how they came, and records that are not as they are to be.
type formatsVerdict struct {
	streamed, replayed, backfilled, duplicates int
	different, unlike, events, notSpec         int
}

func judgeFormats(t testing.TB, records []e2e.Record, want map[string]formatRow) (v formatsVerdict) {
	t.Helper()
	first, replayed, backfilled := map[string]string{}, map[string]bool{}, map[string]bool{}
	for _, rec := range records {
		var own, all strings.Builder
		for _, h := range rec.Headers {
			line := h.Key + "=" + string(h.Value) + "|"
			all.WriteString(line)
			if !slices.Contains(copyHeaders, h.Key) {
				own.WriteString(line)
			}
		}
		id := string(rec.Headers[0].Value)
		w, known := want[id]
		if !known || string(rec.Key) != w.key || own.String() != w.headers || (rec.Value == nil) != (w.value == nil) || string(rec.Value) != string(w.value) {
			if v.different++; v.different <= 10 {
				t.Errorf("record %q: key %q, value %s, headers %s; want %q, %s, %s", id, rec.Key, brief(rec.Value), own.String(), w.key, brief(w.value), w.headers)
			}
		}
		_, fromTable := rec.Header("backfilled")
		_, fromWAL := rec.Header(replayedFrom)
		switch bytes := fmt.Sprintf("%q %v %q %s %d", rec.Key, rec.Value == nil, rec.Value, all.String(), rec.Timestamp.UnixMilli()); {
		case fromTable:
			backfilled[id] = true
		case fromWAL:
			replayed[id] = true
		case first[id] == "":
			first[id] = bytes
		default:
			v.duplicates++
			if first[id] != bytes {
				v.unlike++
			}
		}
		if rec.Headers[0].Key != "id" {
			v.events++
			if problem := againstCloudEvents(&rec); problem != "" {
				if v.notSpec++; v.notSpec <= 10 {
					t.Errorf("record %q is no CloudEvent: %s", id, problem)
				}
			}
		}
	}
	v.streamed, v.replayed, v.backfilled = len(first), len(replayed), len(backfilled)
	return v
}

// copyHeaders say where and what a copy is, and nothing of the event.
var copyHeaders = []string{"lsn", "seq", "backfilled", replayedFrom}

var attributeName = regexp.MustCompile("^ce_[a-z0-9]+$")

// againstCloudEvents says by which rule of CloudEvents 1.0, and of its binary mode over Kafka, a record is none. It is
// written by the specification, and uses nothing of the relay.
func againstCloudEvents(rec *e2e.Record) string {
	attributes := map[string]string{}
	for _, h := range rec.Headers {
		if slices.Contains(copyHeaders, h.Key) {
			continue // a header without ce_ is none of the event's
		}
		switch _, twice := attributes[h.Key]; {
		case twice:
			return h.Key + " is there twice"
		case h.Key != "content-type" && !attributeName.MatchString(h.Key):
			return h.Key + " is no name of an attribute"
		case len(h.Value) == 0:
			return h.Key + " is empty"
		case !utf8.Valid(h.Value):
			return h.Key + " is not UTF-8"
		case strings.ContainsFunc(string(h.Value), unicode.IsControl):
			return h.Key + " has a control character"
		}
		attributes[h.Key] = string(h.Value)
	}
	for _, name := range []string{"ce_id", "ce_source", "ce_type"} {
		if attributes[name] == "" {
			return "it has no " + name
		}
	}
	if attributes["ce_specversion"] != "1.0" {
		return "its ce_specversion is not 1.0"
	}
	if _, err := url.Parse(attributes["ce_source"]); err != nil {
		return "its ce_source is no URI-reference"
	}
	if at, has := attributes["ce_time"]; has {
		if _, err := time.Parse(time.RFC3339, at); err != nil {
			return "its ce_time is none of RFC 3339"
		}
	}
	content, has := attributes["content-type"]
	if has {
		if _, _, err := mime.ParseMediaType(content); err != nil || strings.HasPrefix(content, "application/cloudevents") {
			return "its content-type is none of binary mode"
		}
	}
	if has != (rec.Value != nil) {
		return "its content-type belongs to data, and one of them is not there"
	}
	if key, has := attributes["ce_partitionkey"]; has && key != string(rec.Key) {
		return "its ce_partitionkey is not the key"
	}
	return ""
}

// formatsUnfit loses two rows, one of which has no type any more: verify names that one as unroutable, and --repair
// publishes the other one and ends.
func (r *rig) formatsUnfit(t testing.TB) bool {
	t.Helper()
	r.pg.Exec(t, `UPDATE f_cloudevents_text SET event_id = 'no type', kind = NULL WHERE event_id LIKE '% 0'`,
		`UPDATE f_cloudevents_text SET event_id = 'lost' WHERE event_id LIKE '% 1'`)
	r.waitCaughtUp(t, time.Minute)
	code, stdout, stderr := e2e.RunRelay(t, time.Minute, e2e.RelayOptions{Config: r.config(), Command: "verify", Args: []string{"--repair"}, Answer: func() string { return "yes" }})
	lost := 0
	for _, rec := range r.k.Consume(t, r.topic) {
		switch string(rec.Headers[0].Value) {
		case "lost":
			lost++
		case "no type":
			t.Error("a CloudEvent without a type was published")
		}
	}
	named := code == 1 && strings.Contains(stdout, `"kind"`) && strings.Contains(stdout, "no type") && strings.Contains(stdout, "unroutable") && lost == 1
	if !named {
		t.Errorf("verify --repair: %d, the lost row came %d times\n%s%s", code, lost, stdout, stderr)
	}
	r.pg.Exec(t, `DELETE FROM f_cloudevents_text WHERE event_id = 'no type'`)
	r.waitCaughtUp(t, time.Minute)
	if code, stdout, stderr = r.command(t, "verify"); code != 0 {
		t.Errorf("verify after the repair: %d\n%s%s", code, stdout, stderr)
	}
	return named && code == 0
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
	headers := `'id=' || event_id || '|eventType=Made|tenant=' || more || '|'`
	switch format {
	case "json":
		bytes = `convert_to('{"id":' || to_json(event_id)::text || ',"type":"Made","aggregate":"order","key":' || to_json(k)::text || ',"time":"' || ` + at + ` || '"' || ` + member + ` || '}', 'UTF8')`
	case "cloudevents":
		headers = `'ce_id=' || event_id || '|ce_specversion=1.0|ce_source=/shop|ce_type=Made|ce_subject=' || k || '|ce_time=' || ` + at +
			` || '|ce_partitionkey=' || k || '|ce_aggregatetype=order|' || CASE WHEN body IS NULL THEN '' ELSE 'content-type=` + content + `|' END || 'ce_tenant=' || more || '|'`
	}
	return fmt.Sprintf("SELECT event_id, k, %s, CASE WHEN body IS NOT NULL THEN %s END FROM %s", headers, bytes, table)
}

type formatRow struct {
	key, headers string
	value        []byte // nil: NULL
}

func formatRows(t testing.TB, r *rig, selects []string) map[string]formatRow {
	t.Helper()
	c := plainSession(t, r.pg.DSN())
	want := map[string]formatRow{}
	for _, sql := range selects {
		rows, _ := c.Query(t.Context(), sql)
		var id string
		var row formatRow
		if _, err := pgx.ForEachRow(rows, []any{&id, &row.key, &row.headers, &row.value}, func() error {
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
