package route

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// member of a message's body.
type member uint8

const (
	memberID member = iota
	memberAggregateType
	memberAggregateID
	memberType
	memberTopic
	memberPayload
	memberHeaders
	memberPartition
	memberTimestamp
	members // how many there are
)

var memberNames = [members]string{
	"id", "aggregatetype", "aggregateid", "type", "topic", "payload", "headers", "partition", "timestamp",
}

// String returns the member as the body calls it.
func (m member) String() string { return memberNames[m] }

// memberByName returns members for a name that is none.
func memberByName(name []byte) member {
	for m, known := range memberNames {
		if string(name) == known {
			return member(m)
		}
	}
	return members
}

// body holds the JSON of each member as it stands in the message; nil for one
// that is not there.
type body [members][]byte

// has tells whether a member is there and not null.
func (b *body) has(m member) bool { return b[m] != nil && !isNull(b[m]) }

// parse cuts content into members, without a copy. What it returns when it cannot
// is the reason, which shows nothing of the content: neither a value, nor the
// name of a member that is not known.
func (b *body) parse(content []byte) (reason string) {
	*b = body{}
	if len(content) == 0 {
		return "its body is empty"
	}
	if i := invalidUTF8(content); i >= 0 {
		return fmt.Sprintf("its body is not UTF-8 from byte %d on", i+1)
	}
	if !json.Valid(content) {
		return "its body is not JSON" + syntaxErrorAt(content)
	}
	// From here on content is valid JSON, which is all that the cutting relies on.
	c := cutter{content: content}
	c.space()
	if content[c.at] != '{' {
		return "its body is JSON, but no object"
	}
	for c.next() {
		at := c.at
		name, ok := c.name()
		m := members
		if ok {
			m = memberByName(name)
		}
		if m == members {
			return fmt.Sprintf("its body has a member, at byte %d, that is not known; known are %s", at+1, knownMembers)
		}
		if b[m] != nil {
			return fmt.Sprintf("its body has %q twice, again at byte %d", m, at+1)
		}
		b[m] = c.value()
	}
	return ""
}

// knownMembers lists them for a person.
var knownMembers = func() string {
	list := ""
	for i, name := range memberNames {
		switch {
		case i == int(members)-1:
			list += " and "
		case i > 0:
			list += ", "
		}
		list += name
	}
	return list
}()

// invalidUTF8 returns the index of the first byte that is not UTF-8, or -1.
func invalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; ; {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
}

// syntaxErrorAt says where; the library's own words show a character.
func syntaxErrorAt(content []byte) string {
	var raw json.RawMessage
	var e *json.SyntaxError
	if err := json.Unmarshal(content, &raw); errors.As(err, &e) {
		return fmt.Sprintf(" from byte %d on", e.Offset)
	}
	return ""
}

// cutter walks over JSON that is known to be valid.
type cutter struct {
	content []byte
	at      int
}

func (c *cutter) space() {
	for ; c.at < len(c.content); c.at++ {
		switch c.content[c.at] {
		case ' ', '\t', '\r', '\n':
		default:
			return
		}
	}
}

// next goes from the opening brace, or from behind a value, to the next member,
// and tells whether there is one.
func (c *cutter) next() bool {
	if c.content[c.at] == '}' {
		return false
	}
	c.at++ // the brace or the comma
	c.space()
	return c.content[c.at] != '}'
}

// name cuts off a member's name with its colon. It is not ok for a name that is
// no text, see appendUnquoted.
func (c *cutter) name() (name []byte, ok bool) {
	lit := c.literal()
	c.space()
	c.at++ // the colon
	if plain, ok := unescaped(lit); ok {
		return plain, true
	}
	return appendUnquoted(nil, lit)
}

// value cuts off a value, and leaves at on the comma or brace that follows.
func (c *cutter) value() []byte {
	c.space()
	start := c.at
	switch c.content[c.at] {
	case '"':
		c.literal()
	case '{', '[':
		for depth := 0; ; {
			switch c.content[c.at] {
			case '"':
				c.literal()
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			c.at++
			if depth == 0 {
				break
			}
		}
	default: // a number, true, false or null
		for c.at < len(c.content) && !ends(c.content[c.at]) {
			c.at++
		}
	}
	value := c.content[start:c.at:c.at]
	c.space()
	return value
}

func ends(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\t', '\r', '\n':
		return true
	}
	return false
}

// literal cuts off a string with its quotes.
func (c *cutter) literal() []byte {
	start := c.at
	for c.at++; c.content[c.at] != '"'; c.at++ {
		if c.content[c.at] == '\\' {
			c.at++
		}
	}
	c.at++
	return c.content[start:c.at:c.at]
}

func isNull(value []byte) bool   { return value[0] == 'n' }
func isString(value []byte) bool { return value[0] == '"' }

// isWhole tells a number without fraction and exponent.
func isWhole(value []byte) bool {
	if value[0] != '-' && (value[0] < '0' || value[0] > '9') {
		return false
	}
	for _, c := range value[1:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// unescaped returns what is within the quotes of a string that has no escape.
func unescaped(lit []byte) ([]byte, bool) {
	if bytes.IndexByte(lit, '\\') >= 0 {
		return nil, false
	}
	return lit[1 : len(lit)-1 : len(lit)-1], true
}

// appendUnquoted appends the text that a string stands for. It is not ok for half
// of a surrogate pair, which is no character and has no bytes in UTF-8.
func appendUnquoted(dst, lit []byte) (out []byte, ok bool) {
	for i := 1; i < len(lit)-1; i++ {
		c := lit[i]
		if c != '\\' {
			dst = append(dst, c)
			continue
		}
		i++
		switch c = lit[i]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(lit[i+1:])
			i += 4
			if utf16.IsSurrogate(r) {
				if lit[i+1] != '\\' || lit[i+2] != 'u' {
					return dst, false
				}
				if r = utf16.DecodeRune(r, hex4(lit[i+3:])); r == utf8.RuneError {
					return dst, false
				}
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
		default: // a quote, a slash or a backslash
			dst = append(dst, c)
		}
	}
	return dst, true
}

// hex4 reads the four digits of an escape.
func hex4(b []byte) (r rune) {
	for _, c := range b[:4] {
		switch {
		case c <= '9':
			c -= '0'
		case c <= 'F':
			c -= 'A' - 10
		default:
			c -= 'a' - 10
		}
		r = r<<4 | rune(c)
	}
	return r
}
