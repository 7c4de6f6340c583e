package catalog

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/fault"
)

// Marking is a table, and which of its columns is set to what for rows that are
// published.
type Marking struct {
	Table  TableName
	ID     string // column by which a row is known
	Column string
	Value  string // as text
}

// GrantSQL lets a role mark rows.
func (m Marking) GrantSQL(role string) string {
	return fmt.Sprintf("GRANT SELECT (%s, %s), UPDATE (%s) ON %s TO %s", Ident(m.ID), Ident(m.Column), Ident(m.Column), m.Table.SQL(), Ident(role))
}

// MarkedTable is a table whose rows can be marked.
type MarkedTable struct {
	Marking
	// Indexed tells that an index begins with the id: without one each UPDATE reads
	// the whole table.
	Indexed bool
	update  string // takes the ids as text[]
	role    string
}

// markable is what decides whether rows of a table can be marked.
type markable struct {
	idType, type_, role                   string
	usage, selectID, selectColumn, update bool
	indexed, partitionKey                 bool
}

// MarkedTable finds out whether rows can be marked so, and how. An error of class
// fault.Stop says what is in the way. It changes nothing.
func (s *Session) MarkedTable(ctx context.Context, m Marking) (MarkedTable, error) {
	t, ok, err := s.Table(ctx, m.Table.Schema, m.Table.Name)
	if err != nil {
		return MarkedTable{}, err
	}
	if !ok {
		return MarkedTable{}, fault.Stopped("create it, or correct outbox[].table", "table %s does not exist", m.Table)
	}
	id, hasID := t.Column(m.ID)
	c, hasColumn := t.Column(m.Column)
	switch {
	case !hasID:
		return MarkedTable{}, fault.Stopped("correct outbox[].columns.id", "table %s has no column %q to know a row by", m.Table, m.ID)
	case !hasColumn:
		return MarkedTable{}, fault.Stopped("add it, or correct mark.column", "table %s has no column %q to mark published rows in", m.Table, m.Column)
	case c.Generated:
		return MarkedTable{}, fault.Stopped("name another mark.column", "column %q of table %s is generated, and cannot be set", m.Column, m.Table)
	}
	f, err := s.markable(ctx, t, id, c)
	if err != nil {
		return MarkedTable{}, err
	}
	switch {
	case !f.usage:
		return MarkedTable{}, fault.Stopped(fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s; %s", Ident(m.Table.Schema), Ident(f.role), m.GrantSQL(f.role)),
			"role %s may not use schema %s, and so not mark published rows of %s", f.role, m.Table.Schema, m.Table)
	case !f.selectID || !f.selectColumn || !f.update:
		return MarkedTable{}, fault.Stopped(m.GrantSQL(f.role), "role %s may not mark published rows of %s", f.role, m.Table)
	case f.partitionKey:
		return MarkedTable{}, fault.Stopped("partition the table by another column, or name another mark.column",
			"table %s is partitioned by column %q: a row that is marked would move to another partition, which is an insert there, and be published again", m.Table, m.Column)
	}
	if err := s.fits(ctx, m, c, f.type_); err != nil {
		return MarkedTable{}, err
	}
	only := "ONLY "
	if t.Kind == KindPartitioned {
		only = ""
	}
	value := fmt.Sprintf("CAST(%s AS %s)", Literal(m.Value), f.type_)
	return MarkedTable{Marking: m, Indexed: f.indexed, role: f.role, update: fmt.Sprintf("UPDATE %s%s SET %s = %s WHERE %s = ANY (($1::text[])::%s[]) AND %s IS DISTINCT FROM %s",
		only, m.Table.SQL(), Ident(m.Column), value, Ident(m.ID), f.idType, Ident(m.Column), value)}, nil
}

