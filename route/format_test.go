package route_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

func inFormat(f route.Format) route.Table {
	t := debezium()
	t.TypeHeader, t.Format = "eventType", f
	if f == route.FormatCloudEvents {
		t.Source = "/shop"
	}
	return t
}

func TestFormat_GoldenBytes(t *testing.T) {
	const raw = `id:"1" eventType:"Made" lsn:"000000AB000000CD" seq:"0" `
	const cloud = `ce_id:"1" ce_specversion:"1.0" ce_source:"/shop" ce_type:"Made" ce_subject:"k\"1" ce_time:"2023-11-14T22:13:20.123999Z" ce_partitionkey:"k\"1" ce_aggregatetype:"order" `
	const position = `lsn:"000000AB000000CD" seq:"0" `
	const head = `{"id":"1","type":"Made","aggregate":"order","key":"k\"1","time":"2023-11-14T22:13:20.123999Z",`
	for name, c := range map[string]struct {
		format         route.Format
		oid            int
		payload        any
		value, headers string // value "" : null
	}{
		"json of json":   {route.FormatJSON, tJSON, ` {"b" : 1e400,  "a":0.10, "a": "é\u00e9"}`, head + `"payload": {"b" : 1e400,  "a":0.10, "a": "é\u00e9"}}`, raw},
		"json of jsonb":  {route.FormatJSON, 3802, `null`, head + `"payload":null}`, raw},
		"json of text":   {route.FormatJSON, tText, "{\"a\"\n\t\r\x01\\é\u2028", head + `"payload":"{\"a\"\n\t\r\u0001\\é` + "\u2028" + `"}`, raw},
		"json of empty":  {route.FormatJSON, tText, "", head + `"payload":""}`, raw},
		"json of bytea":  {route.FormatJSON, tBytea, `\x00ff`, head + `"payload_encoding":"base64","payload":"AP8="}`, raw},
		"json of NULL":   {route.FormatJSON, tJSON, nil, "", raw},
		"cloud of json":  {route.FormatCloudEvents, tJSON, `{"a" : 1}`, `{"a" : 1}`, cloud + `content-type:"application/json" ` + position},
		"cloud of text":  {route.FormatCloudEvents, tText, "x", "x", cloud + `content-type:"text/plain; charset=utf-8" ` + position},
		"cloud of bytea": {route.FormatCloudEvents, tBytea, `\x4142`, "AB", cloud + `content-type:"application/octet-stream" ` + position},
		"cloud of NULL":  {route.FormatCloudEvents, tJSON, nil, "", cloud + position},
		"cloud of empty": {route.FormatCloudEvents, tText, "", "", cloud + `content-type:"text/plain; charset=utf-8" ` + position},
		"cloud of jsonb": {route.FormatCloudEvents, 3802, "null", "null", cloud + `content-type:"application/json" ` + position},
	} {
		rel := relation("id", tUUID, "aggregatetype", tText, "aggregateid", tText, "type", tText, "payload", c.oid)
		r := compile(t, inFormat(c.format), rel)
		for range 2 { // copies are the same
			var rec sink.Record
			if _, err := r.Route(commit, 0, row(rel, "1", "order", `k"1`, "Made", c.payload), &rec); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var headers strings.Builder
			for _, h := range rec.Headers {
				headers.WriteString(h.Key + `:` + quoted(h.Value) + " ")
			}
			if string(rec.Value) != c.value || (rec.Value == nil) != (c.payload == nil) || headers.String() != c.headers || string(rec.Key) != `k"1` {
				t.Errorf("%s:\n%s\n%s\nwant\n%s\n%s", name, rec.Value, headers.String(), c.value, c.headers)
			}
		}
	}
}

func quoted(b []byte) string { s, _ := json.Marshal(string(b)); return string(s) }

