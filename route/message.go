package route

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Messages says which logical messages are published, and where to. The body of
// such a message, a JSON object, has the members of a row in the default shape.
type Messages struct {
	Prefix string // required: exactly that of the messages to publish
	// Topic is a template: literal text with {aggregatetype}, {type} or {topic} in
	// it. Only with {topic} may a body name its topic.
	Topic string
	// Reserved is a topic that no message may be published to; "" for none.
	Reserved string

	IDHeader   string
	TypeHeader string
	// Position adds the headers lsn and seq.
	Position bool

	Layout
}

// Validate reports every problem at once, one per line; nil when there is none.
func (m Messages) Validate() error {
	var problems []error
	add := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf(format, args...))
	}
	if m.Prefix == "" {
		add("the prefix is empty")
	}
	parts, err := m.parts()
	if err != nil {
		add("topic template %q: %w", m.Topic, err)
	}
	if len(parts) == 1 && parts[0].member == members && m.Topic == m.Reserved {
		add("the topic %q is not for events", m.Topic)
	}
	for _, problem := range m.problems() {
		add("%s", problem)
	}
	seen := make(map[string]bool)
	for _, name := range m.headerNames() {
		switch {
		case name == "":
			add("a header's name is empty")
		case seen[name]:
			add("header %q is produced twice; give one of them another name", name)
		}
		seen[name] = true
	}
	return errors.Join(problems...)
}

// headerNames are those of the relay's own headers, which no body may use.
func (m Messages) headerNames() []string {
	names := []string{m.IDHeader, m.TypeHeader}
	if m.cloudEvents() {
		names = []string{CloudEventID, CloudEventType}
	}
	if m.Position {
		names = append(names, LSNHeader, SeqHeader)
	}
	return names
}

// FixedTopic returns the topic when every message goes to the same one.
func (m Messages) FixedTopic() (topic string, ok bool) {
	parts, err := m.parts()
	return m.Topic, err == nil && len(parts) == 1 && parts[0].member == members
}

// messagePart of a topic: a literal, or a member of the body.
type messagePart struct {
	literal string
	member  member // members: none
}

