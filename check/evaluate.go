package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/route"
)

const (
	runSetup       = "run cdc-relay setup"
	noDatabase     = "the database could not be asked"
	smallSlotLimit = 1024 // MB
)

// Evaluate judges the facts. It is pure.
func Evaluate(w Want, f Facts) []Result {
	r := &report{}
	for _, warning := range w.Warnings {
		key, text, _ := strings.Cut(warning, ": ")
		r.add(key, Warn, "", "%s", text)
	}
	if f.DatabaseErr != nil {
		r.fails("database", f.DatabaseErr, "")
		for _, name := range []string{"server", "role", "publication", "outbox tables", "slot", "mark"} {
			r.skip(name, noDatabase)
		}
	} else {
		r.pass("database", "connected to %s as %s", f.Server.Database, f.Server.Role.Name)
		r.server(w, f)
		r.limits(w, f)
		r.publication(w, f)
		for _, t := range w.Tables {
			r.table(f, t)
		}
		r.messages(w, f)
		r.slot(w, f)
		r.mark(w, f)
		r.history(w, f)
		r.retention(w, f)
		r.marking(w, f)
	}
	r.kafka(w, f)
	return r.results
}

func (r *report) server(w Want, f Facts) {
	s := f.Server
	if s.VersionNum < catalog.MinVersion {
		r.add("server version", Fail, "use PostgreSQL 13 or newer", "PostgreSQL %s is too old", s.Version)
	} else {
		r.pass("server version", "PostgreSQL %s", s.Version)
	}
	if s.InRecovery {
		r.add("primary", Fail, "connect to the primary", "the server is a standby, in recovery")
	} else {
		r.pass("primary", "the server takes writes, on timeline %d", s.Timeline)
	}
	if s.WALLevel != "logical" {
		r.add("wal_level", Fail, "set wal_level = logical and restart the server", "%s; the server cannot decode", s.WALLevel)
	} else {
		r.pass("wal_level", "logical")
	}
	if s.Encoding == "SQL_ASCII" {
		r.add("encoding", Warn, "use a database with a real encoding, such as UTF8", "SQL_ASCII: the server does not know what its text means, so it is published as it is")
	} else {
		r.pass("encoding", "%s", s.Encoding)
	}
	switch role := s.Role; {
	case !role.Replication:
		r.add("role", Fail, "ALTER ROLE "+catalog.Ident(role.Name)+" REPLICATION", "%s may not use replication", role.Name)
	case role.Superuser:
		r.add("role", Warn, "use a role with LOGIN and REPLICATION only", "%s is a superuser; the relay needs far less", role.Name)
	default:
		r.pass("role", "%s has REPLICATION", role.Name)
	}
	matches := preflight.MatchesSynchronous(s.SynchronousStandbyNames, w.Preflight.ApplicationName)
	fix := "leave this application_name out of synchronous_standby_names, or choose another source.application_name"
	switch {
	case matches && w.Preflight.AllowSynchronous:
		r.add("synchronous_standby_names", Warn, fix, "%s can match %q: commits of the application may wait for Kafka; source.allow_synchronous allows it",
			s.SynchronousStandbyNames, w.Preflight.ApplicationName)
	case matches:
		r.add("synchronous_standby_names", Fail, fix+", or set source.allow_synchronous: true if it is wanted",
			"%s can match %q: every commit of the application would wait for Kafka", s.SynchronousStandbyNames, w.Preflight.ApplicationName)
	default:
		r.pass("synchronous_standby_names", "does not match %q", w.Preflight.ApplicationName)
	}
}

func (r *report) limits(w Want, f Facts) {
	s := f.Server
	switch {
	case f.HasSlot:
		r.pass("max_replication_slots", "the slot exists; %d of %d in use", s.ReplicationSlots, s.MaxReplicationSlots)
	case s.ReplicationSlots >= s.MaxReplicationSlots:
		r.add("max_replication_slots", Fail, "raise max_replication_slots and restart the server, or drop a slot that is not used",
			"all %d are in use", s.MaxReplicationSlots)
	default:
		r.pass("max_replication_slots", "%d of %d in use", s.ReplicationSlots, s.MaxReplicationSlots)
	}
	if !f.Slot.Active && s.WALSenders >= s.MaxWALSenders {
		r.add("max_wal_senders", Fail, "raise max_wal_senders and restart the server", "all %d are in use", s.MaxWALSenders)
	} else {
		r.pass("max_wal_senders", "%d of %d in use", s.WALSenders, s.MaxWALSenders)
	}
	switch keep := s.MaxSlotWALKeepSize; {
	case keep < 0:
		r.add("max_slot_wal_keep_size", Warn, "set it to what the disk can spare, and watch the slot's lag",
			"no limit: while the relay or Kafka is away, WAL may fill the server's disk")
	case keep < smallSlotLimit:
		r.add("max_slot_wal_keep_size", Warn, "raise it to what is written in the longest outage that you expect",
			"%d MB: a short outage of the relay or Kafka can lose the slot", keep)
	default:
		r.pass("max_slot_wal_keep_size", "%d MB", keep)
	}
	if s.VersionNum >= 180000 {
		if s.IdleSlotTimeout > 0 {
			r.add("idle_replication_slot_timeout", Warn, "set it to 0, or longer than the longest stop of the relay that you expect",
				"%s: the server gives up the slot when the relay is stopped for that long", s.IdleSlotTimeout)
		} else {
			r.pass("idle_replication_slot_timeout", "off")
		}
	}
}

