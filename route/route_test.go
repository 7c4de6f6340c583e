package route_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Type OIDs of columns in these tests.
const (
	tBytea, tInt8, tInt2, tInt4, tText, tJSON, tFloat8 = 17, 20, 21, 23, 25, 114, 701
	tDate, tTimestamp, tTimestampTZ, tUUID             = 1082, 1114, 1184, 2950
)

var commit = route.Tx{CommitLSN: 0xAB_0000_00CD, CommitTime: 1_700_000_000_123_999}

// debezium is the default shape.
func debezium() route.Table {
	return route.Table{
		Schema: "public", Name: "outbox", ID: "id", Key: "aggregateid", Type: "type", Payload: "payload",
		Topic: "outbox.event.{aggregatetype}", Position: true,
	}
}

func relation(columns ...any) *decoder.Relation {
	rel := &decoder.Relation{OID: 1, Namespace: "public", Name: "outbox"}
	for i := 0; i < len(columns); i += 2 {
		rel.Columns = append(rel.Columns, decoder.Column{Name: columns[i].(string), TypeOID: uint32(columns[i+1].(int))})
	}
	return rel
}

// debeziumRelation has its columns in another order than the mapping.
func debeziumRelation() *decoder.Relation {
	return relation("payload", tJSON, "id", tUUID, "extra", tText, "aggregatetype", tText, "aggregateid", tText, "type", tText)
}

// row takes strings, nil for NULL.
func row(rel *decoder.Relation, values ...any) decoder.Row {
	r := decoder.Row{Relation: rel}
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			r.Values = append(r.Values, decoder.Value{Kind: decoder.Null})
		case string:
			r.Values = append(r.Values, decoder.Value{Kind: decoder.Text, Data: []byte(v)})
		case decoder.Value:
			r.Values = append(r.Values, v)
		}
	}
	return r
}

func compile(tb testing.TB, t route.Table, rel *decoder.Relation) *route.Router {
	tb.Helper()
	r, err := route.Compile([]route.Table{t})
	if err != nil {
		tb.Fatal(err)
	}
	if err := r.Relation(rel); err != nil {
		tb.Fatal(err)
	}
	return r
}

// show prints a record in one line; null and empty look different.
func show(rec sink.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%d %s=%s @%d", rec.Topic, rec.Partition, value(rec.Key), value(rec.Value), rec.Timestamp)
	for _, h := range rec.Headers {
		fmt.Fprintf(&b, " %s:%s", h.Key, value(h.Value))
	}
	return b.String()
}

func value(b []byte) string {
	if b == nil {
		return "null"
	}
	return fmt.Sprintf("%q", b)
}

// A row that is refused must not be shown under the name of the one before.
func TestRoute_RefusedRowHasNoOthersName(t *testing.T) {
	rel := debeziumRelation()
	r := compile(t, debezium(), rel)
	var rec sink.Record
	if _, err := r.Route(commit, 0, row(rel, "p", "7f", nil, "order", "k", "t"), &rec); err != nil {
		t.Fatal(err)
	}
	_, err := r.Route(commit, 1, row(rel, "p", nil, nil, "order", "k", "t"), &rec)
	if fault.ClassOf(err) != fault.Poison || rec.ID != nil || rec.Topic != "" || rec.Seq != 1 {
		t.Errorf("named %q %q %d: %v", rec.ID, rec.Topic, rec.Seq, err)
	}
}