// TestFormat_WholeRecords compares records byte for byte, with what is not in every one of them.
func TestFormat_WholeRecords(t *testing.T) {
	textRel := relation("id", tUUID, "aggregatetype", tText, "aggregateid", tText, "type", tText, "payload", tText, "extra", tText)
	byteRel := relation("id", tUUID, "aggregatetype", tText, "aggregateid", tText, "type", tText, "payload", tBytea, "extra", tText)
	enveloped, cloud := inFormat(route.FormatJSON), inFormat(route.FormatCloudEvents)
	bare := enveloped
	bare.Key, bare.Type, bare.Topic, bare.Position = "", "", "t", false
	extra := cloud
	extra.Headers = []route.HeaderColumn{{Column: "extra", Header: "tenant"}}
	typed := cloud
	typed.ContentType = "application/avro"
	const at, tail = `"time":"2023-11-14T22:13:20.123999Z"`, ` lsn:"000000AB000000CD" seq:"7"`
	const ce = `ce_id:"7f" ce_specversion:"1.0" ce_source:"/shop" ce_type:"Placed"`
	const ceTime = ` ce_time:"2023-11-14T22:13:20.123999Z"`
	for name, c := range map[string]struct {
		table       route.Table
		row         decoder.Row
		value, rest string
	}{
		"envelope of awkward text": {enveloped, row(textRel, "7f", "order", `1"\2`, "é\n\x01", "<a & \"b\">\t\r\x7f\u2028", nil),
			`{"id":"7f","type":"é\n\u0001","aggregate":"order","key":"1\"\\2",` + at + `,"payload":"<a & \"b\">\t\r` + "\x7f\u2028" + `"}`, `id:"7f" eventType:"é\n\x01"` + tail},
		"envelope of bytes, without key and type": {enveloped, row(byteRel, "7f", "order", nil, nil, `\x00ff`, nil),
			`{"id":"7f","type":null,"aggregate":"order","key":null,` + at + `,"payload_encoding":"base64","payload":"AP8="}`, `id:"7f" eventType:null` + tail},
		"envelope of empty key and type": {enveloped, row(byteRel, "7f", "order", "", "", `\x`, nil),
			`{"id":"7f","type":"","aggregate":"order","key":"",` + at + `,"payload_encoding":"base64","payload":""}`, `id:"7f" eventType:""` + tail},
		"envelope of little": {bare, row(textRel, "7f", nil, nil, nil, "", nil),
			`{"id":"7f","type":null,"aggregate":null,"key":null,` + at + `,"payload":""}`, `id:"7f"`},
		"CloudEvents with an empty key": {cloud, row(textRel, "7f", "order", "", "Placed", "x", nil),
			"x", ce + ceTime + ` ce_aggregatetype:"order" content-type:"text/plain; charset=utf-8"` + tail},
		"CloudEvents without a key": {cloud, row(byteRel, "7f", "order", nil, "Placed", `\x01`, nil),
			"\x01", ce + ceTime + ` ce_aggregatetype:"order" content-type:"application/octet-stream"` + tail},
		"CloudEvents with more": {extra, row(byteRel, "7f", "order", "é 1", "Placed", `\x`, "x"),
			"", ce + ` ce_subject:"é 1"` + ceTime + ` ce_partitionkey:"é 1" ce_aggregatetype:"order" content-type:"application/octet-stream" ce_tenant:"x"` + tail},
		"CloudEvents without more": {extra, row(byteRel, "7f", "order", "1", "Placed", `\x01`, nil),
			"\x01", ce + ` ce_subject:"1"` + ceTime + ` ce_partitionkey:"1" ce_aggregatetype:"order" content-type:"application/octet-stream"` + tail},
		"CloudEvents of a given type": {typed, row(byteRel, "7f", "order", "1", "Placed", `\x01`, nil),
			"\x01", ce + ` ce_subject:"1"` + ceTime + ` ce_partitionkey:"1" ce_aggregatetype:"order" content-type:"application/avro"` + tail},
	} {
		r := compile(t, c.table, c.row.Relation)
		for range 2 { // buffers are used again
			var rec sink.Record
			if _, err := r.Route(commit, 7, c.row, &rec); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, rest, _ := strings.Cut(show(rec), " @1700000000123 "); string(rec.Value) != c.value || rec.Value == nil || rest != c.rest {
				t.Errorf("%s:\n%s\n%s\nwant\n%s\n%s", name, rec.Value, rest, c.value, c.rest)
			}
		}
	}
}

