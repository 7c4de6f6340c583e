package setup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
)

// insufficientPrivilege is the SQLSTATE of a step that the role may not take.
const insufficientPrivilege = "42501"

func (r *run) checkServer() error {
	v := r.server
	switch {
	case v.InRecovery:
		return fault.Stopped("connect to the primary", "the server is a standby, which cannot be set up")
	case v.WALLevel != "logical":
		return fault.Stopped("ALTER SYSTEM SET wal_level = logical, then restart the server",
			"wal_level is %s, which cannot be decoded", v.WALLevel)
	case !v.Role.Replication:
		return fault.Stopped("ALTER ROLE "+catalog.Ident(v.Role.Name)+" REPLICATION (on Amazon RDS: GRANT rds_replication TO "+
			catalog.Ident(v.Role.Name)+")", "role %q lacks the REPLICATION attribute, without which it can use no slot", v.Role.Name)
	case r.Messages != "" && v.VersionNum < catalog.MessagesVersion:
		return fault.Stopped("empty messages.prefix, or use PostgreSQL 14 or newer", "PostgreSQL %s sends no logical messages to the relay: they came with 14", v.Version)
	case r.Failover && v.VersionNum < 170000:
		return fault.Stopped("turn off source.failover", "PostgreSQL %s has no failover slots: they came with 17", v.Version)
	}
	return nil
}

// checkTables reads the configured tables, and makes the default one where that
// was asked for.
func (r *run) checkTables(ctx context.Context) error {
	r.tables = nil
	for _, name := range r.Tables {
		t, ok, err := r.db.Table(ctx, name.Schema, name.Name)
		if err != nil {
			return err
		}
		if !ok {
			if t, err = r.missingTable(ctx, name); err != nil {
				return err
			}
		}
		if err := checkTable(name, t); err != nil {
			return err
		}
		r.tables = append(r.tables, t)
	}
	return nil
}

func (r *run) missingTable(ctx context.Context, name catalog.TableName) (catalog.Table, error) {
	if name != DefaultTable || !r.CreateTable {
		fix := "create it, or correct the name under outbox"
		if name == DefaultTable {
			fix += "; `cdc-relay setup --create-table` makes it in the default shape"
		}
		return catalog.Table{}, fault.Stopped(fix, "table %s does not exist in database %q", name, r.server.Database)
	}
	if err := r.applyMigrations(ctx); err != nil {
		if catalog.SQLState(err) == insufficientPrivilege {
			return catalog.Table{}, r.lacks(err, "create table "+name.String(), "GRANT CREATE ON SCHEMA public TO "+r.role())
		}
		return catalog.Table{}, err
	}
	t, ok, err := r.db.Table(ctx, name.Schema, name.Name)
	if err == nil && !ok {
		err = fault.Stopped("create the table by the SQL of `cdc-relay setup --dry-run`",
			"the migrations were applied earlier, by %s, but table %s was dropped since", migrationsTable, name)
	}
	return t, err
}

func checkTable(name catalog.TableName, t catalog.Table) error {
	switch {
	case t.Kind != catalog.KindTable && t.Kind != catalog.KindPartitioned:
		return fault.Stopped("configure a table", "%s is not a table, so that its rows are not in the WAL", name)
	case t.Persistence != catalog.Permanent:
		return fault.Stopped("ALTER TABLE "+name.SQL()+" SET LOGGED",
			"table %s is unlogged or temporary: its rows are not in the WAL and would never be published", name)
	}
	for _, p := range t.Partitions {
		if p.Kind != catalog.KindTable || p.Persistence != catalog.Permanent {
			return fault.Stopped("detach it, or make it an ordinary logged table",
				"partition %s of table %s is foreign or unlogged: its rows are not in the WAL and would never be published", p.Name, name)
		}
	}
	return nil
}

