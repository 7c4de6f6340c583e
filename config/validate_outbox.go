package config

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cdc-relay/cdc-relay/route"
)

var placeholder = regexp.MustCompile(`\{([^{}]*)\}`)

func (v *validator) outbox(c Config) {
	v.check(len(c.Outbox) > 0 || c.Messages.Prefix != "", "outbox", "is empty; name at least one table, or leave the key out for public.outbox; "+
		"only logical messages (messages.prefix) need none")
	seen := make(map[string]int)
	for i, o := range c.Outbox {
		path, before := fmt.Sprintf("outbox[%d]", i), len(v.problems)
		schema, name, err := splitTable(o.Table)
		if err != nil {
			v.fail(path+".table", "%v", err)
		} else {
			full := schema + "\x00" + name
			if first, dup := seen[full]; dup {
				v.fail(path+".table", "%s is given twice; it is also outbox[%d]", o.Table, first)
			}
			seen[full] = i
		}
		v.columns(path, o)
		v.template(path, o)
		v.headers(path, o)
		if len(v.problems) > before {
			continue
		}
		// The router has the last word.
		if t, err := o.Route(); err != nil {
			v.fail(path, "%v", err)
		} else if err := t.Validate(); err != nil {
			v.fail(path, "%v", err)
		}
	}
}

func (v *validator) columns(path string, o Outbox) {
	c := o.Columns
	v.check(c.ID != "", path+".columns.id", "is empty; each event needs an id, by which a consumer drops a copy")
	v.check(c.Payload != "", path+".columns.payload", "is empty; name the column with the record's value")
	if c.Key == unnamedKey {
		v.fail(path+".columns.key", `name the column with the record key, or give "" for records without a key, which have no order`)
		c.Key = ""
	}
	for _, n := range []struct{ key, column string }{
		{"id", c.ID}, {"key", c.Key}, {"type", c.Type}, {"payload", c.Payload},
		{"topic", c.Topic}, {"timestamp", c.Timestamp}, {"partition", c.Partition}, {"aggregate", c.Aggregate},
	} {
		if n.column == "" {
			continue
		}
		if err := checkIdentifier(n.column); err != nil {
			v.fail(path+".columns."+n.key, "%v", err)
		}
	}
}

func (v *validator) template(path string, o Outbox) {
	key := path + ".topic"
	switch {
	case o.Topic == "" && o.Columns.Topic == "":
		v.fail(key, "is empty; give a topic, or the column with it as columns.topic")
		return
	case o.Topic != "" && o.Columns.Topic != "":
		v.fail(key, "given beside columns.topic; give one of them")
		return
	case o.Topic == "":
		return
	}
	for _, m := range placeholder.FindAllStringSubmatch(o.Topic, -1) {
		if err := checkIdentifier(m[1]); err != nil {
			v.fail(key, "%q: the column in braces %v", o.Topic, err)
		}
	}
	literal := placeholder.ReplaceAllString(o.Topic, "")
	switch {
	case strings.ContainsAny(literal, "{}"):
		v.fail(key, "%q has a brace without its partner; write {column}", o.Topic)
	case literal == o.Topic:
		v.topic(key, literal)
	case literal != "" && !topicName.MatchString(literal):
		v.fail(key, "%q holds a character that no topic may have; use a-z, A-Z, 0-9, dot, _ and -", o.Topic)
	}
}

func (v *validator) headers(path string, o Outbox) {
	seen := make(map[string]string)
	add := func(key, header string) {
		switch first, dup := seen[header]; {
		case header == "":
			v.fail(key, "the header's name is empty")
		case dup:
			v.fail(key, "the header %q is also %s", header, first)
		default:
			seen[header] = key
		}
	}
	if o.PositionHeaders {
		seen["lsn"], seen["seq"] = path+".position_headers", path+".position_headers"
	}
	prefix := ""
	if route.Format(o.Format) == route.FormatCloudEvents {
		v.attributeHeaders(path, o.IDHeader, o.TypeHeader)
		prefix = route.AttributePrefix
	} else {
		add(path+".id_header", o.IDHeader)
		if o.Columns.Type != "" {
			add(path+".type_header", o.TypeHeader)
		}
	}
	for _, column := range sortedKeys(o.Headers) {
		key := path + ".headers." + column
		if err := checkIdentifier(column); err != nil {
			v.fail(key, "%v", err)
		}
		if o.Headers[column] == "" {
			add(key, "")
			continue
		}
		add(key, prefix+o.Headers[column])
	}
}

// attributeHeaders refuses other names for the headers of the format cloudevents.
func (v *validator) attributeHeaders(path, id, kind string) {
	v.check(id == route.CloudEventID, path+".id_header", "given with the format cloudevents, which has the id in the header %s; leave it out", route.CloudEventID)
	v.check(kind == route.CloudEventType, path+".type_header", "given with the format cloudevents, which has the type in the header %s; leave it out", route.CloudEventType)
}