func (m Messages) parts() ([]messagePart, error) {
	parsed, err := parseTemplate(m.Topic)
	if err != nil {
		return nil, err
	}
	var parts []messagePart
	for _, p := range parsed {
		part := messagePart{literal: p.literal, member: members}
		if p.column != "" {
			switch part.member = memberByName([]byte(p.column)); part.member {
			case memberAggregateType, memberType, memberTopic:
			default:
				return nil, fmt.Errorf("{%s} cannot be part of it; use {aggregatetype}, {type} or {topic}", p.column)
			}
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// MessageRouter turns logical messages into records. It is used by one
// goroutine.
type MessageRouter struct {
	cfg       Messages
	parts     []messagePart
	fixed     string // the topic, when it is the same for every message
	byTopic   bool   // the template has {topic}
	reserved  map[string]bool
	format    *formatter // nil: raw
	attribute [64]byte
	topics    interner
	names     headerInterner

	// What a record points to between Route and the next Route.
	body    body
	buf     []byte // texts that had escapes
	topic   []byte
	headers []sink.Header
	lsn     [16]byte
	seq     [10]byte
}

// CompileMessages validates the mapping and returns its router. The error names
// every problem at once and is of class fault.Stop.
func CompileMessages(m Messages) (*MessageRouter, error) {
	if err := m.Validate(); err != nil {
		return nil, &fault.Error{Class: fault.Stop, What: fmt.Sprintf("logical messages with the prefix %q cannot be published", m.Prefix), Fix: "correct the messages section of the configuration", Err: err}
	}
	r := &MessageRouter{cfg: m, reserved: make(map[string]bool)}
	if !m.raw() {
		r.format = newFormatter(m.Layout)
	}
	r.parts, _ = m.parts()
	if topic, ok := m.FixedTopic(); ok {
		r.fixed = topic
	}
	for _, p := range r.parts {
		r.byTopic = r.byTopic || p.member == memberTopic
	}
	for _, name := range m.headerNames() {
		r.reserved[name] = true
	}
	return r, nil
}

// CompileAll returns the routers of tables and of logical messages. There is
// something of either; messages may be nil, and then their router is.
func CompileAll(tables []Table, m *Messages) (r *Router, mr *MessageRouter, err error) {
	r = Nothing()
	if len(tables) > 0 || m == nil {
		if r, err = Compile(tables); err != nil {
			return nil, nil, err
		}
	}
	if m != nil {
		mr, err = CompileMessages(*m)
	}
	return r, mr, err
}

// AggregateType is that of the message that was routed last; nil when its body has
// none. It is valid as long as the record.
func (r *MessageRouter) AggregateType() (text []byte, ok bool) {
	text, reason := r.text(memberAggregateType)
	return text, reason == "" && text != nil
}

// Matches tells whether messages with the prefix are to be published.
func (r *MessageRouter) Matches(prefix []byte) bool { return string(prefix) == r.cfg.Prefix }

// Route fills rec from a message that Matches and is transactional; seq is its
// ordinal (from 0) among the rows and messages of tx.
//
// rec points into the message and into buffers of the router: it is valid until
// the next Route, or until the message's frame is reused. An error is of class
// fault.Poison: this message can never be published as it is. It shows no more of
// the message than its id.
func (r *MessageRouter) Route(tx Tx, seq uint32, m decoder.LogicalMessage, rec *sink.Record) error {
	*rec = sink.Record{LSN: tx.CommitLSN, Seq: seq}
	if cap(r.buf) > keepBuffer {
		r.buf = nil
	}
	r.buf, r.headers = r.buf[:0], r.headers[:0]
	reason := r.body.parse(m.Content)
	if reason == "" {
		reason = r.fill(tx, rec)
	} else if id, bad := r.text(memberID); bad == "" && len(id) > 0 {
		rec.ID = id // it stood before what cannot be read
	}
	if reason != "" {
		return r.poison(rec, reason)
	}
	return nil
}

func (r *MessageRouter) poison(rec *sink.Record, reason string) error {
	id := ""
	if rec.ID != nil {
		const longest = 100
		id = fmt.Sprintf(" (id %q)", rec.ID[:min(len(rec.ID), longest)])
	}
	return &fault.Error{Class: fault.Poison, What: fmt.Sprintf(
		"the message with the prefix %q, number %d in the transaction committed at %s%s, cannot be published: %s",
		r.cfg.Prefix, rec.Seq, rec.LSN, id, reason)}
}

// fill returns why it cannot, or "".
func (r *MessageRouter) fill(tx Tx, rec *sink.Record) (reason string) {
	if rec.ID, reason = r.text(memberID); reason != "" {
		return reason
	}
	if len(rec.ID) == 0 {
		rec.ID = nil
		return "its body has no \"id\", by which a consumer drops copies, or an empty one"
	}
	if rec.Topic, reason = r.route(); reason != "" {
		return reason
	}
	if rec.Key, reason = r.text(memberAggregateID); reason != "" {
		return reason
	}
	if rec.Value, reason = r.payload(); reason != "" {
		return reason
	}
	if rec.Partition, reason = r.partition(); reason != "" {
		return reason
	}
	if rec.Timestamp, reason = r.timestamp(tx); reason != "" {
		return reason
	}
	if reason = r.fillHeaders(rec); reason != "" || r.format == nil {
		return reason
	}
	return r.layOut(tx, rec)
}

// layOut lays the record out as the format says.
func (r *MessageRouter) layOut(tx Tx, rec *sink.Record) (reason string) {
	e := event{key: rec.Key, kind: r.headers[1].Value, micros: tx.CommitTime}
	if e.aggregate, reason = r.text(memberAggregateType); reason != "" {
		return reason
	}
	if r.body.has(memberTimestamp) {
		if e.micros, reason = r.micros(); reason != "" {
			return `"timestamp": ` + reason
		}
	}
	if r.body.has(memberPayload) && !isString(r.body[memberPayload]) {
		e.payload = payloadJSON
	}
	position := 0
	if r.cfg.Position {
		position = 2
	}
	part, reason := r.format.apply(rec, e, 2, position)
	if reason == "" {
		return ""
	}
	return fmt.Sprintf("%q: %s", part, reason)
}

// micros is timestamp, which has read it, in microseconds.
func (r *MessageRouter) micros() (micros int64, reason string) {
	raw := r.body[memberTimestamp]
	if isWhole(raw) {
		return recordMicros(raw, oidInt8)
	}
	text, reason := r.unquote(raw)
	if reason != "" {
		return 0, reason
	}
	at, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil || at.UTC().Year() > 9999 {
		return 0, reasonLate
	}
	return at.UnixMicro(), ""
}

// text returns the text of a member: what a string stands for, or a whole number's
// digits. It is nil for null and for a member that is not there, otherwise not
// nil.
func (r *MessageRouter) text(m member) (text []byte, reason string) {
	if !r.body.has(m) {
		return nil, ""
	}
	if text, reason = r.textOf(r.body[m]); reason != "" {
		return nil, fmt.Sprintf("%q %s", m, reason)
	}
	return text, ""
}

func (r *MessageRouter) textOf(value []byte) (text []byte, reason string) {
	switch {
	case isWhole(value):
		return value, ""
	case isString(value):
		return r.unquote(value)
	}
	return nil, "is neither a string nor a whole number"
}

// unquote returns the text of a string, not nil.
func (r *MessageRouter) unquote(lit []byte) (text []byte, reason string) {
	if plain, ok := unescaped(lit); ok {
		return plain, ""
	}
	start := len(r.buf)
	out, ok := appendUnquoted(r.buf, lit)
	r.buf = out
	if !ok {
		return nil, "has half of a surrogate pair in it, which is no character"
	}
	return out[start:len(out):len(out)], ""
}

func (r *MessageRouter) route() (topic, reason string) {
	if !r.byTopic && r.body.has(memberTopic) {
		return "", `it names a "topic", and messages.topic has no {topic} in it`
	}
	if r.fixed != "" {
		return r.fixed, ""
	}
	name := r.topic[:0]
	made := members // of which member, the last one
	for _, p := range r.parts {
		name = append(name, p.literal...)
		if p.member == members {
			continue
		}
		text, reason := r.text(p.member)
		switch {
		case reason != "":
			return "", reason
		case len(text) == 0:
			return "", fmt.Sprintf("its body has no %q, or an empty one, and the topic is made of it", p.member)
		case len(text) > maxTopic:
			return "", fmt.Sprintf("%q is %d bytes long and the topic is made of it; Kafka takes at most %d", p.member, len(text), maxTopic)
		}
		name = append(name, text...)
		if made == members || illegalAt(text) >= 0 {
			made = p.member
		}
	}
	r.topic = name
	if topic, reason = r.topics.intern(name); reason != "" {
		return "", fmt.Sprintf("the topic is made of %q and cannot be one: %s", made, reason)
	}
	if topic == r.cfg.Reserved {
		return "", fmt.Sprintf("its topic %q is not for events", topic)
	}
	return topic, ""
}

// payload is the value: a string's text, else the bytes of the JSON as they stand
// in the message.
func (r *MessageRouter) payload() (value []byte, reason string) {
	raw := r.body[memberPayload]
	switch {
	case raw == nil:
		return nil, `its body has no "payload"; give null for a record without a value`
	case isNull(raw):
		return nil, ""
	case !isString(raw):
		return raw, ""
	}
	if value, reason = r.unquote(raw); reason != "" {
		return nil, `"payload" ` + reason
	}
	return value, ""
}

func (r *MessageRouter) partition() (n int32, reason string) {
	if !r.body.has(memberPartition) {
		return sink.PartitionByKey, ""
	}
	raw := r.body[memberPartition]
	v, ok := parseInt(raw)
	if !isWhole(raw) || !ok || v < 0 || v > math.MaxInt32 {
		return 0, `"partition" is not a whole number from 0 to 2147483647`
	}
	return int32(v), ""
}

// timestamp reads milliseconds since 1970, or a time as PostgreSQL writes a
// timestamptz into JSON.
func (r *MessageRouter) timestamp(tx Tx) (ms int64, reason string) {
	if !r.body.has(memberTimestamp) {
		return floorDiv(tx.CommitTime, 1000), ""
	}
	raw := r.body[memberTimestamp]
	switch {
	case isWhole(raw):
		var ok bool
		if ms, ok = parseInt(raw); !ok {
			return 0, `"timestamp": ` + reasonNotInt
		}
	case isString(raw):
		text, reason := r.unquote(raw)
		at, err := time.Parse(time.RFC3339Nano, string(text))
		if reason != "" || err != nil {
			return 0, `"timestamp" is not a time with its zone, such as 2026-01-31T12:00:00.123456+00:00`
		}
		ms = at.UnixMilli()
	default:
		return 0, `"timestamp" is neither a time with its zone nor a whole number of milliseconds since 1970`
	}
	if ms < 0 {
		return 0, `"timestamp": ` + reasonBefore
	}
	return ms, ""
}
