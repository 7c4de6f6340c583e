package decoder

import (
	"fmt"
	"math"

	"github.com/jackc/pglogrepl"
)

// pgEpoch is 2000-01-01, the zero of PostgreSQL's clock, in microseconds since
// the Unix epoch.
const pgEpoch = 946_684_800_000_000

// maxTime is the last time on PostgreSQL's clock that the Unix clock can hold.
const maxTime = math.MaxInt64 - pgEpoch

// Decoder decodes the messages of one replication connection. It keeps the
// relations that the server described, so messages must be given in the order
// in which they came. It is used by one goroutine.
type Decoder struct {
	relations map[uint32]*Relation
	domains   map[uint32]uint32 // OID of a domain -> OID of its built-in base type
	last      *Relation         // of the last insert: most inserts follow one of the same table
	values    []Value           // reused by every insert
	// inStream is true between a stray stream start and its stop. What carries
	// data has another layout there, so it is refused instead of misread.
	inStream bool
}

// New returns a decoder that knows no relation yet.
func New() *Decoder {
	return &Decoder{
		relations: make(map[uint32]*Relation),
		domains:   make(map[uint32]uint32),
	}
}

// Reset forgets everything: the server describes each relation again on a new
// connection.
func (d *Decoder) Reset() {
	clear(d.relations)
	clear(d.domains)
	d.last = nil
	d.values = nil
	d.inStream = false
}

// Error says why a message cannot be decoded. It holds no data of a row.
type Error struct {
	Kind   byte   // the message's first byte; 0 for an empty message
	Offset int    // where in the message, in bytes
	Reason string // what is wrong
}

// Error names the message, the place and the reason.
func (e *Error) Error() string {
	if e.Kind == 0 {
		return "decode pgoutput message: " + e.Reason
	}
	return fmt.Sprintf("decode pgoutput message %q at byte %d: %s", e.Kind, e.Offset, e.Reason)
}

// Decode decodes one message, the payload of an XLogData frame. The event's
// byte slices point into wal; they and Row.Values are valid until wal is reused
// or Decode is called again. An error is always an *Error.
//
// A message with bytes left over is an error: the layout is not the one that
// was asked for, so what was read cannot be trusted either.
func (d *Decoder) Decode(wal []byte) (ev Event, err error) {
	if err := d.DecodeInto(&ev, wal); err != nil {
		return Event{}, err
	}
	return ev, nil
}

// DecodeInto is Decode into an event that the caller uses again and again, since
// it is large. Only Kind, and the field that it tells of, are those of the
// message; the others keep what they were.
func (d *Decoder) DecodeInto(ev *Event, wal []byte) error {
	ev.Kind = KindSkip
	if len(wal) == 0 {
		return &Error{Reason: "the message is empty"}
	}
	return d.decode(&reader{buf: wal, off: 1}, ev)
}

func (d *Decoder) decode(r *reader, ev *Event) error {
	kind := r.buf[0]
	if d.inStream && carriesData(kind) {
		return r.fail("the server streams a transaction in progress, although streaming was not asked for")
	}
	switch kind {
	case 'B':
		return begin(r, ev)
	case 'C':
		return commit(r, ev)
	case 'I':
		return d.insert(r, ev)
	case 'R':
		return d.relation(r, ev)
	case 'M':
		return message(r, ev)
	case 'Y':
		return d.typ(r)
	case 'S':
		d.inStream = true
		return nil
	case 'E':
		d.inStream = false
		return nil
	case 'U', 'D', 'T', 'O', 'c', 'A':
		return nil
	case 'b', 'P', 'K', 'r', 'p':
		return r.fail("the server sent a prepared transaction (two-phase commit); it may still be rolled back " +
			"and must not be published; the slot must be one without two_phase")
	default:
		return r.fail(fmt.Sprintf("unknown message type 0x%02x", kind))
	}
}

// carriesData tells the messages whose layout changes inside a streamed block.
func carriesData(kind byte) bool {
	switch kind {
	case 'B', 'C', 'I', 'R', 'M', 'Y':
		return true
	}
	return false
}

func begin(r *reader, ev *Event) error {
	lsn := r.uint64()
	at := r.time()
	xid := r.uint32()
	if err := r.end(); err != nil {
		return err
	}
	if lsn == 0 {
		return r.fail("the commit LSN is zero")
	}
	ev.Kind = KindBegin
	ev.Begin = Begin{CommitLSN: pglogrepl.LSN(lsn), CommitTime: at, XID: xid}
	return nil
}