func TestFormat_TimeIsTheRows(t *testing.T) {
	table := inFormat(route.FormatJSON)
	table.Timestamp = "at"
	rel := relation("id", tUUID, "aggregatetype", tText, "aggregateid", tText, "type", tText, "payload", tText, "at", tTimestampTZ)
	r := compile(t, table, rel)
	var rec sink.Record
	if _, err := r.Route(commit, 0, row(rel, "1", "o", nil, nil, "x", "2024-02-29 01:00:00.000001+02"), &rec); err != nil {
		t.Fatal(err)
	}
	if want := `{"id":"1","type":null,"aggregate":"o","key":null,"time":"2024-02-28T23:00:00.000001Z","payload":"x"}`; string(rec.Value) != want {
		t.Errorf("%s", rec.Value)
	}
	if _, err := r.Route(commit, 0, row(rel, "1", "o", nil, nil, "x", "10000-01-01 00:00:00+00"), &rec); fault.ClassOf(err) != fault.Poison {
		t.Errorf("a year of five digits: %v", err)
	}
}

func TestFormat_Refuses(t *testing.T) {
	cloud := inFormat(route.FormatCloudEvents)
	rel := relation("id", tText, "aggregatetype", tText, "aggregateid", tText, "type", tText, "payload", tText)
	fixed := cloud
	fixed.Topic, fixed.Aggregate = "t", "aggregatetype"
	var rec sink.Record
	for want, values := range map[string][]any{
		`column "id"`:             {"1\n", "o", "k", "t", "s3cret"},
		`column "type"`:           {"1", "o", "k", nil, "s3cret"},
		`column "type": it c`:     {"1", "o", "k", "", "s3cret"},
		`column "aggregateid"`:    {"1", "o", "s3cret\x7f", "t", "s3cret"},
		`column "aggregateid": `:  {"1", "o", "s3cret\u0085", "t", "s3cret"},
		`column "aggregatetype"`:  {"1", "\xff", "k", "t", "s3cret"},
		`column "aggregatetype":`: {"1", "\ufffe", "k", "t", "s3cret"},
	} {
		r := compile(t, fixed, rel)
		_, err := r.Route(commit, 0, row(rel, values...), &rec)
		if fault.ClassOf(err) != fault.Poison || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v; want poison with %s", values, err, want)
		}
	}
	for name, change := range map[string]func(*route.Table){
		`format "avro" is not known`:      func(t *route.Table) { t.Format = "avro" },
		"needs a source":                  func(t *route.Table) { t.Source = "" },
		"is no URI-reference":             func(t *route.Table) { t.Source = "the shop" },
		"holds a whole event":             func(t *route.Table) { t.ContentType = "application/CloudEvents+json" },
		"no column is mapped as type":     func(t *route.Table) { t.Type = "" },
		"made of a-z and 0-9":             func(t *route.Table) { t.Headers = []route.HeaderColumn{{Column: "x", Header: "Trace-Id"}} },
		"that the relay itself sets":      func(t *route.Table) { t.Headers = []route.HeaderColumn{{Column: "x", Header: "subject"}} },
		"of the format cloudevents alone": func(t *route.Table) { t.Format = route.FormatJSON },
	} {
		table := cloud
		change(&table)
		if err := table.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	bytea := relation("id", tBytea, "aggregatetype", tText, "aggregateid", tText, "type", tText, "payload", tText)
	router, err := route.Compile([]route.Table{cloud})
	if err != nil {
		t.Fatal(err)
	}
	if err := router.Relation(bytea); err == nil || !strings.Contains(err.Error(), `column "id" (type OID 17) cannot be used as id`) || !strings.Contains(err.Error(), "as id use any type but bytea with the format cloudevents") {
		t.Errorf("an id of bytea: %v", err)
	}
}

