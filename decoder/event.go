// Package decoder turns pgoutput messages (protocol version 1, text format)
// into events. It is pure: no I/O, no clock, no goroutine; it never panics,
// whatever the bytes, and copies no column.
package decoder

import (
	"github.com/jackc/pglogrepl"
)

// Kind tells which field of an Event is set.
type Kind uint8

const (
	// KindSkip is a message that the relay has no use for: Update, Delete,
	// Truncate, Type, Origin, and stream control that a server sends although
	// streaming is off.
	KindSkip Kind = iota
	KindBegin
	KindCommit
	KindRelation
	KindInsert
	KindMessage
)

// Event is one decoded message. What it points to is valid until the next
// Decode, except Relation, which stays valid.
type Event struct {
	Kind     Kind
	Begin    Begin
	Commit   Commit
	Relation *Relation
	Row      Row
	Message  LogicalMessage
}

// Begin opens a transaction. pgoutput sends it after the commit.
type Begin struct {
	CommitLSN  pglogrepl.LSN // start of the commit record
	CommitTime int64         // microseconds since the Unix epoch
	XID        uint32
}

// Commit closes a transaction.
type Commit struct {
	CommitLSN  pglogrepl.LSN
	EndLSN     pglogrepl.LSN // end of the commit record: what may be confirmed
	CommitTime int64         // microseconds since the Unix epoch
}

// Relation is a table as it was at that point of the WAL. Each Relation message
// makes a new one that replaces the cached one of the same OID, so a pointer
// compared is a version compared.
type Relation struct {
	OID       uint32
	Namespace string
	Name      string
	Columns   []Column
}

// Column of a Relation.
type Column struct {
	Name string
	// TypeOID is the column's type; for a domain over one of the built-in types
	// that have a meaning to a reader (see baseTypes) it is that base type.
	TypeOID uint32
	TypeMod int32
	Key     bool
}

// Row is an inserted row: one value per column of the relation.
type Row struct {
	Relation *Relation
	Values   []Value
}

// ValueKind says how a value was sent.
type ValueKind uint8

const (
	Null      ValueKind = 'n'
	Unchanged ValueKind = 'u' // TOAST; never in an insert
	Text      ValueKind = 't'
	Binary    ValueKind = 'b'
)

// Value is one column's value. Data points into the frame.
type Value struct {
	Kind ValueKind
	Data []byte
}

// LogicalMessage is what pg_logical_emit_message wrote.
type LogicalMessage struct {
	Transactional bool
	LSN           pglogrepl.LSN
	Prefix        []byte
	Content       []byte
}
