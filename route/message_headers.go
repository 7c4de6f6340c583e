package route

import (
	"fmt"
	"strconv"

	"github.com/cdc-relay/cdc-relay/sink"
)

// maxHeaders bounds what a body, which anybody may have written, can make the
// relay keep.
const maxHeaders = 1000

// fillHeaders sets id, type, those of the body in its order, lsn and seq: the
// order of a row's.
func (r *MessageRouter) fillHeaders(rec *sink.Record) (reason string) {
	kind, reason := r.text(memberType)
	if reason != "" {
		return reason
	}
	r.headers = append(r.headers, sink.Header{Key: r.cfg.IDHeader, Value: rec.ID}, sink.Header{Key: r.cfg.TypeHeader, Value: kind})
	if r.body.has(memberHeaders) {
		if reason := r.bodyHeaders(r.body[memberHeaders]); reason != "" {
			return reason
		}
	}
	if r.cfg.Position {
		hexLSN(&r.lsn, uint64(rec.LSN))
		r.headers = append(r.headers,
			sink.Header{Key: LSNHeader, Value: r.lsn[:]},
			sink.Header{Key: SeqHeader, Value: strconv.AppendUint(r.seq[:0], uint64(rec.Seq), 10)})
	}
	rec.Headers = r.headers
	return ""
}

func (r *MessageRouter) bodyHeaders(raw []byte) (reason string) {
	if raw[0] != '{' {
		return `"headers" is not an object`
	}
	c := cutter{content: raw}
	seen := make(map[string]bool)
	for n := 1; c.next(); n++ {
		if n > maxHeaders {
			return fmt.Sprintf(`"headers" has more than %d members`, maxHeaders)
		}
		text, ok := c.name()
		if !ok || len(text) == 0 {
			return fmt.Sprintf(`the name of header %d of "headers" is empty, or no text`, n)
		}
		name := r.names.intern(text)
		if r.cfg.cloudEvents() {
			if problem := extensionProblem(name); problem != "" {
				return fmt.Sprintf(`the name of header %d of "headers" %s`, n, problem)
			}
			name = r.names.intern(append(append(r.attribute[:0], AttributePrefix...), name...))
		}
		switch {
		case r.reserved[name]:
			return fmt.Sprintf(`"headers" has %q, which the relay itself adds`, name)
		case seen[name]:
			return fmt.Sprintf(`header %d of "headers" has the name of an earlier one`, n)
		}
		seen[name] = true
		h := sink.Header{Key: name}
		if value := c.value(); !isNull(value) {
			if h.Value, reason = r.textOf(value); reason != "" {
				return fmt.Sprintf(`header %d of "headers" %s`, n, reason)
			}
		}
		r.headers = append(r.headers, h)
	}
	return ""
}

// headerInterner makes one string per header name, within a bound.
type headerInterner struct{ names map[string]string }

func (in *headerInterner) intern(name []byte) string {
	if s, ok := in.names[string(name)]; ok {
		return s
	}
	const longest = 256 // of a name worth keeping
	s := string(name)
	if len(s) > longest {
		return s
	}
	if in.names == nil || len(in.names) >= internLimit {
		in.names = make(map[string]string)
	}
	in.names[s] = s
	return s
}