// checkPublication verifies a publication that exists: it says what differs and
// how to alter it, and alters nothing itself.
func (r *run) checkPublication() error {
	name := catalog.Ident(r.Publication)
	var what, fix, missing, set []string
	if !r.pub.Insert {
		what = append(what, "does not publish inserts")
		set = append(set, "publish = 'insert'")
	}
	underOwnNames := !r.pub.ViaRoot &&
		slices.ContainsFunc(r.tables, func(t catalog.Table) bool { return t.Kind == catalog.KindPartitioned })
	for i, t := range r.Tables {
		if _, ok := r.pub.Table(t); ok {
			continue
		}
		if !r.pub.ViaRoot && r.publishesPartition(r.tables[i]) {
			continue // with the root in it, SET alone repairs it
		}
		missing = append(missing, t.String())
		fix = append(fix, fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", name, t.SQL()))
	}
	if underOwnNames {
		what = append(what, "publishes partitions under their own names")
		set = append(set, "publish_via_partition_root = true")
	}
	if len(missing) > 0 {
		what = append(what, "lacks table "+strings.Join(missing, ", "))
	}
	if len(set) > 0 {
		fix = append(fix, fmt.Sprintf("ALTER PUBLICATION %s SET (%s)", name, strings.Join(set, ", ")))
	}
	if len(what) > 0 {
		consequence := ""
		if r.exists {
			consequence = "; rows inserted before that are not streamed, which `cdc-relay adopt` then records as a gap"
		}
		return fault.Stopped("run as its owner "+r.pub.Owner+": "+strings.Join(fix, "; ")+consequence,
			"publication %q %s, so that events would never be published", r.Publication, strings.Join(what, " and "))
	}
	r.notePublication()
	return nil
}

func (r *run) publishesPartition(t catalog.Table) bool {
	return slices.ContainsFunc(r.pub.Tables, func(pt catalog.PublishedTable) bool {
		return slices.ContainsFunc(t.Partitions, func(p catalog.Partition) bool { return p.OID == pt.OID })
	})
}

// notePublication says what is allowed but may surprise.
func (r *run) notePublication() {
	name := catalog.Ident(r.Publication)
	if r.pub.Update || r.pub.Delete || r.pub.Truncate {
		r.say("note: publication %q publishes more than inserts, which the relay skips; less WAL is decoded after: "+
			"ALTER PUBLICATION %s SET (publish = 'insert'). The relay stops at that change and asks for `cdc-relay adopt`", r.Publication, name)
	}
	for _, t := range r.Tables {
		pt, _ := r.pub.Table(t)
		if pt.RowFilter != "" {
			r.say("note: publication %q has a row filter for %s; rows that it excludes are not published: %s",
				r.Publication, t, pt.RowFilter)
		}
		if pt.Columns != nil {
			r.say("note: publication %q publishes only these columns of %s: %s", r.Publication, t, strings.Join(pt.Columns, ", "))
		}
	}
}

// noteMessages says what it means to publish logical messages.
func (r *run) noteMessages() {
	if r.Messages != "" {
		r.say("note: logical messages with the prefix %q are published. Any role of the database may emit one, unless EXECUTE on "+
			"pg_logical_emit_message was revoked from PUBLIC: `cdc-relay check` tells", r.Messages)
	}
}

// noteMarking says what is in the way of marking published rows. It is no reason not
// to set up: the relay says so again, and the rest works without.
func (r *run) noteMarking(ctx context.Context) error {
	for _, m := range r.Marking {
		_, err := r.db.MarkedTable(ctx, m)
		switch {
		case err == nil:
			r.say("note: published rows of %s get %q in column %q; where the relay runs as another role it needs: %s", m.Table, m.Value, m.Column, m.GrantSQL("cdc_relay"))
		case fault.ClassOf(err) == fault.Stop:
			r.say("warning: published rows cannot be marked: %v", err)
		default:
			return err
		}
	}
	return nil
}

// checkSlot verifies that the slot is one that the relay can read.
func (r *run) checkSlot() error {
	s := r.slot
	way := "choose another source.slot, or drop it: SELECT pg_drop_replication_slot(" + catalog.Literal(r.Slot) + ")"
	switch {
	case s.Type != "logical" || s.Plugin != catalog.Plugin:
		return fault.Stopped(way, "slot %q is %s %s, and the relay reads only a logical slot of %s", s.Name, s.Type, s.Plugin, catalog.Plugin)
	case s.Database != r.server.Database:
		return fault.Stopped("choose another source.slot, or correct source.database",
			"slot %q belongs to database %q, and this is %q", s.Name, s.Database, r.server.Database)
	case s.Temporary:
		return fault.Stopped(way, "slot %q is temporary: it would be gone with the session that made it", s.Name)
	case s.TwoPhase:
		return fault.Stopped(way, "slot %q is two_phase, and would deliver prepared transactions before they are committed", s.Name)
	case s.Synced:
		return fault.Stopped("connect to the primary", "slot %q is kept in step from a primary, and cannot be used here", s.Name)
	case s.Lost():
		return fault.Stopped(preflight.Recover,
			"slot %q is lost (wal_status %s %s): the server removed WAL that was not read, and events from %s on were not streamed",
			s.Name, s.WALStatus, s.InvalidationReason, s.Confirmed)
	case s.Confirmed == 0:
		return fault.Stopped("wait until it is made, or end that session",
			"slot %q is still being created by process %d", s.Name, s.ActivePID)
	}
	return nil
}

func (r *run) role() string { return catalog.Ident(r.server.Role.Name) }

// lacks says which privilege a step needs.
func (r *run) lacks(err error, step, grant string) error {
	return &fault.Error{
		Class: fault.Stop,
		What:  fmt.Sprintf("role %q may not %s", r.server.Role.Name, step),
		Fix: grant + "; or run setup as the owner of the tables, whom CDC_RELAY_SOURCE_URL names; " +
			"or let a DBA run the SQL of `cdc-relay setup --dry-run`, then `cdc-relay setup --existing-slot`",
		Err: err,
	}
}
