package check

import (
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
)

// retention tells whether the running relay could delete published rows.
func (r *report) retention(w Want, f Facts) {
	if w.AgeColumns == nil {
		return
	}
	const name = "retention"
	bad := false
	fail := func(fix, format string, args ...any) {
		r.add(name, Fail, fix, format, args...)
		bad = true
	}
	if len(f.MissingPrivileges) > 0 {
		role := catalog.Ident(f.Server.Role.Name)
		fail("GRANT "+strings.Join(f.MissingPrivileges, " TO "+role+"; GRANT ")+" TO "+role, "the role may not: %s", strings.Join(f.MissingPrivileges, ", "))
	}
	for i, t := range w.Tables {
		table := catalog.TableName{Schema: t.Schema, Name: t.Name}
		if pt, ok := f.Publication.Table(table); ok && pt.RowFilter != "" {
			fail("ALTER PUBLICATION without WHERE, or retention.mode: none", "the publication has a row filter on %s: rows that it leaves out are never published, so nothing is deleted", table)
		}
		ct := f.Tables[table]
		if ct == nil {
			continue
		}
		switch c, ok := ct.Column(w.AgeColumns[i]); {
		case !ok:
			fail("correct retention.column or outbox[].columns.timestamp", "table %s has no column %q to tell a row's age", table, w.AgeColumns[i])
		case !slices.Contains(catalog.AgeTypes, c.BaseTypeOID):
			fail("name a column that is timestamptz, timestamp, date, bigint or integer", "column %q of table %s is %s, which tells no time", c.Name, table, c.TypeName)
		}
	}
	switch n := len(checkpoint.Uncovered(f.Mark.Gaps, f.Covered)); {
	case n > 0:
		fail("publish what they may hold by cdc-relay backfill, which closes them", "%d gap(s) are open: rows that may never have been published are not told from the others, so nothing is deleted", n)
	case len(f.Mark.Gaps) > 0 && !bad:
		r.add(name, Warn, "restart the relay when it suits", "%d gap(s) are covered by a backfill and close at the relay's next start; until then nothing is deleted", len(f.Mark.Gaps))
		return
	}
	if !bad {
		r.pass(name, "published rows can be deleted")
	}
}