// A row of which only the identifying columns are read is refused when the whole one would be.
func TestFormat_IdentifiedColumnsTellWhatCannotBe(t *testing.T) {
	for format, want := range map[route.Format]string{
		route.FormatRaw: "id aggregatetype", route.FormatJSON: "id aggregatetype", route.FormatCloudEvents: "id aggregateid type aggregatetype",
	} {
		table := inFormat(format)
		if got := strings.Join(table.Identified(), " "); got != want {
			t.Errorf("%s: %s, want %s", format, got, want)
		}
		rel := relation("id", tText, "aggregatetype", tText, "aggregateid", tText, "type", tText, "payload", tText)
		r := compile(t, table, rel)
		var rec sink.Record
		if _, err := r.Route(commit, 0, row(rel, "1", "o", "k", "t", nil), &rec); err != nil || string(rec.Headers[0].Value) != "1" || rec.Headers[0].Key != table.IDHeaderName() {
			t.Errorf("%s: %v", format, err)
		}
		if _, err := r.Route(commit, 0, row(rel, "1", "o", "k", nil, nil), &rec); (fault.ClassOf(err) == fault.Poison) != (format == route.FormatCloudEvents) {
			t.Errorf("%s without a type: %v", format, err)
		}
	}
}

func TestFormat_MessagesAreLaidOut(t *testing.T) {
	m := messages()
	body := `{"id":"1","aggregatetype":"o","aggregateid":7,"type":"T","headers":{"trace":"z"},"timestamp":"2026-01-31T12:00:00.123456+00:00","payload":`
	m.Format = route.FormatJSON
	r := compileMessages(t, m)
	var rec sink.Record
	for payload, want := range map[string]string{`{ "n" : 0.10}`: `{ "n" : 0.10}`, `"a\u00e9\n"`: `"aé\n"`} {
		if err := r.Route(commit, 0, message(body+payload+"}"), &rec); err != nil {
			t.Fatal(err)
		}
		if want := `{"id":"1","type":"T","aggregate":"o","key":"7","time":"2026-01-31T12:00:00.123456Z","payload":` + want + `}`; string(rec.Value) != want {
			t.Errorf("%s\nwant %s", rec.Value, want)
		}
	}
	m.Format, m.Source = route.FormatCloudEvents, "/x"
	r = compileMessages(t, m)
	if err := r.Route(commit, 0, message(body+"[1]}"), &rec); err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, h := range rec.Headers {
		got += h.Key + "=" + string(h.Value) + " "
	}
	if want := "ce_id=1 ce_specversion=1.0 ce_source=/x ce_type=T ce_subject=7 ce_time=2026-01-31T12:00:00.123456Z ce_partitionkey=7 ce_aggregatetype=o content-type=application/json ce_trace=z lsn=000000AB000000CD seq=0 "; got != want || string(rec.Value) != "[1]" {
		t.Errorf("%s %s", rec.Value, got)
	}
}

func TestFormat_MessagesThatCannotBe(t *testing.T) {
	m := messages()
	m.Format, m.Source = route.FormatCloudEvents, "/x"
	r := compileMessages(t, m)
	for body, want := range map[string]string{
		`{"id":"7","aggregatetype":"order","payload":"s3cret"}`:                                              `"type": it cannot be an attribute`,
		`{"id":"7","aggregatetype":"order","type":"a\u0000","payload":"s3cret"}`:                             `"type": it cannot be an attribute`,
		`{"id":"7","aggregatetype":"order","type":"t","payload":1,"headers":{"s3cret-x":"y"}}`:               "made of a-z and 0-9",
		`{"id":"7","aggregatetype":"order","type":"t","payload":1,"headers":{"time":"s3cret"}}`:              "itself sets",
		`{"id":"7","aggregatetype":"order","type":"t","payload":1,"timestamp":"10000-01-01T00:00:00+00:00"}`: "timestamp",
		`{"id":"7","aggregatetype":"order","type":"t","payload":1,"timestamp":"9999-12-31T23:59:59-01:00"}`:  "after the year 9999",
	} {
		var rec sink.Record
		err := r.Route(commit, 3, message(body), &rec)
		if fault.ClassOf(err) != fault.Poison || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v; want poison with %q", body, err, want)
		}
	}
	m.Format, m.Source = route.FormatJSON, ""
	r = compileMessages(t, m)
	var rec sink.Record
	if err := r.Route(commit, 3, message(`{"id":7,"aggregatetype":"order","payload":null}`), &rec); err != nil || rec.Value != nil {
		t.Errorf("a null payload: %q, %v", rec.Value, err)
	}
	if err := r.Route(commit, 3, message(`{"id":7,"aggregatetype":"order","payload":"\u0041"}`), &rec); err != nil ||
		string(rec.Value) != `{"id":"7","type":null,"aggregate":"order","key":null,"time":"2023-11-14T22:13:20.123999Z","payload":"A"}` {
		t.Errorf("%s, %v", rec.Value, err)
	}
}