func TestRoute_MapsColumns(t *testing.T) {
	const at = "@1700000000123"
	shape := debezium()
	shape.Position = false
	with := func(change func(*route.Table)) route.Table {
		s := shape
		change(&s)
		return s
	}
	plain := debeziumRelation()
	binary := relation("id", tBytea, "k", tBytea, "type", tBytea, "payload", tBytea, "n", tInt4, "at", tTimestampTZ)
	binaryShape := route.Table{
		Schema: "public", Name: "outbox", ID: "id", Key: "k", Type: "type", Payload: "payload", Topic: "fixed",
		Partition: "n", Timestamp: "at", TypeHeader: "eventType", Headers: []route.HeaderColumn{{Column: "payload", Header: "again"}, {Column: "n", Header: "n"}},
	}
	for name, c := range map[string]struct {
		table route.Table
		rel   *decoder.Relation
		row   []any
		want  string
	}{
		"default shape": {
			debezium(), plain, []any{`{"a": 1}`, "7f", "x", "order", "12", "Created"},
			`outbox.event.order/-1 "12"="{\"a\": 1}" ` + at + ` id:"7f" type:"Created" lsn:"000000AB000000CD" seq:"7"`,
		},
		"NULL key, type and payload": {
			shape, plain, []any{nil, "7f", nil, "order", nil, nil},
			`outbox.event.order/-1 null=null ` + at + ` id:"7f" type:null`,
		},
		"empty key, type and payload": {
			shape, plain, []any{"", "7f", nil, "order", "", ""},
			`outbox.event.order/-1 ""="" ` + at + ` id:"7f" type:""`,
		},
		"nothing optional": {
			route.Table{Schema: "public", Name: "outbox", ID: "id", Payload: "payload", Topic: "t", IDHeader: "event-id"},
			plain, []any{"p", "7f", nil, nil, nil, nil}, `t/-1 null="p" ` + at + ` event-id:"7f"`,
		},
		"topic column": {
			with(func(t *route.Table) { t.Topic, t.TopicCol = "", "extra" }),
			plain, []any{"p", "7f", "orders.v1", nil, "k", "t"}, `orders.v1/-1 "k"="p" ` + at + ` id:"7f" type:"t"`,
		},
		"template of several columns": {
			with(func(t *route.Table) { t.Topic = "{extra}.a_{aggregatetype}-{extra}" }),
			plain, []any{"p", "7f", "x", "y", "k", "t"}, `x.a_y-x/-1 "k"="p" ` + at + ` id:"7f" type:"t"`,
		},
		"extra headers in order": {
			with(func(t *route.Table) { t.Headers = []route.HeaderColumn{{"extra", "e"}, {"aggregatetype", "a"}} }),
			plain, []any{"p", "7f", nil, "y", "k", "t"}, `outbox.event.y/-1 "k"="p" ` + at + ` id:"7f" type:"t" e:null a:"y"`,
		},
		"bytea raw everywhere": {
			binaryShape, binary, []any{`\x01`, `\x02ff`, `\x`, `\x00fF`, "3", "2024-05-06 07:08:09.5+00"},
			`fixed/3 "\x02\xff"="\x00\xff" @1714979289500 id:"\x01" eventType:"" again:"\x00\xff" n:"3"`,
		},
		"NULL key, partition and time": {
			binaryShape, binary, []any{`\x01`, nil, nil, nil, nil, nil},
			`fixed/-1 null=null ` + at + ` id:"\x01" eventType:null again:null n:null`,
		},
		"NULL key with a partition": {
			binaryShape, binary, []any{`\x01`, nil, nil, `\x31`, "2147483647", nil},
			`fixed/2147483647 null="1" ` + at + ` id:"\x01" eventType:null again:"1" n:"2147483647"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := compile(t, c.table, c.rel)
			var rec sink.Record
			routed, err := r.Route(commit, 7, row(c.rel, c.row...), &rec)
			if err != nil || !routed {
				t.Fatalf("routed %v, error %v", routed, err)
			}
			if got := show(rec); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
			if rec.LSN != commit.CommitLSN || rec.Seq != 7 || len(rec.ID) == 0 {
				t.Errorf("the record names itself as %q %s %d", rec.ID, rec.LSN, rec.Seq)
			}
		})
	}
}

func TestRoute_IDForAPersonIsText(t *testing.T) {
	rel := relation("id", tBytea, "payload", tText)
	r := compile(t, route.Table{Schema: "public", Name: "outbox", ID: "id", Payload: "payload", Topic: "t"}, rel)
	var rec sink.Record
	if _, err := r.Route(commit, 0, row(rel, `\x0a0b`, "p"), &rec); err != nil {
		t.Fatal(err)
	}
	if string(rec.ID) != `\x0a0b` || !bytes.Equal(rec.Headers[0].Value, []byte{10, 11}) {
		t.Errorf("got id %q and header %q", rec.ID, rec.Headers[0].Value)
	}
}

func TestRoute_PoisonNamesTheRowAndNoPayload(t *testing.T) {
	table := debezium()
	table.Partition, table.Timestamp = "n", "at"
	rel := relation("id", tText, "aggregatetype", tText, "n", tInt8, "at", tTimestamp, "payload", tText, "aggregateid", tText, "type", tText)
	long := strings.Repeat("a", 237)
	for name, c := range map[string]struct {
		id, topic, n, at any
		want             string
	}{
		"NULL id":             {nil, "a", nil, nil, `column "id": it is NULL`},
		"NULL topic":          {"7f", nil, nil, nil, `column "aggregatetype": it is NULL`},
		"empty topic part":    {"7f", "", nil, nil, `column "aggregatetype": it is empty`},
		"topic with a space":  {"7f", "secret a", nil, nil, "character at position 20"},
		"topic with a letter": {"7f", "é", nil, nil, "character at position 14"},
		"topic too long":      {"7f", long, nil, nil, "250 characters long"},
		"topic far too long":  {"7f", long + long, nil, nil, "474 bytes long"},
		"negative partition":  {"7f", "a", "-1", nil, `column "n": it is mapped as partition`},
		"partition too large": {"7f", "a", "2147483648", nil, `column "n": it is mapped as partition`},
		"infinite time":       {"7f", "a", nil, "infinity", `column "at": it is mapped as timestamp, and it is infinite`},
		"time before Christ":  {"7f", "a", nil, "0044-03-15 00:00:00 BC", "before 1970"},
		"time before 1970":    {"7f", "a", nil, "1969-12-31 23:59:59.999", "before 1970"},
		"no time":             {"7f", "a", nil, "secret", "not a date or time"},
	} {
		t.Run(name, func(t *testing.T) {
			r := compile(t, table, rel)
			_, err := r.Route(commit, 3, row(rel, c.id, c.topic, c.n, c.at, "secret payload", "secret key", "t"), new(sink.Record))
			if fault.ClassOf(err) != fault.Poison || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want poison with %q", err, c.want)
			}
			for _, part := range []string{"insert 3 ", "AB/CD", "public.outbox"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not name %q", err, part)
				}
			}
			if c.id != nil && !strings.Contains(err.Error(), `id "7f"`) {
				t.Errorf("%q does not name the id", err)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%q shows data of the row", err)
			}
			var rec sink.Record
			if ok, err := r.Route(commit, 4, row(rel, "7f", long[:236], "0", "1970-01-01 00:00:00", "", "", ""), &rec); !ok || err != nil {
				t.Errorf("the next row: %v, %v", ok, err)
			}
		})
	}
}

func TestRoute_TopicOfDotsOrNothingIsPoison(t *testing.T) {
	table := debezium()
	table.Topic, table.TopicCol = "", "extra"
	rel := debeziumRelation()
	r := compile(t, table, rel)
	for _, topic := range []string{"", ".", ".."} {
		_, err := r.Route(commit, 0, row(rel, "p", "7f", topic, "a", "k", "t"), new(sink.Record))
		if fault.ClassOf(err) != fault.Poison {
			t.Errorf("topic %q: got %v, want poison", topic, err)
		}
	}
}

func TestRoute_OtherThanTextStops(t *testing.T) {
	rel := debeziumRelation()
	for name, v := range map[string]decoder.Value{
		"binary": {Kind: decoder.Binary, Data: []byte("secret")}, "unchanged": {Kind: decoder.Unchanged},
	} {
		r := compile(t, debezium(), rel)
		_, err := r.Route(commit, 0, row(rel, v, "7f", nil, "a", "k", "t"), new(sink.Record))
		if fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), `"payload"`) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	rel = relation("id", tText, "payload", tBytea)
	r := compile(t, route.Table{Schema: "public", Name: "outbox", ID: "id", Payload: "payload", Topic: "t"}, rel)
	for _, text := range []string{"abc", `\x0`, `\x0g`, ``, `\`} {
		if _, err := r.Route(commit, 0, row(rel, "7f", text), new(sink.Record)); fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), "bytea_output") {
			t.Errorf("bytea %q: got %v", text, err)
		}
	}
	if _, err := r.Route(commit, 0, row(rel, "7f"), new(sink.Record)); fault.ClassOf(err) != fault.Stop {
		t.Errorf("a row with too few values: got %v", err)
	}
}

func TestRoute_UnmappedTableIsNotRouted(t *testing.T) {
	r := compile(t, debezium(), debeziumRelation())
	other := &decoder.Relation{OID: 2, Namespace: "public", Name: "other"}
	if err := r.Relation(other); err != nil {
		t.Fatal(err)
	}
	rec := sink.Record{Topic: "left alone"}
	if ok, err := r.Route(commit, 0, decoder.Row{Relation: other}, &rec); ok || err != nil || rec.Topic != "left alone" {
		t.Errorf("got %v, %v, %+v", ok, err, rec)
	}
}

func TestRouter_SeveralTablesInOneStream(t *testing.T) {
	second := route.Table{Schema: "s", Name: "events", ID: "event_id", Payload: "payload", Topic: "second"}
	r, err := route.Compile([]route.Table{debezium(), second})
	if err != nil {
		t.Fatal(err)
	}
	a := debeziumRelation()
	b := &decoder.Relation{OID: 2, Namespace: "s", Name: "events", Columns: []decoder.Column{{Name: "payload"}, {Name: "event_id"}}}
	var got []string
	for range 2 {
		for _, row := range []decoder.Row{row(a, "p", "1", nil, "a", "k", "t"), row(b, "q", "2")} {
			var rec sink.Record
			if _, err := r.Route(commit, 0, row, &rec); err != nil {
				t.Fatal(err)
			}
			got = append(got, rec.Topic+"="+string(rec.Value))
		}
	}
	if want := "outbox.event.a=p second=q outbox.event.a=p second=q"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestRouter_FollowsTheTable(t *testing.T) {
	old := debeziumRelation()
	r := compile(t, debezium(), old)
	var rec sink.Record
	if _, err := r.Route(commit, 0, row(old, "p", "7f", nil, "a", "k", "t"), &rec); err != nil {
		t.Fatal(err)
	}
	// A column dropped before the mapped ones moves them all.
	now := relation("aggregatetype", tText, "aggregateid", tText, "type", tText, "payload", tBytea, "id", tUUID)
	if _, err := r.Route(commit, 1, row(now, "b", "k2", "t", `\x31`, "8f"), &rec); err != nil {
		t.Fatal(err)
	}
	if rec.Topic != "outbox.event.b" || string(rec.Value) != "1" || string(rec.ID) != "8f" {
		t.Errorf("got %s", show(rec))
	}
}

func TestRouter_StopsAtATableItCannotPublish(t *testing.T) {
	table := debezium()
	table.Partition, table.Timestamp = "n", "at"
	good := []any{"id", tUUID, "aggregatetype", tText, "aggregateid", tText, "type", tText, "payload", tJSON, "n", tInt2, "at", tDate}
	r := compile(t, table, relation(good...))
	for name, c := range map[string]struct {
		columns []any
		want    []string
	}{
		"renamed":    {append([]any{"event_id", tUUID}, good[2:]...), []string{`no column "id", which is mapped as id`, "To fix it: bring the column back"}},
		"of topic":   {append([]any{"id", tUUID, "x", tText}, good[4:]...), []string{`no column "aggregatetype", which is mapped as topic`}},
		"timestamp":  {append(append([]any{}, good[:12]...), "at", tFloat8), []string{`column "at" (type OID 701) cannot be used as timestamp`, "timestamptz"}},
		"partition":  {append(append([]any{}, good[:10]...), "n", tText, "at", tDate), []string{`column "n" (type OID 25) cannot be used as partition`, "bigint"}},
		"bytea type": {append([]any{"id", tUUID, "aggregatetype", tBytea}, good[4:]...), []string{`"aggregatetype" (type OID 17) cannot be used as topic`}},
		"several":    {good[4:12], []string{`"id"`, `"aggregatetype"`, `"at"`}},
	} {
		t.Run(name, func(t *testing.T) {
			bad := relation(c.columns...)
			for _, err := range []error{r.Relation(bad), routeErr(r, row(bad))} {
				if fault.ClassOf(err) != fault.Stop {
					t.Fatalf("got %v, want stop", err)
				}
				for _, w := range append(c.want, "public.outbox") {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%q does not say %q", err, w)
					}
				}
			}
		})
	}
	renamed := relation(good...)
	renamed.Name = "outbox_old"
	if err := r.Relation(renamed); fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), "renamed to public.outbox_old") {
		t.Errorf("a table renamed away: got %v", err)
	}
	if err := routeErr(r, row(renamed)); fault.ClassOf(err) != fault.Stop {
		t.Errorf("a row of a table renamed away: got %v", err)
	}
}

// A table that had another name, when the row was inserted or while nobody read, is
// known by its OID: its rows are not lost, and those of no other table are taken.
func TestRouter_KnowsATableThatHadAnotherName(t *testing.T) {
	r, err := route.Compile([]route.Table{debezium()})
	if err != nil {
		t.Fatal(err)
	}
	rel := debeziumRelation()
	r.Know(map[uint32]string{rel.OID: "public.outbox", 4711: "public.other"})
	was, foreign := *rel, *rel
	was.Name, foreign.Name, foreign.OID = "events_old", "events_old", 4711
	for _, c := range []struct {
		rel  *decoder.Relation
		want bool
	}{{&was, true}, {&foreign, false}, {rel, true}, {&was, true}} {
		routed, err := r.Route(commit, 0, row(c.rel, "{}", "a", nil, "order", "k", "t"), new(sink.Record))
		if err != nil || routed != c.want {
			t.Errorf("%d %s: routed %t, want %t: %v", c.rel.OID, c.rel.Name, routed, c.want, err)
		}
	}
}

func routeErr(r *route.Router, row decoder.Row) error {
	_, err := r.Route(commit, 0, row, new(sink.Record))
	return err
}

func TestCompile_ReportsEveryProblem(t *testing.T) {
	_, err := route.Compile([]route.Table{
		{Schema: "public", Name: "a", Topic: "x {y}", TopicCol: "z"},
		{Schema: "public", Name: "b", ID: "id", Payload: "p", Topic: "bad topic", Headers: []route.HeaderColumn{{"c", "id"}, {"", "h"}}},
		{Schema: "public", Name: "c", ID: "id", Payload: "p", Topic: "ok"},
		{Schema: "public", Name: "c", ID: "id", Payload: "id"},
		{ID: "id", Payload: "p", Topic: "{a"},
	})
	var f *fault.Error
	if !errors.As(err, &f) || f.Class != fault.Stop {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		"public.a: no column is mapped as id", "public.a: no column is mapped as payload", "public.a: both a topic template",
		`public.b: topic template "bad topic": the character ' '`, `public.b: header "id" is produced twice`, "public.b: an extra header needs",
		"public.c: it is mapped twice", "public.c: neither a topic", "both id and payload", "schema and name must both be given", "a { has no }",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported in:\n%v", want, err)
		}
	}
	if _, err := route.Compile(nil); err == nil {
		t.Error("no table at all was accepted")
	}
}

func TestTable_Topics(t *testing.T) {
	for template, want := range map[string]string{
		"a.b": "", "{a}": "", "x{a}y{b c}": "", "..": "only dots", "": "", "{}": "names no column", "a}": "character '}'",
		"{a}{": "no }", strings.Repeat("a", 250): "250 characters",
	} {
		table := route.Table{Schema: "s", Name: "t", ID: "i", Payload: "p", Topic: template}
		if template == "" {
			table.TopicCol = "c"
		}
		err := table.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", template, err, want)
		}
		topic, fixed := table.FixedTopic()
		if fixed != (template == "a.b") || fixed && topic != template {
			t.Errorf("%q: fixed topic %q, %v", template, topic, fixed)
		}
	}
}

func TestTable_ColumnsNamesEachOnce(t *testing.T) {
	table := debezium()
	table.Topic, table.Partition, table.Timestamp = "{a}.{b}.{a}", "n", "at"
	table.Headers = []route.HeaderColumn{{"payload", "x"}, {"h", "y"}, {"h", "z"}}
	if got, want := strings.Join(table.Columns(), " "), "id aggregateid type payload a b at n h"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
