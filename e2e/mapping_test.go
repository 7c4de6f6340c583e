package e2e_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_Mapping publishes tables of several shapes over one relay, and looks
// at every part of the records: topic, partition, time, key, value, headers.
func TestE2E_Mapping(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true})
	m := &mapping{t: t, r: r, other: r.k.Topic(t, "other", 6), template: e2e.UniqueName(t, "outbox") + ".event."}
	m.partitions = map[string]int{r.topic: 6, m.other: 6, m.template + "order": 3, m.template + "user": 3}
	r.k.CreateTopic(t, m.template+"order", 3)
	r.k.CreateTopic(t, m.template+"user", 3)
	r.outboxYAML = "outbox:\n"
	parts := []struct {
		name   string
		create func()
		insert func()
	}{
		{"three lines", m.threeLines, m.insertThreeLines},
		{"topic column", m.topicColumn, m.insertTopicColumn},
		{"default shape", m.defaultShape, m.insertDefaultShape},
		{"partition and time", m.partitionAndTime, m.insertPartitionAndTime},
		{"headers", m.headers, m.insertHeaders},
		{"one transaction over several tables", func() {}, m.insertOverTables},
	}
	for _, p := range parts {
		p.create()
	}
	tables := strings.Count(r.outboxYAML, "- table:")
	r.setup(t)
	sampler := e2e.SampleConfirmed(t, r.pg, r.slot)
	r.startReady(t)
	for _, p := range parts {
		p.insert()
	}
	r.waitCaughtUp(t, 30*time.Second)
	records := r.k.Consume(t, slices.Sorted(maps.Keys(m.partitions))...)
	wrong := m.check(records)
	ordered := m.checkOrder(records)
	ok := wrong == 0 && ordered && sampler.OK()
	e2e.Result(t, "mapping", ok, "tables", tables, "records", len(records), "wrong", wrong, "ordered_by_headers", ordered)
}

// mapping collects what each record must be, in the order of the commits.
type mapping struct {
	t          *testing.T
	r          *rig
	other      string         // a topic
	template   string         // of topics, before the type
	partitions map[string]int // of each topic
	want       []wantedRecord
}

// wantedRecord is a record with every header. A header whose value begins with a
// NUL is null.
type wantedRecord struct {
	id, idHeader  string
	topic         string
	partition     int32 // -1: by the key
	at            time.Time
	before, after time.Time // bounds of the time when at is zero
	key, value    *string
	headers       map[string]string
	noPosition    bool
	seq           int
	position      string // lsn and seq, as found
}

const nullHeader = "\x00"

func str(s string) *string { return &s }

// table makes a table and adds its section to the configuration.
func (m *mapping) table(create, section string) {
	m.t.Helper()
	m.r.pg.Exec(m.t, create)
	m.r.outboxYAML += section
}

// row runs a transaction and keeps what the records of its rows must be.
func (m *mapping) row(insert string, rows ...wantedRecord) {
	m.t.Helper()
	before := m.clock()
	m.r.pg.Exec(m.t, insert)
	after := m.clock()
	for i, w := range rows {
		w.before, w.after, w.seq = before, after, i
		if w.idHeader == "" {
			w.idHeader = "id"
		}
		m.want = append(m.want, w)
	}
}

