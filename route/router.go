package route

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Tx is the transaction that a row belongs to.
type Tx struct {
	CommitLSN  pglogrepl.LSN
	CommitTime int64 // microseconds since the Unix epoch
	// Table says that the row was read from the table, and stands for no transaction:
	// the position is that of a snapshot, and seq the row's ordinal.
	Table bool
}

// Router routes the rows of one replication connection at a time. It is used by
// one goroutine.
type Router struct {
	tables map[tableName]*Table
	known  map[uint32]*Table   // by OID: what a mapped table is, whatever it was called
	bound  map[uint32]*binding // by OID; mapped tables only
	last   *binding            // of the last row, also of one that is not mapped
	skip   binding             // stands for whatever table is not mapped

	// What a record points to between Route and the next Route.
	buf   []byte // decoded bytea
	topic []byte
	lsn   [16]byte
	seq   [10]byte
	tx    pglogrepl.LSN // whose digits lsn holds
}

type tableName struct{ schema, name string }

// Compile validates the mapping and returns its router. The error names every
// problem at once and is of class fault.Stop.
func Compile(tables []Table) (*Router, error) {
	r := &Router{tables: make(map[tableName]*Table), bound: make(map[uint32]*binding)}
	hexLSN(&r.lsn, uint64(r.tx))
	var problems []error
	if len(tables) == 0 {
		problems = append(problems, errors.New("no outbox table is mapped"))
	}
	for _, t := range tables {
		if err := t.Validate(); err != nil {
			problems = append(problems, err)
		}
		name := tableName{t.Schema, t.Name}
		if r.tables[name] != nil {
			problems = append(problems, fmt.Errorf("outbox table %s: it is mapped twice", t))
		}
		r.tables[name] = &t
	}
	if err := errors.Join(problems...); err != nil {
		return nil, &fault.Error{Class: fault.Stop, What: "the outbox mapping cannot be used", Fix: "correct the outbox section of the configuration", Err: err}
	}
	return r, nil
}

// Nothing returns a router for which no table is mapped: only logical messages
// are published.
func Nothing() *Router { return &Router{bound: make(map[uint32]*binding)} }

// Know tells the OIDs of the mapped tables, by schema.name: rows from a time in which
// one of them had another name are its rows all the same. It replaces what was
// known before.
func (r *Router) Know(oids map[uint32]string) {
	r.known = make(map[uint32]*Table)
	for oid, name := range oids {
		for _, t := range r.tables {
			if t.String() == name {
				r.known[oid] = t
			}
		}
	}
}

// Relation binds the mapping to a table as the server described it; it must
// hear of every decoder.KindRelation, since a table that was renamed away is
// found by it. Tables that are not mapped are ignored. The error is of class
// fault.Stop and names the table and every column that is in the way.
func (r *Router) Relation(rel *decoder.Relation) error {
	t := r.tables[tableName{rel.Namespace, rel.Name}]
	if t == nil {
		t = r.known[rel.OID]
	}
	old := r.bound[rel.OID]
	if t == nil && old != nil {
		return fault.Stopped(
			fmt.Sprintf("rename the table back, or map %s.%s as an outbox table as well", rel.Namespace, rel.Name),
			"outbox table %s was renamed to %s.%s, which is not mapped; rows inserted into it since would not be published",
			old.table, rel.Namespace, rel.Name)
	}
	if t == nil {
		return nil
	}
	b, err := bind(t, rel)
	if err != nil {
		return err
	}
	if old != nil {
		b.topics = old.topics // legal names stay legal
	}
	r.bound[rel.OID] = b
	return nil
}

// Mapped returns the mapped table that a relation is, whatever that is called; nil
// when it is none. It knows the relations of rows that were routed.
func (r *Router) Mapped(rel *decoder.Relation) *Table {
	if b := r.bound[rel.OID]; b != nil {
		return b.table
	}
	return nil
}

// find returns the binding of a row's relation and remembers it.
func (r *Router) find(rel *decoder.Relation) (*binding, error) {
	b := r.bound[rel.OID]
	if b == nil || b.rel != rel {
		if err := r.Relation(rel); err != nil {
			return nil, err
		}
		b = r.bound[rel.OID]
	}
	if b == nil {
		r.skip.rel = rel
		b = &r.skip
	}
	r.last = b
	return b, nil
}