func (r *report) publication(w Want, f Facts) {
	p, name := f.Publication, w.Preflight.Publication
	quoted := catalog.Ident(name)
	if !f.HasPublication {
		fix := runSetup
		if f.HasSlot && f.HasMark { // setup makes none then: what the slot holds from before it cannot be decoded
			fix = catalog.CreatePublicationSQL(name, w.Preflight.Tables) + "; then " + preflight.Repaired
		}
		r.add("publication", Fail, fix, "%q does not exist", name)
		return
	}
	r.pass("publication", "%q exists, owned by %s", name, p.Owner)
	switch {
	case !p.Insert:
		r.add("publication inserts", Fail, "ALTER PUBLICATION "+quoted+" SET (publish = 'insert')", "%q does not publish inserts", name)
	case p.Update || p.Delete || p.Truncate:
		r.add("publication inserts", Warn, "ALTER PUBLICATION "+quoted+" SET (publish = 'insert')",
			"%q publishes more than inserts; the relay skips the rest, and updates and deletes need a replica identity", name)
	default:
		r.pass("publication inserts", "only inserts are published")
	}
	r.viaRoot(w, f)
	if p.AllTables {
		r.add("publication tables", Warn, "a publication FOR TABLE with only the outbox", "%q is FOR ALL TABLES: every table's inserts are sent to the relay, which skips them", name)
	} else if extra := extraTables(w, p); len(extra) > 0 {
		r.add("publication tables", Warn, "ALTER PUBLICATION "+quoted+" DROP TABLE for these", "%q also publishes %s, which the relay skips", name, strings.Join(extra, ", "))
	}
	if f.HasSlot {
		switch {
		case !f.MayFollow:
			r.pass("publication before slot", "%q was there before the slot's position", name)
		case f.asMarked():
			r.pass("publication before slot", "%q is as it was when the slot was marked", name)
		default:
			r.add("publication before slot", Warn, "if it was later, and not only altered: run cdc-relay adopt with a position after that, which records the gap, and publish the rows in doubt from the table (cdc-relay backfill)",
				"nothing proves that %q was there, as it is, before the slot: it was made or altered after the slot, or another slot or an open transaction held back the catalog horizon when the slot was made; "+
					"rows between the slot and a later publication cannot be decoded, or are not sent", name)
		}
	}
}

// asMarked tells that publication and tables are those that the mark recorded. That
// the publication came first was seen to when the slot was marked, and any change
// since is told by the mark.
func (f Facts) asMarked() bool {
	return f.HasMark && f.Mark.LSN != 0 && !catalog.Compare(f.Mark.Publication, f.Mark.Relations, f.Identities).Broken()
}

func (r *report) viaRoot(w Want, f Facts) {
	p := f.Publication
	if p.ViaRoot {
		r.pass("publication via root", "rows of partitions come under the name of their table")
		return
	}
	status, detail := Warn, "publish_via_partition_root is off; it matters once a table is partitioned"
	for _, t := range f.Tables {
		if t != nil && t.Kind == catalog.KindPartitioned {
			status, detail = Fail, fmt.Sprintf("publish_via_partition_root is off, so rows of %s.%s come under the names of its partitions, which are not mapped", t.Schema, t.Name)
		}
	}
	r.add("publication via root", status, "ALTER PUBLICATION "+catalog.Ident(w.Preflight.Publication)+" SET (publish_via_partition_root = true)", "%s", detail)
}