// clock is the server's time.
func (m *mapping) clock() time.Time {
	m.t.Helper()
	us, err := strconv.ParseInt(m.r.pg.Query(m.t, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"), 10, 64)
	if err != nil {
		m.t.Fatal(err)
	}
	return time.UnixMicro(us)
}

func (m *mapping) threeLines() {
	m.table(`CREATE TABLE order_events (event_id uuid, order_id bigint, payload jsonb)`,
		"  - table: order_events\n    topic: "+m.r.topic+"\n    columns: {id: event_id, key: order_id}\n")
}

func (m *mapping) insertThreeLines() {
	const id = "0b7e9e3a-5a54-4f0e-9a3e-000000000001"
	m.row(`INSERT INTO order_events VALUES ('`+id+`', 42, '{"total": 1.50}')`,
		wantedRecord{id: id, topic: m.r.topic, partition: -1, key: str("42"), value: str(`{"total": 1.50}`), headers: map[string]string{}})
}

func (m *mapping) topicColumn() {
	m.table(`CREATE TABLE messages (topic text, partition_key text, idempotency_key text, payload bytea)`,
		"  - table: messages\n    columns: {id: idempotency_key, key: partition_key, topic: topic}\n")
}

func (m *mapping) insertTopicColumn() {
	for i, topic := range []string{m.other, m.r.topic, m.other} {
		id, key := fmt.Sprintf("idem-%d", i), fmt.Sprintf("part-%d", i)
		m.row(fmt.Sprintf(`INSERT INTO messages VALUES ('%s', '%s', '%s', '\x00%d0')`, topic, key, id, i),
			wantedRecord{id: id, topic: topic, partition: -1, key: &key, value: str("\x00" + string(rune(16*i))), headers: map[string]string{}})
	}
}

func (m *mapping) defaultShape() {
	m.table(`CREATE TABLE events (id text, aggregatetype text, aggregateid text, type text, payload json)`,
		"  - table: events\n    topic: '"+m.template+"{aggregatetype}'\n")
}

func (m *mapping) insertDefaultShape() {
	m.row(`INSERT INTO events VALUES ('e1', 'order', '7', 'OrderPlaced', '{"a" :1}')`,
		wantedRecord{id: "e1", topic: m.template + "order", partition: -1, key: str("7"), value: str(`{"a" :1}`), headers: map[string]string{"eventType": "OrderPlaced"}})
	m.row(`INSERT INTO events VALUES ('e2', 'user', '7', NULL, NULL)`,
		wantedRecord{id: "e2", topic: m.template + "user", partition: -1, key: str("7"), headers: map[string]string{"eventType": nullHeader}})
}

// timeTypes are the types that a timestamp column can have: a value as SQL, and
// the record's time that it means.
var timeTypes = []struct{ typ, value, want string }{
	{"timestamptz", "'2024-02-29 12:00:00.123456+02'", "2024-02-29T10:00:00.123Z"},
	{"timestamp", "'2024-02-29 12:00:00.999'", "2024-02-29T12:00:00.999Z"},
	{"date", "'2024-02-29'", "2024-02-29T00:00:00Z"},
	{"bigint", "1709200800123", "2024-02-29T10:00:00.123Z"},
}

// partitionTypes are the types of the partition column in the tables of timeTypes.
var partitionTypes = []string{"int", "smallint", "bigint", "int"}

func (m *mapping) partitionAndTime() {
	for i, tt := range timeTypes {
		m.table(fmt.Sprintf(`CREATE TABLE placed_%d (id text, k text, body text, part %s, occurred %s)`, i, partitionTypes[i], tt.typ),
			fmt.Sprintf("  - table: placed_%d\n    topic: %s\n    columns: {id: id, key: k, payload: body, partition: part, timestamp: occurred}\n", i, m.r.topic))
	}
}

func (m *mapping) insertPartitionAndTime() {
	for i, tt := range timeTypes {
		at, err := time.Parse(time.RFC3339, tt.want)
		if err != nil {
			m.t.Fatal(err)
		}
		for part := range int32(6) { // one key on every partition: the column wins
			id := fmt.Sprintf("placed-%d-%d", i, part)
			m.row(fmt.Sprintf(`INSERT INTO placed_%d VALUES ('%s', 'same', 'x', %d, %s)`, i, id, part, tt.value),
				wantedRecord{id: id, topic: m.r.topic, partition: part, at: at, key: str("same"), value: str("x"), headers: map[string]string{}})
		}
		id := fmt.Sprintf("placed-%d-null", i)
		m.row(fmt.Sprintf(`INSERT INTO placed_%d VALUES ('%s', 'same', 'x', NULL, NULL)`, i, id),
			wantedRecord{id: id, topic: m.r.topic, partition: -1, key: str("same"), value: str("x"), headers: map[string]string{}})
	}
}

func (m *mapping) headers() {
	m.table(`CREATE TABLE traced (id bigint, k text, payload text, what text, tenant uuid, trace bytea, note text)`,
		"  - table: traced\n    topic: "+m.r.topic+"\n    columns: {key: k, type: what}\n    id_header: message-id\n    type_header: ce_type\n"+
			"    headers: {tenant: x-tenant, trace: x-trace, note: x-note, k: x-key}\n    position_headers: false\n")
}

func (m *mapping) insertHeaders() {
	m.row(`INSERT INTO traced VALUES (-1, NULL, '', 'made', 'ABCDEF01-2345-6789-ABCD-EF0123456789', '\x00ff', NULL)`,
		wantedRecord{id: "-1", idHeader: "message-id", topic: m.r.topic, partition: -1, value: str(""), noPosition: true, headers: map[string]string{
			"ce_type": "made", "x-tenant": "abcdef01-2345-6789-abcd-ef0123456789", "x-trace": "\x00\xff", "x-note": nullHeader, "x-key": nullHeader}})
	m.row(`INSERT INTO traced VALUES (9007199254740993, 'k', 'y', '', NULL, '\x', 'caf'||chr(233))`,
		wantedRecord{id: "9007199254740993", idHeader: "message-id", topic: m.r.topic, partition: -1, key: str("k"), value: str("y"), noPosition: true,
			headers: map[string]string{"ce_type": "", "x-tenant": nullHeader, "x-trace": "", "x-note": "caf\u00e9", "x-key": "k"}})
}

// insertOverTables inserts into several tables in one transaction: seq counts over
// all of them.
func (m *mapping) insertOverTables() {
	w := func(n int) wantedRecord {
		return wantedRecord{id: fmt.Sprintf("0b7e9e3a-5a54-4f0e-9a3e-00000000010%d", n), topic: m.r.topic, partition: -1,
			key: str(strconv.Itoa(n)), value: str("{}"), headers: map[string]string{}}
	}
	inOther := wantedRecord{id: "idem-within", topic: m.other, partition: -1, key: str("p"), value: str("z"), headers: map[string]string{}}
	m.row(fmt.Sprintf(`BEGIN; INSERT INTO order_events VALUES ('%s', 0, '{}'); INSERT INTO messages VALUES ('%s', 'p', 'idem-within', 'z');
		INSERT INTO order_events VALUES ('%s', 2, '{}'); COMMIT`, w(0).id, m.other, w(2).id), w(0), inOther, w(2))
}

// check compares each record with what it must be, and counts the wrong ones.
func (m *mapping) check(records []e2e.Record) int {
	m.t.Helper()
	wrong := 0
	bad := func(format string, args ...any) {
		m.t.Helper()
		m.t.Errorf(format, args...)
		wrong++
	}
	found := map[string]e2e.Record{}
	for _, rec := range records {
		id, ok := rec.Header("id")
		if !ok {
			id, _ = rec.Header("message-id")
		}
		if _, twice := found[id]; twice {
			bad("record %s came twice", id)
		}
		found[id] = rec
	}
	if len(records) != len(m.want) {
		bad("%d records, want %d", len(records), len(m.want))
	}
	for i := range m.want {
		rec, ok := found[m.want[i].id]
		if !ok {
			bad("no record of %s", m.want[i].id)
			continue
		}
		for _, difference := range m.want[i].differences(m.t, rec, m.partitions[rec.Topic]) {
			bad("record %s: %s", m.want[i].id, difference)
		}
	}
	return wrong
}

func (w *wantedRecord) differences(t testing.TB, rec e2e.Record, partitions int) (out []string) {
	bad := func(what string, got, want any) { out = append(out, fmt.Sprintf("%s is %v, want %v", what, got, want)) }
	if rec.Topic != w.topic {
		bad("topic", rec.Topic, w.topic)
	}
	if !sameText(rec.Key, w.key) {
		bad("key", brief(rec.Key), *orNull(w.key))
	}
	if !sameText(rec.Value, w.value) {
		bad("value", brief(rec.Value), *orNull(w.value))
	}
	partition := w.partition
	if partition < 0 && rec.Key != nil {
		partition = javaPartition(rec.Key, partitions)
	}
	if partition >= 0 && rec.Partition != partition {
		bad("partition", rec.Partition, partition)
	}
	switch {
	case !w.at.IsZero() && !rec.Timestamp.Equal(w.at):
		bad("time", rec.Timestamp.UTC(), w.at)
	case w.at.IsZero() && (rec.Timestamp.Before(w.before.Truncate(time.Millisecond)) || rec.Timestamp.After(w.after)):
		bad("time", rec.Timestamp.UTC(), fmt.Sprintf("that of the commit, between %s and %s", w.before.UTC(), w.after.UTC()))
	}
	got := map[string]string{}
	for _, h := range rec.Headers {
		got[h.Key] = string(h.Value)
		if h.Value == nil {
			got[h.Key] = nullHeader
		}
	}
	if len(got) != len(rec.Headers) {
		bad("number of headers", len(rec.Headers), len(got))
	}
	want := maps.Clone(w.headers)
	want[w.idHeader] = w.id
	if !w.noPosition {
		w.position = position(t, rec)
		want["lsn"], want["seq"] = got["lsn"], strconv.Itoa(w.seq)
	}
	if !maps.Equal(got, want) {
		bad("set of headers", fmt.Sprintf("%q", got), fmt.Sprintf("%q", want))
	}
	return out
}

func sameText(got []byte, want *string) bool {
	return (got == nil) == (want == nil) && (want == nil || string(got) == *want)
}

func orNull(s *string) *string {
	if s == nil {
		return str("null")
	}
	return s
}

// javaPartition is where another client, with Java's partitioning, puts the key.
func javaPartition(key []byte, partitions int) int32 {
	return int32(kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(&kgo.Record{Key: key}, partitions))
}

// checkOrder sorts by the lsn and seq headers, over all tables, topics and
// partitions, and compares with the order of the commits.
func (m *mapping) checkOrder(records []e2e.Record) bool {
	m.t.Helper()
	var places, sorted []string
	for _, w := range m.want {
		if w.noPosition {
			continue
		}
		places = append(places, w.position)
	}
	sorted = slices.Clone(places)
	slices.Sort(sorted)
	if !slices.Equal(places, sorted) || len(slices.Compact(sorted)) != len(places) {
		m.t.Errorf("the headers lsn and seq of the events, in the order of their commits, are %v", places)
		return false
	}
	return len(places) > 0
}
