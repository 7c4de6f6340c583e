package check

import (
	"strings"

	"github.com/cdc-relay/cdc-relay/catalog"
)

// messages looks at what logical messages need, and at who may emit one: whoever
// does writes to Kafka, and a body that is not as it must be halts the relay.
func (r *report) messages(w Want, f Facts) {
	if w.Messages == nil {
		return
	}
	s := f.Server
	if s.VersionNum < catalog.MessagesVersion {
		r.add("messages", Fail, "use PostgreSQL 14 or newer, or empty messages.prefix", "PostgreSQL %s sends no logical messages to the relay", s.Version)
		return
	}
	if s.Encoding == "UTF8" {
		r.pass("messages", "those with the prefix %q are published", w.Messages.Prefix)
	} else {
		r.add("messages", Warn, "emit them as convert_to(body, 'UTF8')",
			"the server does not convert messages, and the database's encoding is %s: a body that is not UTF-8 halts the relay", s.Encoding)
	}
	if f.Emitters.Public {
		r.add("messages emitters", Warn, strings.Join(f.Emitters.Revoke, "; ")+"; and GRANT it to the application's role",
			"any role of the database may emit a message: publish by it, and halt the relay by a malformed one")
	} else {
		r.pass("messages emitters", "not every role may emit one")
	}
}