// markable asks for types without their length: a cast to one with a length would
// cut an id off. That a table is partitioned by a column, also in an expression, is
// a dependency of the column on the table.
func (s *Session) markable(ctx context.Context, t Table, id, column Column) (f markable, err error) {
	name := TableName{Schema: t.Schema, Name: t.Name}
	err = s.conn.QueryRow(ctx, `SELECT format_type($2::oid, -1), format_type($3::oid, -1), current_user::text,
			has_schema_privilege($4, 'USAGE'),
			has_column_privilege($1::oid, $5::text, 'SELECT'), has_column_privilege($1::oid, $6::text, 'SELECT'), has_column_privilege($1::oid, $6::text, 'UPDATE'),
			EXISTS (SELECT FROM pg_index x JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
				WHERE x.indrelid = $1::oid AND a.attname = $5 AND x.indisvalid AND x.indpred IS NULL),
			EXISTS (SELECT FROM pg_partition_tree($1::oid::regclass) p JOIN pg_partitioned_table k ON k.partrelid = p.relid
				JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = k.partrelid AND d.objsubid <> 0
					AND d.refclassid = d.classid AND d.refobjid = d.objid AND d.refobjsubid = 0 AND d.deptype = 'i'
				JOIN pg_attribute a ON a.attrelid = k.partrelid AND a.attnum = d.objsubid WHERE a.attname = $6)`,
		t.OID, id.BaseTypeOID, column.BaseTypeOID, t.Schema, id.Name, column.Name).
		Scan(&f.idType, &f.type_, &f.role, &f.usage, &f.selectID, &f.selectColumn, &f.update, &f.indexed, &f.partitionKey)
	if err != nil {
		return f, fmt.Errorf("look at what marks rows of %s: %w", name, err)
	}
	return f, nil
}

// fits tells whether the column can hold the value, whole, and tell it from others.
func (s *Session) fits(ctx context.Context, m Marking, c Column, baseType string) error {
	var cut bool
	err := s.conn.QueryRow(ctx, fmt.Sprintf("SELECT CAST(%s AS %s) IS DISTINCT FROM CAST(%s AS %s)", Literal(m.Value), c.TypeName, Literal(m.Value), baseType)).Scan(&cut)
	state := SQLState(err)
	switch {
	case state == "42883":
		return fault.Stopped("name a column of another type in mark.column", "column %q of table %s is %s, whose values cannot be compared", m.Column, m.Table, c.TypeName)
	case cut || len(state) == 5 && (state[:2] == "22" || state[:2] == "23"):
		return fault.Stopped("correct mark.value", "column %q of table %s is %s, which does not take the value %q", m.Column, m.Table, c.TypeName, m.Value)
	case err != nil:
		return fmt.Errorf("look at the value that marks rows of %s: %w", m.Table, err)
	}
	return nil
}

// BeginMarking makes this the session that marks rows. A lock is waited for for
// lockTimeout, and a statement runs for statementTimeout at most. What is marked is
// on disk when it is said so, whatever the database's setting: a position is
// confirmed on it. Where row-level security would leave rows out in silence, it makes
// the statement fail.
func (s *Session) BeginMarking(ctx context.Context, lockTimeout, statementTimeout time.Duration) error {
	_, err := s.conn.Exec(ctx, `SELECT set_config('lock_timeout', $1, false), set_config('statement_timeout', $2, false),
		set_config('synchronous_commit', 'on', false), set_config('row_security', 'off', false)`,
		fmt.Sprint(max(1, lockTimeout.Milliseconds())), fmt.Sprint(max(1, statementTimeout.Milliseconds())))
	if err != nil {
		return fmt.Errorf("prepare to mark rows: %w", err)
	}
	return nil
}

// MarkRows marks the rows with these ids, in a transaction of its own, and returns
// how many of them were not marked yet. A row that is gone is none. What is wrong is
// explained as in Explain; IsLocked tells of an error that passes by itself.
func (s *Session) MarkRows(ctx context.Context, t MarkedTable, ids []string) (int64, error) {
	// The ids as a parameter: a server that logs the statement of a failure would log
	// them all.
	tag, err := s.conn.Exec(ctx, t.update, pgx.QueryExecModeExec, ids)
	if err != nil {
		return 0, t.explain(err)
	}
	return tag.RowsAffected(), nil
}

// IsLocked tells that somebody else holds a lock that was waited for.
func IsLocked(err error) bool {
	state := SQLState(err)
	return state == "55P03" || state == "40P01"
}

func (t MarkedTable) explain(err error) error {
	class, _ := Classify(err)
	e := &fault.Error{Class: class, What: "published rows of " + t.Table.String() + " cannot be marked", Err: withoutData(err)}
	switch state := SQLState(err); {
	case IsLocked(err):
		e.What = "somebody holds a lock on published rows of " + t.Table.String() + " that are to be marked"
	case state == "42501":
		e.Fix = t.GrantSQL(t.role) + "; with row-level security on the table the role needs BYPASSRLS as well"
	case state == "55000":
		e.Fix = "if another publication publishes the table's updates, it needs a replica identity: ALTER TABLE " + t.Table.SQL() + " REPLICA IDENTITY ..., such as DEFAULT with a primary key"
	case strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23"):
		e.Class, e.Fix = fault.Stop, "see that the table takes the value of mark.value: its constraints, triggers and the column's type"
	}
	return e
}
