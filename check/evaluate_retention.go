package check

import (
	"slices"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
)

// retention tells whether the running relay could delete published rows.
func (r *report) retention(w Want, f Facts) {
	r.detached(w, f)
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
		if ct == nil || w.DropPartitions {
			continue
		}
		switch c, ok := ct.Column(w.AgeColumns[i]); {
		case !ok:
			fail("correct retention.column or outbox[].columns.timestamp", "table %s has no column %q to tell a row's age", table, w.AgeColumns[i])
		case !slices.Contains(catalog.AgeTypes, c.BaseTypeOID):
			fail("name a column that is timestamptz, timestamp, date, bigint or integer", "column %q of table %s is %s, which tells no time", c.Name, table, c.TypeName)
		}
	}
	gaps := checkpoint.OfRows(f.Mark.Gaps)
	switch n := len(checkpoint.Uncovered(gaps, f.Covered)); {
	case n > 0:
		fail("publish what they may hold by cdc-relay backfill, which closes them", "%d gap(s) are open: rows that may never have been published are not told from the others, so nothing is deleted", n)
	case len(gaps) > 0 && !bad:
		r.add(name, Warn, "restart the relay when it suits", "%d gap(s) are covered by a backfill and close at the relay's next start; until then nothing is deleted", len(gaps))
		return
	}
	if w.DropPartitions {
		partitions(w, f, fail)
	}
	switch {
	case bad:
	case w.DropPartitions:
		r.pass(name, "old partitions can be dropped")
	default:
		r.pass(name, "published rows can be deleted")
	}
}

// partitions tells what keeps them from being dropped, or made.
func partitions(w Want, f Facts, fail func(fix, format string, args ...any)) {
	for _, why := range f.NotByTime {
		fail("partition it by range of that column, or retention.mode: delete", "%s, so that no partition of it can be dropped", why)
	}
	role := catalog.Ident(f.Server.Role.Name)
	for _, t := range f.Partitioned {
		owner := catalog.Ident(t.Owner)
		if !t.MayOwn {
			fail("GRANT "+owner+" TO "+role+" (no GRANT on the table gives it)",
				"the role is not the owner of %s, %s, and may not become it by SET ROLE: only an owner may detach, drop and make partitions", t, t.Owner)
		}
		if w.PartitionInterval > 0 && !t.MayCreate {
			fail("GRANT CREATE ON SCHEMA "+catalog.Ident(t.Schema)+" TO "+owner, "the owner of %s, %s, may not make tables in schema %s", t, t.Owner, t.Schema)
		}
		if w.PartitionInterval > 0 && t.WholeDays() && w.PartitionInterval%(24*time.Hour) != 0 {
			fail("make retention.partition_interval whole days", "column %s of table %s is a date, and retention.partition_interval is %s", t.Column, t, w.PartitionInterval)
		}
		takesAny := func(p catalog.RangePartition) bool { return p.Default || !p.Readable() }
		if t.CoveredUntil().Equal(t.Now) && !slices.ContainsFunc(t.Partitions, takesAny) {
			if w.PartitionInterval > 0 {
				fail("start the relay, which makes it; or make it by hand", "table %s has no partition for rows of now: writers are refused until there is one", t)
			} else {
				fail("make it, or set retention.partition_interval and let the relay make it", "table %s has no partition for rows of now: writers are refused", t)
			}
		}
		for _, p := range t.Partitions {
			if p.Owner != t.Owner {
				fail("ALTER TABLE "+p.SQL()+" OWNER TO "+owner, "partition %s is owned by %s, and not by %s, so that it is not dropped", p, p.Owner, t.Owner)
			}
		}
	}
}

// detached tells of partitions that were detached and not dropped: by a relay that
// runs, or that was stopped in between.
func (r *report) detached(w Want, f Facts) {
	for _, d := range f.Detached {
		label := "detached partition " + d.TableName.String()
		switch {
		case d.Epoch != f.Mark.Epoch && f.HasMark:
			r.add(label, Warn, "drop it if its rows are published; to make it a partition again: "+d.WayBack(),
				"it was detached at %s, in epoch %d of the mark, which is %d now: it is not known whether all its rows are published, and the relay leaves it alone", d.LSN, d.Epoch, f.Mark.Epoch)
		case !w.DropPartitions:
			r.add(label, Warn, "set retention.mode: drop_partitions, or make it a partition again: "+d.WayBack(),
				"it was detached at %s, and is dropped by retention.mode: drop_partitions alone", d.LSN)
		default:
			r.add(label, Pass, "", "detached at %s; it is dropped when everything up to there is published", d.LSN)
		}
	}
}