func TestFormat_AllocatesNothing(t *testing.T) { allocatesNothing(t, formats(t)) }

func BenchmarkFormat(b *testing.B) { perRow(b, formats(b)) }

func formats(tb testing.TB) map[string]func(uint32) error {
	all := map[string]func(uint32) error{}
	for _, f := range []route.Format{route.FormatRaw, route.FormatJSON, route.FormatCloudEvents} {
		rel := debeziumRelation()
		r := compile(tb, inFormat(f), rel)
		one := row(rel, `"`+strings.Repeat("x", 300)+`"`, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", nil, "order", "12345", "OrderCreated")
		rec := new(sink.Record)
		all[string(f)] = func(seq uint32) error {
			_, err := r.Route(commit, seq, one, rec)
			return err
		}
	}
	return all
}

// FuzzEnvelope: whatever a row holds, the value is JSON from which the row's texts and
// the payload's bytes are read back.
func FuzzEnvelope(f *testing.F) {
	f.Add("1", "t", "k", []byte(`{"a":1e400}`), uint8(0))
	f.Add("\"\\\x00", "\u2028é", "", []byte("\x1f\"\\"), uint8(1))
	f.Add("1", "t", "k", []byte{0, 255}, uint8(2))
	f.Fuzz(func(t *testing.T, id, kind, key string, payload []byte, which uint8) {
		oid := []int{tJSON, tText, tBytea}[which%3]
		text := string(payload)
		switch {
		case oid == tJSON && !json.Valid(payload):
			t.Skip()
		case oid == tBytea:
			text = `\x` + hexOf(payload)
		}
		rel := relation("id", tText, "aggregatetype", tText, "aggregateid", tText, "type", tText, "payload", oid)
		r := compile(t, inFormat(route.FormatJSON), rel)
		var rec sink.Record
		if _, err := r.Route(commit, 0, decoder.Row{Relation: rel, Values: row(rel, id, "o", key, kind, text).Values}, &rec); err != nil {
			texts := utf8.ValidString(id) && utf8.ValidString(kind) && utf8.ValidString(key) && (oid == tBytea || utf8.Valid(payload))
			if fault.ClassOf(err) != fault.Poison || texts || !strings.Contains(err.Error(), "it is not UTF-8, which JSON needs") {
				t.Fatal(err)
			}
			return
		}
		var got struct {
			ID, Type, Key string
			Payload       json.RawMessage
		}
		if err := json.Unmarshal(rec.Value, &got); err != nil || got.ID != id || got.Type != kind || got.Key != key {
			t.Fatalf("%v: %q", err, rec.Value)
		}
		switch oid {
		case tJSON:
			if !bytes.HasSuffix(rec.Value, append(append([]byte(`,"payload":`), payload...), '}')) {
				t.Fatalf("%q", rec.Value)
			}
		default:
			var s string
			if err := json.Unmarshal(got.Payload, &s); err != nil {
				t.Fatal(err)
			}
			if oid == tBytea {
				decoded, err := base64.StdEncoding.DecodeString(s)
				if err != nil {
					t.Fatal(err)
				}
				s = string(decoded)
			}
			if s != string(payload) {
				t.Fatalf("%q", rec.Value)
			}
		}
	})
}

func hexOf(b []byte) string {
	var s strings.Builder
	for _, c := range b {
		s.WriteString(string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15]))
	}
	return s.String()
}
