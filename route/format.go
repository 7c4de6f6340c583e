package route

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cdc-relay/cdc-relay/sink"
)

// Format is how an event is laid out in a record. Key, topic and partition are the
// same in all of them.
type Format string

const (
	// FormatRaw has the payload's bytes as the value, and the rest in headers.
	FormatRaw Format = "raw"
	// FormatJSON has an object as the value, see envelope, and the headers of raw.
	FormatJSON Format = "json"
	// FormatCloudEvents has the payload's bytes as the value and the attributes of
	// CloudEvents 1.0 as headers: the binary content mode of the Kafka protocol binding,
	// section 3.2 of cloudevents/bindings/kafka-protocol-binding.md in cloudevents/spec. Names
	// are prefixed with ce_, and both names and values are UTF-8 as they are: nothing is
	// percent-encoded, which is a rule of the binding for HTTP alone.
	FormatCloudEvents Format = "cloudevents"
)

// Names of the headers of FormatCloudEvents. Extra headers get the prefix as well.
const (
	AttributePrefix       = "ce_"
	CloudEventID          = AttributePrefix + "id"
	CloudEventType        = AttributePrefix + "type"
	attributeSpecVersion  = AttributePrefix + "specversion"
	attributeSource       = AttributePrefix + "source"
	attributeSubject      = AttributePrefix + "subject"
	attributeTime         = AttributePrefix + "time"
	attributePartitionKey = AttributePrefix + "partitionkey"
	attributeAggregate    = AttributePrefix + "aggregatetype"
	contentTypeHeader     = "content-type"
)

// Layout is the format and what it needs. The zero value is FormatRaw.
type Layout struct {
	Format Format
	// Source of CloudEvents, a URI-reference: together with the id it names an event
	// anywhere, so there is none to fall back on.
	Source string
	// ContentType of the payload in CloudEvents; "" : by the type of the payload.
	ContentType string
}

func (l Layout) raw() bool         { return l.Format == "" || l.Format == FormatRaw }
func (l Layout) cloudEvents() bool { return l.Format == FormatCloudEvents }

