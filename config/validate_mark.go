package config

import (
	"time"

	"github.com/cdc-relay/cdc-relay/route"
)

// smallestMarkMemory holds some thousand rows: less would have each of them waited
// for.
const smallestMarkMemory = 1 << 20

func (v *validator) markRows(c Config) {
	m := c.Mark
	v.check(m.BatchRows >= 1 && m.BatchRows <= 100_000, "mark.batch_rows", "%d is out of range; use 1 to 100000", m.BatchRows)
	v.check(m.LockTimeout >= time.Millisecond, "mark.lock_timeout", "%s must be at least 1ms", m.LockTimeout)
	v.check(m.MaxBytes >= smallestMarkMemory, "mark.max_bytes", "%s must be at least %s", m.MaxBytes, Bytes(smallestMarkMemory))
	if m.Column == "" {
		v.check(m.Value == "", "mark.column", "needed with mark.value: name the column of the outbox tables that is set to it")
		return
	}
	if err := checkIdentifier(m.Column); err != nil {
		v.fail("mark.column", "%v", err)
	}
	v.check(m.Value != "", "mark.value", "needed with mark.column: what a published row gets there, such as completed")
	v.check(c.Sink != "null", "mark.column", "with sink: null would mark rows that were never published")
	v.check(len(c.Outbox) > 0, "mark.column", "there is no outbox table; logical messages have no row that could be marked")
	for i, o := range c.Outbox {
		t, err := o.Route()
		if err != nil {
			continue // told otherwise
		}
		for _, u := range t.Uses() {
			v.check(u.Column != m.Column || u.Role == route.RoleHeader || u.Role == route.RoleType, "mark.column",
				"%q is mapped as %s of %s (outbox[%d]), which must stay as it was written", m.Column, u.Role, o.Table, i)
		}
	}
}