func commit(r *reader, ev *Event) error {
	flags := r.byte()
	lsn := r.uint64()
	end := r.uint64()
	at := r.time()
	if err := r.end(); err != nil {
		return err
	}
	if flags != 0 {
		return r.fail(fmt.Sprintf("unknown flags 0x%02x", flags))
	}
	// The end is what gets confirmed: a wrong one would lose what lies between.
	if lsn == 0 || end <= lsn {
		return r.fail(fmt.Sprintf("the end LSN %s is not after the commit LSN %s", pglogrepl.LSN(end), pglogrepl.LSN(lsn)))
	}
	ev.Kind = KindCommit
	ev.Commit = Commit{CommitLSN: pglogrepl.LSN(lsn), EndLSN: pglogrepl.LSN(end), CommitTime: at}
	return nil
}

func message(r *reader, ev *Event) error {
	flags := r.byte()
	lsn := r.uint64()
	prefix := r.cstring()
	content := r.bytes(r.uint32())
	if err := r.end(); err != nil {
		return err
	}
	if flags > 1 {
		return r.fail(fmt.Sprintf("unknown flags 0x%02x", flags))
	}
	ev.Kind = KindMessage
	ev.Message = LogicalMessage{
		Transactional: flags == 1,
		LSN:           pglogrepl.LSN(lsn),
		Prefix:        prefix,
		Content:       content,
	}
	return nil
}

// insert decodes a row by the relation that was last described under its OID.
func (d *Decoder) insert(r *reader, ev *Event) error {
	oid := r.uint32()
	tag := r.byte()
	n := int(r.uint16())
	if r.err != nil {
		return r.err
	}
	rel := d.last
	if rel == nil || rel.OID != oid {
		var known bool
		if rel, known = d.relations[oid]; !known {
			return r.fail(fmt.Sprintf("insert into relation %d, which the server has not described", oid))
		}
		d.last = rel
	}
	if tag != 'N' {
		return r.fail(fmt.Sprintf("insert into relation %d has 0x%02x where the new row should begin", oid, tag))
	}
	if n != len(rel.Columns) {
		return r.fail(fmt.Sprintf("row of relation %d has %d values, but the relation has %d columns", oid, n, len(rel.Columns)))
	}
	// Bounded by the relation's columns, which were counted in bytes received.
	if cap(d.values) < n {
		d.values = make([]Value, n)
	}
	values := d.values[:n]
	for i := range values {
		values[i] = r.value()
		if r.err != nil {
			return r.err
		}
	}
	if err := r.end(); err != nil {
		return err
	}
	ev.Kind = KindInsert
	ev.Row = Row{Relation: rel, Values: values}
	return nil
}

// relation replaces the relation cached under the OID. Also an identical
// repetition makes a new one: it is rare, and comparing would save nothing.
func (d *Decoder) relation(r *reader, ev *Event) error {
	rel := &Relation{
		OID:       r.uint32(),
		Namespace: string(r.cstring()),
		Name:      string(r.cstring()),
	}
	if rel.Namespace == "" {
		rel.Namespace = "pg_catalog" // sent as an empty name
	}
	r.byte() // replica identity
	n := int(r.uint16())
	if r.err != nil {
		return r.err
	}
	// Flags, a name's terminator, type and modifier: a count that the message
	// cannot hold allocates nothing.
	const smallest = 1 + 1 + 4 + 4
	if n*smallest > r.left() {
		return r.fail(fmt.Sprintf("the relation announces %d columns, which do not fit into the message", n))
	}
	rel.Columns = make([]Column, n)
	for i := range rel.Columns {
		c := &rel.Columns[i]
		c.Key = r.byte()&1 != 0
		c.Name = string(r.cstring())
		c.TypeOID = r.uint32()
		c.TypeMod = int32(r.uint32())
		if base, ok := d.domains[c.TypeOID]; ok {
			c.TypeOID = base
		}
		if r.err != nil {
			return r.err
		}
	}
	if err := r.end(); err != nil {
		return err
	}
	d.relations[rel.OID] = rel
	d.last = nil
	ev.Kind, ev.Relation = KindRelation, rel
	return nil
}

// baseTypes are the built-in types that mean something to a reader beyond their
// text; a domain over one of them is read as its base type.
var baseTypes = map[string]uint32{
	"bytea": 17, "int8": 20, "int2": 21, "int4": 23, "date": 1082, "timestamp": 1114, "timestamptz": 1184,
	"json": 114, "jsonb": 3802,
}

// typ remembers domains. A Type message precedes the Relation that uses the
// type, and gives a domain's OID with the name of its base type, whose
// namespace is empty when it is pg_catalog.
func (d *Decoder) typ(r *reader) error {
	oid := r.uint32()
	namespace := r.cstring()
	name := r.cstring()
	if err := r.end(); err != nil {
		return err
	}
	base, ok := baseTypes[string(name)]
	if ok && len(namespace) == 0 {
		d.domains[oid] = base
	} else {
		delete(d.domains, oid)
	}
	return nil
}
