package route

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

// keepBuffer is the largest buffer for bytea that is kept although the rows
// that needed it have passed.
const keepBuffer = 1 << 20

// Route fills rec from a row that is the insert number seq (from 0) of tx. It
// returns false, and leaves rec alone, for a row of a table that is not mapped.
//
// rec points into the row and into buffers of the router: it is valid until the
// next Route, or until the row's frame is reused. An error of class
// fault.Poison says that this row can never be published as it is; one of
// fault.Stop, that the table or the connection is not as the mapping needs it.
// Neither shows more of the row than its id. What rec holds after an error is
// undefined.
func (r *Router) Route(tx Tx, seq uint32, row decoder.Row, rec *sink.Record) (routed bool, err error) {
	b := r.last
	if b == nil || b.rel != row.Relation {
		if b, err = r.find(row.Relation); err != nil {
			return false, err
		}
	}
	if b.table == nil {
		return false, nil
	}
	if len(row.Values) != len(b.rel.Columns) {
		return false, fault.Stopped("restart the relay, and report this as a bug",
			"a row of table %s came with %d values, but the table has %d columns", b.table, len(row.Values), len(b.rel.Columns))
	}
	f := filler{r: r, b: b, tx: tx, seq: seq, values: row.Values}
	r.reserve(b, row.Values)
	if err := f.fill(rec); err != nil {
		return false, err
	}
	return true, nil
}

// reserve makes room for every bytea of the row at once, and lets a buffer go
// that was made for a much larger row.
func (r *Router) reserve(b *binding, values []decoder.Value) {
	need := 0
	for _, i := range b.bytea {
		need += len(values[i].Data) / 2
	}
	if need > cap(r.buf) || cap(r.buf) > keepBuffer && need < cap(r.buf)/4 {
		r.buf = make([]byte, 0, need)
	}
	r.buf = r.buf[:0]
}

// filler fills one record.
type filler struct {
	r      *Router
	b      *binding
	tx     Tx
	seq    uint32
	values []decoder.Value
}

func (f *filler) fill(rec *sink.Record) (err error) {
	b := f.b
	rec.LSN, rec.Seq = f.tx.CommitLSN, f.seq
	rec.ID, rec.Topic = nil, "" // those of an earlier row must not name this one
	id, err := f.text(b.id)
	if err != nil {
		return err
	}
	if id == nil {
		return f.poison(b.id.column, "it is NULL, and it is mapped as id, by which a consumer drops copies")
	}
	rec.ID = id
	if rec.Topic, err = f.topic(); err != nil {
		return err
	}
	if rec.Key, err = f.raw(b.key); err != nil {
		return err
	}
	if rec.Value, err = f.raw(b.payload); err != nil {
		return err
	}
	if rec.Partition, err = f.partition(); err != nil {
		return err
	}
	if rec.Timestamp, err = f.timestamp(); err != nil {
		return err
	}
	if err := f.headers(); err != nil {
		return err
	}
	rec.Headers = b.headers
	if b.format != nil {
		return f.format(rec)
	}
	return nil
}

// format lays the record out as the table's format says.
func (f *filler) format(rec *sink.Record) (err error) {
	b := f.b
	e := event{key: rec.Key, micros: f.tx.CommitTime, payload: b.payloadKind}
	if e.kind, err = f.text(b.kind); err != nil {
		return err
	}
	if e.aggregate, err = f.text(b.aggregate); err != nil {
		return err
	}
	at, err := f.text(b.timestamp)
	if err != nil {
		return err
	}
	if at != nil {
		var reason string
		if e.micros, reason = recordMicros(at, b.timestampOID); reason != "" {
			return f.poison(b.timestamp.column, reason)
		}
	}
	own := 1
	if b.table.Type != "" {
		own++
	}
	part, reason := b.format.apply(rec, e, own, len(b.headers)-len(b.headerSources))
	if reason == "" {
		return nil
	}
	return f.poison(b.columnOf(part), reason)
}

// columnOf names the column that a part of the format is made of.
func (b *binding) columnOf(part string) string {
	switch part {
	case "id":
		return b.id.column
	case "type":
		return b.kind.column
	case "key", "subject", "partitionkey":
		return b.key.column
	case "aggregate", "aggregatetype":
		return b.aggregate.column
	case "payload":
		return b.payload.column
	}
	for _, h := range b.table.Headers {
		if h.Header == part {
			return h.Column
		}
	}
	return part
}

// text returns a column's text: nil for NULL and for a column that is not
// mapped, otherwise not nil.
func (f *filler) text(s source) ([]byte, error) {
	if s.index == none {
		return nil, nil
	}
	switch v := f.values[s.index]; v.Kind {
	case decoder.Text:
		if v.Data == nil {
			return []byte{}, nil
		}
		return v.Data, nil
	case decoder.Null:
		return nil, nil
	default:
		return nil, fault.Stopped("stream with pgoutput in text format, as this relay asks for; report this as a bug",
			"column %q of table %s came as kind %q in an insert, where only text and NULL can be published unchanged", s.column, f.b.table, byte(v.Kind))
	}
}

