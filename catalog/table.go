package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// TableName is a table as in the catalog, unquoted.
type TableName struct {
	Schema string
	Name   string
}

// String returns schema.table, unquoted: for a person, and as a key.
func (t TableName) String() string { return t.Schema + "." + t.Name }

// SQL returns the name quoted for a statement.
func (t TableName) SQL() string { return Ident(t.Schema) + "." + Ident(t.Name) }

// Ident quotes an identifier for a statement.
func Ident(name string) string { return pgx.Identifier{name}.Sanitize() }

// Literal quotes a string for a statement, whatever standard_conforming_strings.
func Literal(s string) string {
	quoted := "'" + strings.ReplaceAll(strings.ReplaceAll(s, "\x00", ""), "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// Kinds and persistence of a table, as pg_class has them.
const (
	KindTable       = "r"
	KindPartitioned = "p"
	KindView        = "v"
	KindForeign     = "f"

	Permanent = "p"
	Unlogged  = "u"
)

// Table is a relation as the catalog has it.
type Table struct {
	OID         uint32
	Schema      string
	Name        string
	Owner       string
	Kind        string // pg_class.relkind
	Persistence string // pg_class.relpersistence
	Columns     []Column
	// Partitions are the leaf partitions, of all levels, of a partitioned table.
	Partitions []Partition
	// HasRows is true when the table, or one of its partitions, has any storage:
	// what needs no SELECT. A table that was emptied by DELETE may still have it.
	HasRows bool
}

// Column returns the column of that name; false when there is none.
func (t Table) Column(name string) (Column, bool) {
	for _, c := range t.Columns {
		if c.Name == name {
			return c, true
		}
	}
	return Column{}, false
}

// Column of a table.
type Column struct {
	Name     string
	TypeOID  uint32
	TypeName string // as format_type prints it
	// BaseTypeOID is TypeOID, with domains resolved.
	BaseTypeOID uint32
	NotNull     bool
	Generated   bool // GENERATED ALWAYS AS (...): not published by default
}

// Partition is a leaf partition.
type Partition struct {
	OID         uint32
	Name        string // schema.name
	Kind        string
	Persistence string
}

// Table reads a relation of any kind; false when there is none. It may wait for
// somebody who holds the table exclusively.
func (s *Session) Table(ctx context.Context, schema, name string) (Table, bool, error) {
	t := Table{Schema: schema, Name: name}
	err := s.conn.QueryRow(ctx, `SELECT c.oid, pg_get_userbyid(c.relowner)::text, c.relkind::text,
			c.relpersistence::text, CASE WHEN c.relkind = 'p'
				THEN coalesce((SELECT sum(pg_relation_size(p.relid)) FROM pg_partition_tree(c.oid) p WHERE p.isleaf), 0) > 0
				ELSE coalesce(pg_relation_size(c.oid), 0) > 0 END
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, schema, name).
		Scan(&t.OID, &t.Owner, &t.Kind, &t.Persistence, &t.HasRows)
	if errors.Is(err, pgx.ErrNoRows) {
		return Table{}, false, nil
	}
	if err != nil {
		return Table{}, false, fmt.Errorf("read table %s.%s: %w", schema, name, err)
	}
	rows, err := s.conn.Query(ctx, `SELECT a.attname::text, a.atttypid, format_type(a.atttypid, a.atttypmod),
			(WITH RECURSIVE base(oid, up) AS (
				SELECT oid, typbasetype FROM pg_type WHERE oid = a.atttypid
				UNION ALL SELECT t.oid, t.typbasetype FROM base JOIN pg_type t ON t.oid = base.up)
			SELECT oid FROM base WHERE up = 0),
			a.attnotnull, a.attgenerated <> ''
		FROM pg_attribute a WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY a.attnum`, t.OID)
	if err != nil {
		return Table{}, false, fmt.Errorf("read the columns of table %s.%s: %w", schema, name, err)
	}
	t.Columns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Column, error) {
		var c Column
		err := row.Scan(&c.Name, &c.TypeOID, &c.TypeName, &c.BaseTypeOID, &c.NotNull, &c.Generated)
		return c, err
	})
	if err != nil {
		return Table{}, false, fmt.Errorf("read the columns of table %s.%s: %w", schema, name, err)
	}
	if t.Kind == KindPartitioned {
		if t.Partitions, err = s.leaves(ctx, t.OID); err != nil {
			return Table{}, false, err
		}
	}
	return t, true, nil
}

// leaves lists the leaf partitions below a relation, ordered by name; none when
// it is not partitioned.
func (s *Session) leaves(ctx context.Context, oid uint32) ([]Partition, error) {
	rows, err := s.conn.Query(ctx, `SELECT c.oid, n.nspname || '.' || c.relname, c.relkind::text, c.relpersistence::text
		FROM pg_partition_tree($1::oid::regclass) p
		JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE p.isleaf AND c.oid <> $1::oid AND c.relkind <> 'p' ORDER BY 2`, oid)
	if err != nil {
		return nil, fmt.Errorf("list the partitions of relation %d: %w", oid, err)
	}
	leaves, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Partition, error) {
		var p Partition
		err := row.Scan(&p.OID, &p.Name, &p.Kind, &p.Persistence)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the partitions of relation %d: %w", oid, err)
	}
	return leaves, nil
}

// RelationExists tells whether a relation of that OID is still there.
func (s *Session) RelationExists(ctx context.Context, oid uint32) (bool, error) {
	var ok bool
	err := s.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class WHERE oid = $1::oid)`, oid).Scan(&ok)
	if err != nil {
		return false, fmt.Errorf("look for relation %d: %w", oid, err)
	}
	return ok, nil
}

// Columns returns the names of the columns of each table that exists, in the
// table's order. It takes no lock on any table.
func (s *Session) Columns(ctx context.Context, tables []TableName) (map[TableName][]string, error) {
	schemas, names := make([]string, len(tables)), make([]string, len(tables))
	for i, t := range tables {
		schemas[i], names[i] = t.Schema, t.Name
	}
	rows, err := s.conn.Query(ctx, `SELECT n.nspname::text, c.relname::text, coalesce(array_agg(a.attname::text ORDER BY a.attnum)
			FILTER (WHERE a.attnum > 0 AND NOT a.attisdropped), '{}')
		FROM unnest($1::text[], $2::text[]) AS q(s, t)
		JOIN pg_namespace n ON n.nspname = q.s
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = q.t AND c.relkind IN ('r', 'p')
		LEFT JOIN pg_attribute a ON a.attrelid = c.oid
		GROUP BY 1, 2`, schemas, names)
	if err != nil {
		return nil, fmt.Errorf("read the columns of the tables: %w", err)
	}
	columns := make(map[TableName][]string)
	var t TableName
	var cols []string
	_, err = pgx.ForEachRow(rows, []any{&t.Schema, &t.Name, &cols}, func() error {
		columns[t] = slices.Clone(cols)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the columns of the tables: %w", err)
	}
	return columns, nil
}
