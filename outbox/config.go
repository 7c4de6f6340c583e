package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Mode says what stays of an event in the database.
type Mode int

const (
	// Keep leaves the row in the table.
	Keep Mode = iota
	// Ephemeral deletes the row in the transaction that inserts it. The relay publishes
	// it all the same, since its publication has inserts only. Nothing is left to look
	// at, to repair from or to verify.
	Ephemeral
	// Message writes a logical message into the WAL, and needs no table. The database's
	// encoding must be UTF8, the relay needs messages.prefix, and the role EXECUTE on
	// pg_logical_emit_message. A slot that is lost takes its messages with it.
	Message
)

// Config describes an outbox. The zero value is the table public.outbox in the
// default shape.
type Config struct {
	Mode     Mode
	Table    Table    // with Keep and Ephemeral
	Messages Messages // with Message
	Limits   Limits
	// TraceParent returns the W3C traceparent of the context, "" for none; it goes to
	// the header traceparent, where there is a place for it. What is malformed is left
	// out: a trace must not fail an order. Default: ContextWithTraceParent's. With
	// OpenTelemetry:
	//
	//	func(ctx context.Context) string {
	//		c := propagation.MapCarrier{}
	//		propagation.TraceContext{}.Inject(ctx, c)
	//		return c["traceparent"]
	//	}
	TraceParent func(context.Context) string
}

// PayloadType is the type of the payload column.
type PayloadType int

const (
	JSONB PayloadType = iota // the default shape; does not keep the text as it was given
	JSON
	Text
	Bytea
)

// Table describes the table as it is and as the relay maps it. Names are unquoted, as
// in the catalog.
type Table struct {
	Schema string // "" : public
	Name   string // "" : outbox
	// Columns is taken as a whole: the zero value is DefaultColumns.
	Columns Columns
	Payload PayloadType
	// TextID says that the id column is text, and takes any id.
	TextID bool
	// Headers are columns of type text that the relay maps as headers, by the name of the
	// header: "traceparent" is filled from the context.
	Headers map[string]string
}

// Columns are names of columns; "" for one that the table does not have.
type Columns struct {
	ID            string // required; with a unique index, for idempotency keys
	AggregateType string
	AggregateID   string
	Type          string
	Payload       string // required
	Topic         string // the relay's columns.topic; every event then needs a Topic
	Key           string // the relay's columns.key, where that is not AggregateID
}

// DefaultColumns are those of the table that `cdc-relay setup` makes.
func DefaultColumns() Columns {
	return Columns{ID: "id", AggregateType: "aggregatetype", AggregateID: "aggregateid", Type: "type", Payload: "payload"}
}

// Messages describes logical messages as the relay reads them.
type Messages struct {
	Prefix string // the relay's messages.prefix
	// Topic says that the relay's messages.topic has {topic} in it: every event then
	// needs a Topic. Otherwise a body with a topic would halt the relay, so none is
	// written.
	Topic bool
	// Reserved are the headers that the relay adds itself; a body with one of them would
	// halt it. nil: its defaults, id, eventType, lsn and seq.
	Reserved []string
}

// Outbox writes events as configured. It is immutable.
type Outbox struct {
	cfg      Config
	reserved map[string]bool
	headers  []string // of the table, in the order of their columns
	sql      statements
}

// New returns an outbox, or every problem of the configuration at once. It does not
// look at the database.
func New(c Config) (*Outbox, error) {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf("outbox: "+format, args...)) }
	c.Limits = c.Limits.withDefaults()
	if c.TraceParent == nil {
		c.TraceParent = fromContext
	}
	o := &Outbox{cfg: c, reserved: map[string]bool{}}
	switch c.Mode {
	case Keep, Ephemeral:
		if c.Messages.Prefix != "" || c.Messages.Topic || c.Messages.Reserved != nil {
			add("Messages is given, and the mode writes rows; set Mode: outbox.Message, or leave it out")
		}
		o.table(add)
	case Message:
		o.messages(add)
	default:
		add("Mode %d is unknown", c.Mode)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return o, nil
}

func (o *Outbox) table(add func(string, ...any)) {
	t := &o.cfg.Table
	if t.Schema == "" {
		t.Schema = "public"
	}
	if t.Name == "" {
		t.Name = "outbox"
	}
	if t.Columns == (Columns{}) {
		t.Columns = DefaultColumns()
	}
	c := t.Columns
	if c.ID == "" || c.Payload == "" {
		add("Table.Columns needs ID and Payload; begin with outbox.DefaultColumns()")
	}
	if t.Payload < JSONB || t.Payload > Bytea {
		add("Table.Payload %d is unknown", t.Payload)
	}
	t.Headers = maps.Clone(t.Headers)
	o.headers = slices.Sorted(maps.Keys(t.Headers))
	seen := map[string]bool{}
	names := []string{t.Schema, t.Name}
	for _, column := range o.columns() {
		if seen[column] {
			add("the column %q is used twice", column)
		}
		seen[column] = true
		names = append(names, column)
	}
	for _, name := range names {
		if name == "" || len(name) > 63 || strings.ContainsRune(name, 0) || !utf8.ValidString(name) {
			add("%q is no name of a schema, a table or a column", name)
		}
	}
	o.sql = compile(*t, o.columns())
}

// columns returns what is inserted, in the order of the values.
func (o *Outbox) columns() []string {
	t, c := o.cfg.Table, o.cfg.Table.Columns
	columns := []string{c.ID}
	for _, name := range []string{c.AggregateType, c.AggregateID, c.Type, c.Payload, c.Topic, c.Key} {
		if name != "" {
			columns = append(columns, name)
		}
	}
	for _, header := range o.headers {
		columns = append(columns, t.Headers[header])
	}
	return columns
}

func (o *Outbox) messages(add func(string, ...any)) {
	m := o.cfg.Messages
	if m.Prefix == "" || strings.ContainsRune(m.Prefix, 0) || !utf8.ValidString(m.Prefix) {
		add("Messages.Prefix must be that of the relay's messages.prefix")
	}
	t := o.cfg.Table
	if t.Schema != "" || t.Name != "" || t.Columns != (Columns{}) || len(t.Headers) > 0 || t.Payload != JSONB || t.TextID {
		add("Table is given, and messages need none; leave it out")
	}
	reserved := m.Reserved
	if reserved == nil {
		reserved = []string{"id", "eventType", "lsn", "seq"}
	}
	for _, name := range reserved {
		o.reserved[name] = true
	}
}