// raw is text, but the bytes themselves of a bytea.
func (f *filler) raw(s source) ([]byte, error) {
	text, err := f.text(s)
	if err != nil || !s.bytea || text == nil {
		return text, err
	}
	buf := f.r.buf
	out, ok := appendBytea(buf, text)
	if !ok {
		return nil, fault.Stopped("restart the relay, and report this as a bug if it stays",
			"column %q of table %s is bytea and did not come in hex form, which the relay asks for with bytea_output=hex", s.column, f.b.table)
	}
	f.r.buf = out
	return out[len(buf):len(out):len(out)], nil
}

// appendBytea appends the bytes that a bytea in hex form stands for.
func appendBytea(dst, text []byte) (out []byte, ok bool) {
	if len(text) < 2 || text[0] != '\\' || text[1] != 'x' {
		return dst, false
	}
	out, err := hex.AppendDecode(dst, text[2:])
	if err != nil {
		return dst, false
	}
	if out == nil {
		out = []byte{}
	}
	return out, true
}

func (f *filler) topic() (string, error) {
	b := f.b
	if b.fixedTopic != "" {
		return b.fixedTopic, nil
	}
	name := f.r.topic[:0]
	for _, p := range b.topic {
		name = append(name, p.literal...)
		if p.source.index == none {
			continue
		}
		text, err := f.text(p.source)
		if err != nil {
			return "", err
		}
		if text == nil {
			return "", f.poison(p.source.column, "it is NULL, and the topic is made of it")
		}
		if len(text) == 0 {
			return "", f.poison(p.source.column, "it is empty, and the topic is made of it")
		}
		if len(text) > maxTopic {
			return "", f.poison(p.source.column, fmt.Sprintf("the topic is made of it, and it is %d bytes long; Kafka takes at most %d", len(text), maxTopic))
		}
		name = append(name, text...)
	}
	f.r.topic = name
	topic, reason := b.topics.intern(name)
	if reason != "" {
		column := ""
		for _, p := range b.topic {
			if p.source.index != none && (column == "" || illegalAt(f.values[p.source.index].Data) >= 0) {
				column = p.source.column
			}
		}
		return "", f.poison(column, "the topic is made of it and cannot be one: "+reason)
	}
	return topic, nil
}

func (f *filler) partition() (int32, error) {
	text, err := f.text(f.b.partition)
	if err != nil {
		return 0, err
	}
	if text == nil {
		return sink.PartitionByKey, nil
	}
	n, ok := parseInt(text)
	if !ok || n < 0 || n > math.MaxInt32 {
		return 0, f.poison(f.b.partition.column, "it is mapped as partition and is not between 0 and 2147483647")
	}
	return int32(n), nil
}

func (f *filler) timestamp() (int64, error) {
	text, err := f.text(f.b.timestamp)
	if err != nil {
		return 0, err
	}
	if text == nil {
		return floorDiv(f.tx.CommitTime, 1000), nil
	}
	ms, reason := recordTime(text, f.b.timestampOID)
	if reason != "" {
		return 0, f.poison(f.b.timestamp.column, "it is mapped as timestamp, and "+reason)
	}
	return ms, nil
}

// headers sets the values of this row; a NULL is a null value.
func (f *filler) headers() error {
	b := f.b
	for i, s := range b.headerSources {
		v, err := f.raw(s)
		if err != nil {
			return err
		}
		b.headers[i].Value = v
	}
	if !b.table.Position {
		return nil
	}
	r, n := f.r, len(b.headerSources)
	if r.tx != f.tx.CommitLSN {
		r.tx = f.tx.CommitLSN
		hexLSN(&r.lsn, uint64(r.tx))
	}
	b.headers[n].Value = r.lsn[:]
	b.headers[n+1].Value = strconv.AppendUint(r.seq[:0], uint64(f.seq), 10)
	return nil
}

func hexLSN(dst *[16]byte, lsn uint64) {
	const digits = "0123456789ABCDEF"
	for i := range dst {
		dst[i] = digits[lsn>>(60-4*i)&15]
	}
}

// poison names the row and the column, and shows only the id.
func (f *filler) poison(column, reason string) error {
	id := ""
	if text, err := f.text(f.b.id); err == nil && text != nil {
		const longest = 100
		if len(text) > longest {
			text = text[:longest]
		}
		id = fmt.Sprintf(" (id %q)", text)
	}
	row := fmt.Sprintf("insert %d of the transaction committed at %s into table %s", f.seq, f.tx.CommitLSN, f.b.table)
	if f.tx.Table {
		row = fmt.Sprintf("row %d, of table %s,", f.seq, f.b.table)
	}
	return &fault.Error{Class: fault.Poison, What: fmt.Sprintf("%s%s cannot be published: column %q: %s", row, id, column, reason)}
}
