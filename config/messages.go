package config

import (
	"strings"

	"github.com/cdc-relay/cdc-relay/route"
)

// maxPrefix bounds a prefix, which PostgreSQL does not.
const maxPrefix = 255

// LogicalMessages returns which logical messages are published, of a
// configuration that is valid; nil for none.
func (c Config) LogicalMessages() *route.Messages {
	m := c.Messages
	if m.Prefix == "" {
		return nil
	}
	r := &route.Messages{Prefix: m.Prefix, Topic: m.Topic, IDHeader: m.IDHeader, TypeHeader: m.TypeHeader, Position: m.PositionHeaders,
		Layout: route.Layout{Format: route.Format(m.Format), Source: m.Source, ContentType: m.ContentType}}
	if c.Checkpoint.Store == "kafka" {
		r.Reserved = c.Checkpoint.Topic
	}
	return r
}

func (v *validator) messages(c Config) {
	m := c.Messages
	if m.Prefix == "" {
		v.check(m == Default().Messages, "messages.prefix", "is empty, so that no message is read, while other keys of messages are given; name the prefix, or leave all of them out")
		return
	}
	v.check(len(m.Prefix) <= maxPrefix && !strings.ContainsRune(m.Prefix, 0), "messages.prefix", "is longer than %d bytes, or holds a zero byte", maxPrefix)
	if route.Format(m.Format) == route.FormatCloudEvents {
		v.attributeHeaders("messages", m.IDHeader, m.TypeHeader)
	}
	// The router has the last word.
	if err := c.LogicalMessages().Validate(); err != nil {
		v.fail("messages", "%v", err)
	}
}