// problems are what is wrong with it.
func (l Layout) problems() []string {
	var list []string
	switch l.Format {
	case "", FormatRaw, FormatJSON:
		if l.Source != "" || l.ContentType != "" {
			list = append(list, "source and content_type are of the format cloudevents alone; leave them out, or give that format")
		}
		return list
	case FormatCloudEvents:
	default:
		return append(list, fmt.Sprintf("format %q is not known; use raw, json or cloudevents", l.Format))
	}
	if l.Source == "" {
		list = append(list, "the format cloudevents needs a source, a URI-reference that names this producer among all, such as /orders or https://example.com/orders")
	} else if _, err := url.Parse(l.Source); err != nil || strings.ContainsFunc(l.Source, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"<>\^{|}`+"`", r) }) {
		list = append(list, fmt.Sprintf("source %q is no URI-reference; percent-encode what one cannot hold", l.Source))
	}
	switch {
	case strings.HasPrefix(strings.ToLower(l.ContentType), "application/cloudevents"):
		list = append(list, fmt.Sprintf("content_type %q tells readers that the value holds a whole event; give the type of the payload", l.ContentType))
	case l.ContentType != "" && (!strings.Contains(l.ContentType, "/") || !isAttribute([]byte(l.ContentType))):
		list = append(list, fmt.Sprintf("content_type %q is no media type, such as application/json", l.ContentType))
	}
	return list
}

// extensionProblem says why a header cannot be an extension attribute; "" when it can.
// The specification allows a-z and 0-9.
func extensionProblem(name string) string {
	switch name {
	case "id", "source", "specversion", "type", "subject", "time", "datacontenttype", "dataschema", "data", "partitionkey", "aggregatetype":
		return "is an attribute that the relay itself sets, or that means something else in CloudEvents"
	case "":
		return "is empty"
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "cannot be an attribute of CloudEvents, whose names are made of a-z and 0-9 alone"
		}
	}
	return ""
}

// isAttribute tells whether text can be the value of an attribute: UTF-8 without
// control characters and noncharacters.
func isAttribute(text []byte) bool {
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if c < ' ' || c == 0x7f {
				return false
			}
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n <= 1 || r <= 0x9f || r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef {
			return false
		}
		i += n
	}
	return true
}

// payloadKind is what a payload is to a format.
type payloadKind uint8

const (
	payloadText payloadKind = iota
	payloadJSON
	payloadBytes
)

func payloadKindOf(typeOID uint32) payloadKind {
	switch typeOID {
	case oidJSON, oidJSONB:
		return payloadJSON
	case oidBytea:
		return payloadBytes
	}
	return payloadText
}

func (k payloadKind) contentType() string {
	switch k {
	case payloadJSON:
		return "application/json"
	case payloadBytes:
		return "application/octet-stream"
	}
	return "text/plain; charset=utf-8"
}

// event is what the formats say of an event. A nil text is not there.
type event struct {
	kind, aggregate, key []byte
	micros               int64 // since the Unix epoch
	payload              payloadKind
}

// rfc3339 has microseconds, which is all that PostgreSQL knows.
const rfc3339 = "2006-01-02T15:04:05.000000Z"

// lastMicros is the end of the year 9999, the last of RFC 3339.
const lastMicros = 253_402_300_800_000_000 - 1

const reasonLate = "it is after the year 9999, which the format cannot say"

func appendTime(dst []byte, micros int64) []byte {
	return time.UnixMicro(micros).UTC().AppendFormat(dst, rfc3339)
}

// formatter lays records out. Its buffers are valid until the next record.
type formatter struct {
	layout  Layout
	source  []byte
	content []byte
	value   []byte
	time    []byte
	headers []sink.Header
}

func newFormatter(l Layout) *formatter {
	return &formatter{layout: l, source: []byte(l.Source), content: []byte(l.ContentType)}
}

// apply turns a record in FormatRaw into one of the layout. own are how many of its
// headers are id and type, and position how many at their end are lsn and seq. What it
// returns when it cannot is the part, and the reason, which shows nothing of the event.
func (f *formatter) apply(rec *sink.Record, e event, own, position int) (part, reason string) {
	switch f.layout.Format {
	case FormatJSON:
		if rec.Value == nil {
			return "", "" // a tombstone stays one
		}
		return f.envelope(rec, e)
	case FormatCloudEvents:
		return f.attributes(rec, e, own, position)
	}
	return "", ""
}

// envelope makes the value: an object with id, type, aggregate, key, time and payload in
// this order. The JSON of a payload is in it byte for byte, and always its last member.
func (f *formatter) envelope(rec *sink.Record, e event) (part, reason string) {
	for _, text := range []struct {
		name  string
		bytes []byte
	}{{"id", rec.ID}, {"type", e.kind}, {"aggregate", e.aggregate}, {"key", e.key}} {
		if !utf8.Valid(text.bytes) {
			return text.name, "it is not UTF-8, which JSON needs"
		}
	}
	if e.payload != payloadBytes && !utf8.Valid(rec.Value) {
		return "payload", "it is not UTF-8, which JSON needs"
	}
	need := len(rec.Value) + len(rec.ID) + len(e.kind) + len(e.aggregate) + len(e.key) + 160
	if e.payload == payloadBytes {
		need += len(rec.Value)/3 + 4
	}
	out := f.value[:0]
	if need > cap(out) || cap(out) > keepBuffer && need < cap(out)/4 {
		out = make([]byte, 0, need)
	}
	out = appendJSON(append(out, `{"id":`...), rec.ID)
	out = appendJSON(append(out, `,"type":`...), e.kind)
	out = appendJSON(append(out, `,"aggregate":`...), e.aggregate)
	out = appendJSON(append(out, `,"key":`...), e.key)
	out = append(appendTime(append(out, `,"time":"`...), e.micros), '"')
	switch e.payload {
	case payloadJSON:
		out = append(append(out, `,"payload":`...), rec.Value...)
	case payloadBytes:
		out = append(out, `,"payload_encoding":"base64","payload":"`...)
		out = append(base64.StdEncoding.AppendEncode(out, rec.Value), '"')
	default:
		out = appendJSON(append(out, `,"payload":`...), rec.Value)
	}
	f.value = append(out, '}')
	rec.Value = f.value
	return "", ""
}

// appendJSON appends a string, or null for nil. Only what JSON demands is escaped.
func appendJSON(dst, text []byte) []byte {
	const hex = "0123456789abcdef"
	if text == nil {
		return append(dst, "null"...)
	}
	dst = append(dst, '"')
	from := 0
	for i, c := range text {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, text[from:]...), '"')
}

var (
	specVersion  = []byte("1.0")
	contentTypes = [...][]byte{
		payloadText:  []byte(payloadText.contentType()),
		payloadJSON:  []byte(payloadJSON.contentType()),
		payloadBytes: []byte(payloadBytes.contentType()),
	}
)

// attributes makes the headers. The id is the first, as in every format. lsn and seq say
// where this copy is and are no attributes; they keep their names.
func (f *formatter) attributes(rec *sink.Record, e event, own, position int) (part, reason string) {
	const unfit = "it cannot be an attribute of CloudEvents: it is empty or NULL, not UTF-8, or has a control character"
	old := rec.Headers
	f.headers = f.headers[:0]
	set := func(name string, value []byte, required bool) {
		if len(value) == 0 && !required {
			return
		}
		if len(value) == 0 || !isAttribute(value) {
			if part == "" {
				part, reason = strings.TrimPrefix(name, AttributePrefix), unfit
			}
			return
		}
		f.headers = append(f.headers, sink.Header{Key: name, Value: value})
	}
	set(CloudEventID, rec.ID, true)
	set(attributeSpecVersion, specVersion, true)
	set(attributeSource, f.source, true)
	set(CloudEventType, e.kind, true)
	set(attributeSubject, e.key, false)
	f.time = appendTime(f.time[:0], e.micros)
	set(attributeTime, f.time, true)
	set(attributePartitionKey, e.key, false)
	set(attributeAggregate, e.aggregate, false)
	if content := f.content; rec.Value != nil {
		if len(content) == 0 {
			content = contentTypes[e.payload]
		}
		set(contentTypeHeader, content, true)
	}
	for _, h := range old[own : len(old)-position] {
		set(h.Key, h.Value, false)
	}
	f.headers = append(f.headers, old[len(old)-position:]...)
	rec.Headers = f.headers
	return part, reason
}
