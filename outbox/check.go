package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// prepared is an event that was checked.
type prepared struct {
	Event          // with its ID, and the trace among its Headers
	keyed bool     // the ID is that of the idempotency key
	names []string // of the headers, sorted
}

// check looks at all events before any is written, and completes them.
func (o *Outbox) check(ctx context.Context, events []Event) ([]prepared, error) {
	trace := o.cfg.TraceParent(ctx)
	if !isTraceParent(trace) || !o.hasHeader(TraceHeader) {
		trace = ""
	}
	out := make([]prepared, len(events))
	for i, e := range events {
		c := checker{o: o, p: prepared{Event: e}}
		c.names()
		c.texts()
		c.headers(trace)
		c.payload()
		c.id()
		if c.refusal != nil {
			c.refusal.Event = i
			return nil, c.refusal
		}
		out[i] = c.p
	}
	return out, nil
}

// hasHeader tells whether there is a place for a header.
func (o *Outbox) hasHeader(name string) bool {
	if o.cfg.Mode == Message {
		return !o.reserved[name]
	}
	return o.cfg.Table.Headers[name] != ""
}

// checker keeps the first refusal of one event.
type checker struct {
	o       *Outbox
	p       prepared
	refusal *Refusal
}

func (c *checker) refuse(field string, reason error, format string, args ...any) {
	if c.refusal == nil {
		c.refusal = &Refusal{Field: field, Detail: fmt.Sprintf(format, args...), Reason: reason}
	}
}

// place checks a text that the outbox has a place for, or has not.
func (c *checker) place(field, value string, has bool) {
	switch {
	case !has && value != "":
		c.refuse(field, ErrNoPlace, "")
	case has && value == "":
		c.refuse(field, ErrEmpty, "")
	}
}

// names checks that each text has its place, and what topics are made of.
func (c *checker) names() {
	e, t, m := c.p.Event, c.o.cfg.Table.Columns, c.o.cfg.Messages
	byTopic := t.Topic != ""
	if c.o.cfg.Mode == Message {
		byTopic = m.Topic
		c.place("Type", e.Type, true)
		// The body has one member for both.
		switch {
		case e.AggregateID == "" && e.Key == "":
			c.refuse("AggregateID", ErrEmpty, "")
		case e.AggregateID != "" && e.Key != "" && e.AggregateID != e.Key:
			c.refuse("Key", ErrNoPlace, "a message has no key beside AggregateID")
		}
		if e.AggregateType == "" && !byTopic {
			c.refuse("AggregateType", ErrEmpty, "")
		}
	} else {
		c.place("AggregateType", e.AggregateType, t.AggregateType != "")
		c.place("AggregateID", e.AggregateID, t.AggregateID != "")
		c.place("Type", e.Type, t.Type != "")
		c.place("Key", e.Key, t.Key != "")
	}
	c.place("Topic", e.Topic, byTopic)
	if byTopic {
		c.topic("Topic", e.Topic, maxTopic)
		return
	}
	c.topic("AggregateType", e.AggregateType, maxAggregateType)
}

func (c *checker) topic(field, name string, longest int) {
	if len(name) > longest {
		c.refuse(field, ErrTopic, "it is %d bytes long, and at most %d are possible", len(name), longest)
	}
	if field == "Topic" && (name == "." || name == "..") {
		c.refuse(field, ErrTopic, "it is only dots")
	}
	for i := range len(name) {
		switch b := name[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '.', b == '_', b == '-':
		default:
			c.refuse(field, ErrTopic, "byte %d cannot be in it", i+1)
		}
	}
}

func (c *checker) texts() {
	e := c.p.Event
	for _, f := range []struct{ name, value string }{
		{"AggregateType", e.AggregateType}, {"AggregateID", e.AggregateID}, {"Type", e.Type}, {"Key", e.Key},
		{"ID", e.ID}, {"IdempotencyKey", e.IdempotencyKey},
	} {
		c.text(f.name, f.value)
		if len(f.value) > maxText {
			c.refuse(f.name, ErrTooLarge, "it is %d bytes long, and the limit is %d", len(f.value), maxText)
		}
	}
}

func (c *checker) text(field, value string) {
	if !utf8.ValidString(value) || strings.IndexByte(value, 0) >= 0 {
		c.refuse(field, ErrText, "")
	}
}

