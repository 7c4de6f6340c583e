package config

import (
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/route"
)

// shapeRule is the rule of applyShape for the reference and the example.
const shapeRule = "The default shape is a table with the columns id, aggregatetype, aggregateid, type and payload. " +
	"As long as the topic is made of {aggregatetype}, columns that are not named keep these names. " +
	"Give another topic (topic without {aggregatetype}, or columns.topic) and name one of columns.id, key, type or payload, " +
	"and the table has a shape of your own: id and payload still keep their names when they are not named, " +
	"there is no type header unless columns.type is named, and columns.key must be named, or given as the empty string for records without a key (which have no order)."

// unnamedKey stands for a key column that must be named and was not. No column
// can have this name.
const unnamedKey = "\x00"

// applyShape fills in the columns that were not given, by shapeRule. given tells
// whether a key, relative to the table, was given.
func (o *Outbox) applyShape(given func(key string) bool) {
	if o.Columns.Topic != "" && !given("topic") {
		o.Topic = ""
	}
	o.IDHeader, o.TypeHeader = attributeHeaders(o.Format, o.IDHeader, o.TypeHeader, given)
	own := given("columns.id") || given("columns.key") || given("columns.type") || given("columns.payload")
	if !own || strings.Contains(o.Topic, "{aggregatetype}") {
		return
	}
	if !given("columns.type") {
		o.Columns.Type = ""
	}
	if !given("columns.key") {
		o.Columns.Key = unnamedKey
	}
}

// attributeHeaders are those of the format cloudevents, which cannot be given other
// names: a name that was given stays, and is refused.
func attributeHeaders(format, id, kind string, given func(key string) bool) (idHeader, typeHeader string) {
	if route.Format(format) == route.FormatCloudEvents {
		if !given("id_header") {
			id = route.CloudEventID
		}
		if !given("type_header") {
			kind = route.CloudEventType
		}
	}
	return id, kind
}

// Route returns the table as the router and the catalog take it.
func (o Outbox) Route() (route.Table, error) {
	schema, name, err := splitTable(o.Table)
	if err != nil {
		return route.Table{}, err
	}
	t := route.Table{
		Schema: schema, Name: name,
		ID: o.Columns.ID, Key: o.Columns.Key, Type: o.Columns.Type, Payload: o.Columns.Payload,
		TopicCol: o.Columns.Topic, Topic: o.Topic,
		Timestamp: o.Columns.Timestamp, Partition: o.Columns.Partition,
		IDHeader: o.IDHeader, TypeHeader: o.TypeHeader, Position: o.PositionHeaders,
		Layout: route.Layout{Format: route.Format(o.Format), Source: o.Source, ContentType: o.ContentType}, Aggregate: o.Columns.Aggregate,
	}
	for _, column := range sortedKeys(o.Headers) {
		t.Headers = append(t.Headers, route.HeaderColumn{Column: column, Header: o.Headers[column]})
	}
	return t, nil
}

// Tables returns the outbox tables of a configuration that is valid.
func (c Config) Tables() []route.Table {
	tables := make([]route.Table, 0, len(c.Outbox))
	for _, o := range c.Outbox {
		if t, err := o.Route(); err == nil {
			tables = append(tables, t)
		}
	}
	return tables
}

// splitTable reads schema.table. A part in double quotes may hold dots; no part
// is folded to lower case.
func splitTable(s string) (schema, name string, err error) {
	var parts []string
	for rest := s; ; {
		part, after, err := splitName(rest)
		if err != nil {
			return "", "", err
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		rest = after[1:]
	}
	switch len(parts) {
	case 1:
		return "public", parts[0], nil
	case 2:
		return parts[0], parts[1], nil
	}
	return "", "", fmt.Errorf("%q has more than one dot; write schema.table, and a name with a dot in it in double quotes", s)
}

// splitName takes one name off s; after begins with the dot, or is "".
func splitName(s string) (name, after string, err error) {
	if !strings.HasPrefix(s, `"`) {
		i := strings.IndexByte(s, '.')
		if i < 0 {
			i = len(s)
		}
		name, after = s[:i], s[i:]
	} else {
		var b strings.Builder
		i := 1
		for ; i < len(s); i++ {
			if s[i] == '"' {
				if i+1 < len(s) && s[i+1] == '"' {
					i++
				} else {
					break
				}
			}
			b.WriteByte(s[i])
		}
		if i >= len(s) {
			return "", "", fmt.Errorf("%q has no closing double quote", s)
		}
		if name, after = b.String(), s[i+1:]; after != "" && after[0] != '.' {
			return "", "", fmt.Errorf("%q goes on after its closing double quote", s)
		}
	}
	if err := checkIdentifier(name); err != nil {
		return "", "", err
	}
	if after == "." {
		return "", "", fmt.Errorf("%q ends in a dot; write schema.table", s)
	}
	return name, after, nil
}

// checkIdentifier checks the name of a thing in PostgreSQL.
func checkIdentifier(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty")
	case len(name) > 63:
		return fmt.Errorf("%q is longer than 63 bytes, PostgreSQL's limit for a name", name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("%q holds a zero byte", name)
	}
	return nil
}