// source is a mapped column: where its value is and whether it is bytea. Its
// zero index is valid, so none stands for a column that is not mapped.
type source struct {
	index  int
	bytea  bool
	column string
}

const none = -1

// binding is the mapping of one table, bound to one version of it.
type binding struct {
	rel   *decoder.Relation
	table *Table // nil: not mapped

	id, key, payload, timestamp, partition source
	timestampOID                           uint32
	topic                                  []topicPart
	topics                                 interner
	fixedTopic                             string // the same for every row; "" when it is made of columns

	// headers holds the names; values of the columns, by headerSources, and
	// behind them lsn and seq are set for each row.
	headers       []sink.Header
	headerSources []source
	bytea         []int // indexes to make room for, once per use

	format          *formatter // nil: raw
	kind, aggregate source
	payloadKind     payloadKind
}

type topicPart struct {
	literal string
	source  source
}

// bind finds every mapped column and checks its type.
func bind(t *Table, rel *decoder.Relation) (*binding, error) {
	if err := checkColumns(t, rel); err != nil {
		return nil, err
	}
	b := &binding{rel: rel, table: t}
	find := func(column string) source { return b.source(column) }
	b.id, b.key, b.payload = find(t.ID), find(t.Key), find(t.Payload)
	b.timestamp, b.partition = find(t.Timestamp), find(t.Partition)
	if b.timestamp.index != none {
		b.timestampOID = rel.Columns[b.timestamp.index].TypeOID
	}
	if topic, ok := t.FixedTopic(); ok {
		b.fixedTopic = topic
	} else if t.TopicCol != "" {
		b.topic = []topicPart{{source: find(t.TopicCol)}}
	} else {
		parts, err := parseTemplate(t.Topic)
		if err != nil {
			return nil, fault.Stopped("correct the topic template", "topic template %q of table %s: %v", t.Topic, t, err)
		}
		for _, p := range parts {
			b.topic = append(b.topic, topicPart{literal: p.literal, source: find(p.column)})
		}
	}
	for _, name := range t.headerNames() {
		b.headers = append(b.headers, sink.Header{Key: name})
	}
	b.headerSources = []source{b.id}
	if t.Type != "" {
		b.headerSources = append(b.headerSources, find(t.Type))
	}
	for _, h := range t.Headers {
		b.headerSources = append(b.headerSources, find(h.Column))
	}
	if !t.raw() {
		b.format = newFormatter(t.Layout)
		b.kind, b.aggregate = find(t.Type), find(t.AggregateColumn())
		b.payloadKind = payloadKindOf(rel.Columns[b.payload.index].TypeOID)
	}
	for _, s := range append([]source{b.key, b.payload}, b.headerSources...) {
		if s.bytea {
			b.bytea = append(b.bytea, s.index)
		}
	}
	return b, nil
}

// source returns where column is; it exists, or it is "".
func (b *binding) source(column string) source {
	for i, c := range b.rel.Columns {
		if column != "" && c.Name == column {
			return source{index: i, bytea: c.TypeOID == oidBytea, column: column}
		}
	}
	return source{index: none}
}

// checkColumns reports every mapped column that is missing or of a type that
// its role cannot take.
func checkColumns(t *Table, rel *decoder.Relation) error {
	var missing, unusable, accepts []string
	for _, u := range t.Uses() {
		found := false
		for _, c := range rel.Columns {
			if c.Name != u.Column {
				continue
			}
			found = true
			if ok, takes := t.Takes(u.Role, c.TypeOID); !ok {
				unusable = append(unusable, fmt.Sprintf("column %q (type OID %d) cannot be used as %s", c.Name, c.TypeOID, u.Role))
				accepts = append(accepts, fmt.Sprintf("as %s use %s", u.Role, takes))
			}
		}
		if !found {
			missing = append(missing, fmt.Sprintf("it has no column %q, which is mapped as %s", u.Column, u.Role))
		}
	}
	if len(missing)+len(unusable) == 0 {
		return nil
	}
	var fixes []string
	if len(missing) > 0 {
		fixes = append(fixes, "bring the column back, or, if it was renamed or dropped on purpose, change outbox.columns (and topic, headers) "+
			"in the configuration and start again; a publication with a column list must list it")
	}
	fixes = append(fixes, accepts...)
	return fault.Stopped(strings.Join(fixes, "; "),
		"the rows of outbox table %s cannot be published: %s", t, strings.Join(append(missing, unusable...), "; "))
}