func (c *checker) headers(trace string) {
	l, given := c.o.cfg.Limits, c.p.Headers
	if len(given) > l.Headers {
		c.refuse("Headers", ErrTooLarge, "there are %d, and the limit is %d", len(given), l.Headers)
		return
	}
	all, size := make(map[string]string, len(given)+1), 0
	if trace != "" {
		all[TraceHeader] = trace
	}
	// In a fixed order, so that the same event is always refused for the same reason.
	for _, name := range sortedNames(given) {
		value := given[name]
		size += len(name) + len(value)
		switch {
		case name == "":
			c.refuse("Headers", ErrEmpty, "the name of a header")
		case c.o.reserved[name]:
			c.refuse("Headers", ErrReserved, "%q", name)
		case !c.o.hasHeader(name):
			c.refuse("Headers", ErrNoPlace, "header %d of %d, in the order of their names", len(all)+1, len(given))
		}
		c.text("Headers", name)
		c.text("Headers", value)
		all[name] = value
	}
	if size > l.HeaderBytes {
		c.refuse("Headers", ErrTooLarge, "they have %d bytes together, and the limit is %d", size, l.HeaderBytes)
	}
	c.p.Headers, c.p.names = all, sortedNames(all)
}

func sortedNames(headers map[string]string) []string {
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (c *checker) payload() {
	p := c.p.Payload
	if p == nil {
		return
	}
	if limit := c.o.cfg.Limits.PayloadBytes; len(p) > limit {
		c.refuse("Payload", ErrTooLarge, "it has %d bytes, and the limit is %d", len(p), limit)
		return
	}
	if c.o.cfg.Mode == Message {
		if !utf8.Valid(p) {
			c.refuse("Payload", ErrText, "a message holds only UTF-8")
		}
		return
	}
	kind := c.o.cfg.Table.Payload
	if kind == Bytea {
		return
	}
	if !utf8.Valid(p) || bytes.IndexByte(p, 0) >= 0 {
		c.refuse("Payload", ErrText, "")
	}
	if kind == Text {
		return
	}
	if !json.Valid(p) {
		c.refuse("Payload", ErrJSON, "it is not valid JSON")
		return
	}
	if kind != JSONB {
		return
	}
	longer, ok := numbersInJSONB(p)
	if !ok {
		c.refuse("Payload", ErrJSON, "jsonb takes numbers of at most %d digits, and %d behind the point", maxIntegerDigits, maxFractionDigits)
	} else if limit := c.o.cfg.Limits.PayloadBytes; len(p)+longer > limit {
		c.refuse("Payload", ErrTooLarge, "jsonb prints its numbers without exponents, and it has %d bytes then; the limit is %d", len(p)+longer, limit)
	}
	if !escapesFitJSONB(p) {
		c.refuse("Payload", ErrJSON, `jsonb takes neither \u0000 nor half of a surrogate pair`)
	}
}

// escapesFitJSONB looks at the \u of JSON that is valid.
func escapesFitJSONB(p []byte) bool {
	high := -1 // where the second half must begin
	for i := 0; i < len(p); i++ {
		if high >= 0 && i == high && (p[i] != '\\' || p[i+1] != 'u') {
			return false
		}
		if p[i] != '\\' {
			continue
		}
		if p[i+1] != 'u' {
			i++
			continue
		}
		r, _ := strconv.ParseUint(string(p[i+2:i+6]), 16, 16)
		isLow := r >= 0xDC00 && r <= 0xDFFF
		if r == 0 || isLow != (high == i) {
			return false
		}
		i += 5
		if r >= 0xD800 && r <= 0xDBFF {
			high = i + 1
		}
	}
	return true
}

// id settles the identity.
func (c *checker) id() {
	e := &c.p.Event
	switch {
	case e.IdempotencyKey == "" && e.ID == "":
		e.ID = newID(time.Now())
	case e.IdempotencyKey != "" && e.ID != "":
		c.refuse("ID", ErrNoPlace, "an event with an IdempotencyKey gets its id from it")
	case e.IdempotencyKey != "" && c.o.cfg.Mode != Keep:
		c.refuse("IdempotencyKey", ErrKeyWithoutRow, "")
	case e.IdempotencyKey != "":
		e.ID, c.p.keyed = KeyID(e.IdempotencyKey), true
	case c.o.cfg.Mode != Message && !c.o.cfg.Table.TextID:
		id, ok := canonical(e.ID)
		if !ok {
			c.refuse("ID", ErrID, "")
		}
		e.ID = id
	}
}