func extraTables(w Want, p catalog.Publication) []string {
	var extra []string
	for _, t := range p.Tables {
		if !slices.Contains(w.Preflight.Tables, catalog.TableName{Schema: t.Schema, Name: t.Name}) {
			extra = append(extra, t.Schema+"."+t.Name)
		}
	}
	if len(extra) > 5 {
		extra = append(extra[:5], fmt.Sprintf("and %d more", len(extra)-5))
	}
	return extra
}

func (r *report) table(f Facts, t route.Table) {
	label := "table " + t.String()
	name := catalog.TableName{Schema: t.Schema, Name: t.Name}
	ct := f.Tables[name]
	switch {
	case ct == nil:
		r.add(label, Fail, "create it, or run cdc-relay setup for public.outbox in the default shape; or correct outbox[].table", "does not exist")
		return
	case ct.Kind != catalog.KindTable && ct.Kind != catalog.KindPartitioned:
		r.add(label, Fail, "name a table in outbox[].table", "is not a table (relkind %q); only tables can be published", ct.Kind)
		return
	case ct.Persistence != catalog.Permanent:
		r.add(label, Fail, "ALTER TABLE "+name.SQL()+" SET LOGGED", "is unlogged or temporary; its rows are not in the WAL")
		return
	}
	for _, p := range ct.Partitions {
		if p.Kind != catalog.KindTable || p.Persistence != catalog.Permanent {
			r.add(label, Fail, "detach it, or make it an ordinary logged table", "its partition %s is foreign, unlogged or temporary; rows in it are not published", p.Name)
			return
		}
	}
	if ct.Kind == catalog.KindPartitioned {
		r.pass(label, "exists; partitions: %d", len(ct.Partitions))
	} else {
		r.pass(label, "exists")
	}
	var published *catalog.PublishedTable
	if f.HasPublication {
		published = r.published(f, name, label)
	}
	r.columns(label, t, ct, published)
}

func (r *report) published(f Facts, name catalog.TableName, label string) *catalog.PublishedTable {
	pt, ok := f.Publication.Table(name)
	switch {
	case !ok:
		fix := runSetup
		if f.HasSlot {
			fix = "ALTER PUBLICATION " + catalog.Ident(f.Publication.Name) + " ADD TABLE " + name.SQL() + ", then cdc-relay adopt, which records the gap"
		}
		r.add(label+" published", Fail, fix, "is not in publication %q", f.Publication.Name)
		return nil
	case pt.RowFilter != "":
		r.add(label+" published", Warn, "ALTER PUBLICATION without WHERE, unless it is wanted", "with the row filter %s: rows that do not match are never published", pt.RowFilter)
	case pt.Columns != nil:
		r.pass(label+" published", "with the columns %s", strings.Join(pt.Columns, ", "))
	default:
		r.pass(label+" published", "in %q", f.Publication.Name)
	}
	return &pt
}

func (r *report) columns(label string, t route.Table, ct *catalog.Table, published *catalog.PublishedTable) {
	bad := false
	fail := func(status Status, fix, format string, args ...any) {
		r.add(label+" columns", status, fix, format, args...)
		bad = true
	}
	for _, u := range t.Uses() {
		c, ok := ct.Column(u.Column)
		takes, accepts := t.Takes(u.Role, c.BaseTypeOID)
		switch {
		case !ok:
			fail(Fail, "correct the mapping, or add the column", "there is no column %q, which is mapped as %s; there are %s", u.Column, u.Role, columnNames(ct))
		case c.Generated:
			fail(Fail, "map another column", "column %q (%s) is generated, and so not published", u.Column, u.Role)
		case published != nil && published.Columns != nil && !slices.Contains(published.Columns, u.Column):
			fail(Fail, "add it to the publication's column list", "column %q (%s) is not in the publication's column list", u.Column, u.Role)
		case !takes:
			fail(Fail, "map a column of "+accepts, "column %q has type %s, which cannot be the %s", u.Column, c.TypeName, u.Role)
		case !c.NotNull && (u.Role == route.RoleID || u.Role == route.RoleTopic):
			fail(Warn, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", catalog.TableName{Schema: t.Schema, Name: t.Name}.SQL(), catalog.Ident(u.Column)),
				"column %q (%s) may be NULL; such a row cannot be published and halts the relay", u.Column, u.Role)
		}
	}
	if !bad {
		r.pass(label+" columns", "%s", strings.Join(t.Columns(), ", "))
	}
}

func columnNames(t *catalog.Table) string {
	names := make([]string, 0, len(t.Columns))
	for _, c := range t.Columns {
		names = append(names, c.Name)
	}
	if len(names) > 20 {
		names = append(names[:20], "...")
	}
	return strings.Join(names, ", ")
}
