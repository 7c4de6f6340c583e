// Package route turns a row of an outbox table into a Kafka record. It is pure,
// compiled once from configuration.
package route

import (
	"errors"
	"fmt"
	"slices"
)

// Table maps one outbox table. Column names are as in the catalog, unquoted.
type Table struct {
	Schema string
	Name   string

	ID        string // required: column whose value identifies the event
	Key       string // "" : null key
	Type      string // column for the type header; "" : none
	Payload   string // required
	TopicCol  string // column with the topic; exclusive with Topic
	Topic     string // template: literal text with {column} in it
	Timestamp string // "" : commit time
	Partition string // "" : by key

	IDHeader   string // header for the id; default "id"
	TypeHeader string // header for the type; default "type" when Type is mapped
	// Headers maps extra columns to header names, in this order.
	Headers []HeaderColumn
	// Position adds the headers lsn (commit LSN, 16 hex digits) and seq (ordinal
	// in its transaction).
	Position bool

	Layout
	// Aggregate is the column with the aggregate's type, which only formats other than
	// raw have; "" : that of the topic's template, if there is exactly one.
	Aggregate string
}

// HeaderColumn publishes a column as a header.
type HeaderColumn struct {
	Column string
	Header string
}

// Names of the headers that Position adds.
const (
	LSNHeader = "lsn" // commit LSN: 16 upper-case hex digits, which sort as text
	SeqHeader = "seq" // ordinal of the insert in its transaction, from 0, decimal
)

// String returns the table as schema.name.
func (t Table) String() string { return t.Schema + "." + t.Name }

// IDHeaderName returns the name of the header that carries the id.
func (t Table) IDHeaderName() string {
	if t.cloudEvents() {
		return CloudEventID
	}
	if t.IDHeader == "" {
		return "id"
	}
	return t.IDHeader
}

func (t Table) typeHeader() string {
	if t.cloudEvents() {
		return CloudEventType
	}
	if t.TypeHeader == "" {
		return "type"
	}
	return t.TypeHeader
}

// Validate reports every problem of the mapping at once, one per line; nil when
// there is none. It knows nothing of the catalog.
func (t Table) Validate() error {
	var problems []error
	add := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("outbox table %s: "+format, append([]any{t}, args...)...))
	}
	if t.Schema == "" || t.Name == "" {
		add("schema and name must both be given")
	}
	if t.ID == "" {
		add("no column is mapped as id; every event needs one, by which a consumer drops copies")
	}
	if t.Payload == "" {
		add("no column is mapped as payload")
	}
	if t.ID != "" && t.ID == t.Payload {
		add("column %q is mapped as both id and payload; ids are shown in logs and payloads never", t.ID)
	}
	switch {
	case t.TopicCol != "" && t.Topic != "":
		add("both a topic template (%q) and a topic column (%q) are given; give one of them", t.Topic, t.TopicCol)
	case t.TopicCol == "" && t.Topic == "":
		add("neither a topic template nor a topic column is given")
	case t.Topic != "":
		if _, err := parseTemplate(t.Topic); err != nil {
			add("topic template %q: %w", t.Topic, err)
		}
	}
	for _, problem := range t.problems() {
		add("%s", problem)
	}
	if t.cloudEvents() && t.Type == "" {
		add("no column is mapped as type, which the format cloudevents needs")
	}
	for _, h := range t.Headers {
		if problem := extensionProblem(h.Header); t.cloudEvents() && problem != "" {
			add("header %q %s; give it another name", h.Header, problem)
		}
		if h.Column == "" || h.Header == "" {
			add("an extra header needs a column and a name: column %q, header %q", h.Column, h.Header)
		}
	}
	seen := make(map[string]bool)
	for _, name := range t.headerNames() {
		if seen[name] && name != "" {
			add("header %q is produced twice; give one of them another name", name)
		}
		seen[name] = true
	}
	return errors.Join(problems...)
}

// headerNames returns the names of all headers, in the order of a record.
func (t Table) headerNames() []string {
	names := []string{t.IDHeaderName()}
	if t.Type != "" {
		names = append(names, t.typeHeader())
	}
	for _, h := range t.Headers {
		names = append(names, t.headerName(h.Header))
	}
	if t.Position {
		names = append(names, LSNHeader, SeqHeader)
	}
	return names
}

func (l Layout) headerName(name string) string {
	if l.cloudEvents() {
		return AttributePrefix + name
	}
	return name
}

// AggregateColumn is the column with the aggregate's type; "" when there is none, or
// the format has no place for it.
func (t Table) AggregateColumn() string {
	if t.raw() || t.Aggregate != "" {
		return t.Aggregate
	}
	column := ""
	parts, _ := parseTemplate(t.Topic)
	for _, p := range parts {
		if p.column != "" && column != "" && p.column != column {
			return ""
		}
		if p.column != "" {
			column = p.column
		}
	}
	return column
}

// Use is a column and what it is mapped to.
type Use struct {
	Column string
	Role   Role
}

// Uses returns every use of a column by the mapping, also those in the topic
// template, in a fixed order. A column that has two roles appears twice.
func (t Table) Uses() []Use {
	var uses []Use
	add := func(column string, role Role) {
		if u := (Use{column, role}); column != "" && !slices.Contains(uses, u) {
			uses = append(uses, u)
		}
	}
	add(t.ID, RoleID)
	add(t.Key, RoleKey)
	add(t.Type, RoleType)
	add(t.Payload, RolePayload)
	add(t.TopicCol, RoleTopic)
	parts, _ := parseTemplate(t.Topic) // what is wrong with it, Validate says
	for _, p := range parts {
		add(p.column, RoleTopic)
	}
	if !t.raw() {
		add(t.AggregateColumn(), RoleAggregate)
	}
	add(t.Timestamp, RoleTimestamp)
	add(t.Partition, RolePartition)
	for _, h := range t.Headers {
		add(h.Column, RoleHeader)
	}
	return uses
}

// Columns returns every mapped column once, also those in the topic template,
// in a fixed order.
func (t Table) Columns() []string {
	var columns []string
	for _, u := range t.Uses() {
		if !slices.Contains(columns, u.Column) {
			columns = append(columns, u.Column)
		}
	}
	return columns
}

// FixedTopic returns the topic when every row goes to the same one: a template
// without a column in it.
func (t Table) FixedTopic() (topic string, ok bool) {
	if t.TopicCol != "" {
		return "", false
	}
	parts, err := parseTemplate(t.Topic)
	if err != nil || len(parts) != 1 || parts[0].column != "" {
		return "", false
	}
	return t.Topic, true
}

// Identified returns the columns by which a record is found again, each once: the id,
// those that the topic is made of, the timestamp, and in the format cloudevents those
// that attributes are made of, without which a row is none that can be published. They
// are all that Route reads of a row whose other columns are NULL.
func (t Table) Identified() []string {
	var columns []string
	for _, u := range t.Uses() {
		switch u.Role {
		case RoleID, RoleTopic, RoleTimestamp:
		case RoleKey, RoleType, RoleAggregate, RoleHeader:
			if !t.cloudEvents() {
				continue
			}
		default:
			continue
		}
		if !slices.Contains(columns, u.Column) {
			columns = append(columns, u.Column)
		}
	}
	return columns
}
