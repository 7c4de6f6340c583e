package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// RowVersion names one version of a row: who deletes by it deletes what was read
// and nothing else. An update makes another version; a place that was freed and
// used again has another inserting transaction.
type RowVersion struct {
	Table uint32 // tableoid
	CTID  string // place, in text
	XMin  string // inserting transaction, in text
}

// AgeTypes are the OIDs of the types that can tell a row's age.
var AgeTypes = []uint32{typeTimestamptz, typeTimestamp, typeDate, typeBigint, typeInteger}

const (
	typeTimestamptz = 1184
	typeTimestamp   = 1114
	typeDate        = 1082
	typeBigint      = 20
	typeInteger     = 23
)

// AgedTable is a table, or a partitioned table with its partitions, and the column
// that tells when a row was written.
type AgedTable struct {
	TableName
	from string // what the rows are selected from: not from tables that inherit
	// older is the condition that a row is older than $1 microseconds, by the server's
	// clock.
	older string
	root  uint32 // OID of a partitioned table, else 0
}

// born lists, of the partitioned table with OID %d and what is below it, those that
// were made as partitions. What was a table by itself and attached later may hold
// rows that never were in the publication. Both are told by the transactions that
// wrote the entries in the catalogs: of a table's system column, which nothing
// changes afterwards, and of its place in the tree. (Rows put into a table that is
// made and attached in one transaction are not told from others.) What is inserted
// into one that is unlogged or foreign is not in the WAL.
const born = `WITH RECURSIVE tree(oid, born) AS (
		SELECT %d::oid, true
		UNION ALL
		SELECT i.inhrelid, t.born AND i.xmin = a.xmin FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
		JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attname = 'ctid' AND a.attnum < 0)
	SELECT tree.oid FROM tree JOIN pg_class c ON c.oid = tree.oid WHERE born AND c.relkind = 'r' AND c.relpersistence = 'p'`

// AgedTable looks up a table and its column. The column is a timestamptz, a
// timestamp or date in UTC, or an integer of milliseconds since 1970.
func (s *Session) AgedTable(ctx context.Context, t TableName, column string) (AgedTable, error) {
	table, ok, err := s.Table(ctx, t.Schema, t.Name)
	if err != nil {
		return AgedTable{}, err
	}
	if !ok {
		return AgedTable{}, fmt.Errorf("table %s does not exist", t)
	}
	c, ok := table.Column(column)
	if !ok {
		return AgedTable{}, fmt.Errorf("table %s has no column %s", t, column)
	}
	a := AgedTable{TableName: t, from: "ONLY " + t.SQL()}
	if table.Kind == KindPartitioned {
		a.from, a.root = t.SQL(), table.OID
	}
	const cutoff = "now() - $1::bigint * interval '1 microsecond'"
	switch c.BaseTypeOID {
	case typeTimestamptz:
		a.older = Ident(column) + " < " + cutoff
	case typeTimestamp, typeDate:
		a.older = Ident(column) + " < (" + cutoff + ") AT TIME ZONE 'UTC'"
	case typeBigint, typeInteger:
		a.older = Ident(column) + " < (extract(epoch FROM " + cutoff + ") * 1000)::bigint"
	default:
		return AgedTable{}, fmt.Errorf("column %s of table %s is %s, which tells no time; it must be timestamptz, timestamp, date, bigint or integer", column, t, c.TypeName)
	}
	return a, nil
}

// AttachedPartitions returns the names of the partitions whose rows OldRows leaves
// out, since they were attached and may hold rows that were never published; and of
// those that are unlogged or foreign, whose rows never are.
func (s *Session) AttachedPartitions(ctx context.Context, t AgedTable) ([]string, error) {
	if t.root == 0 {
		return nil, nil
	}
	rows, err := s.conn.Query(ctx, `SELECT n.nspname || '.' || c.relname FROM pg_partition_tree($1::oid::regclass) p
		JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE p.isleaf AND c.relkind <> 'p' AND c.oid NOT IN (`+fmt.Sprintf(born, t.root)+`) ORDER BY 1`, t.root)
	if err != nil {
		return nil, fmt.Errorf("look for attached partitions of %s: %w", t, err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for attached partitions of %s: %w", t, err)
	}
	return names, nil
}

// OldRows returns up to limit rows that are visible now and older than age, not
// those in AttachedPartitions. It needs SELECT on the table.
func (s *Session) OldRows(ctx context.Context, t AgedTable, age time.Duration, limit int) ([]RowVersion, error) {
	where := t.older
	if t.root != 0 { // in the same statement: what is attached meanwhile is in neither
		where += " AND tableoid IN (" + fmt.Sprintf(born, t.root) + ")"
	}
	rows, err := s.conn.Query(ctx, fmt.Sprintf("SELECT tableoid, ctid::text, xmin::text FROM %s WHERE %s LIMIT %d", t.from, where, limit), age.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("look for old rows in %s: %w", t, err)
	}
	versions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[RowVersion])
	if err != nil {
		return nil, fmt.Errorf("look for old rows in %s: %w", t, err)
	}
	return versions, nil
}

// DeleteOld deletes those of the row versions that are still there, and returns
// how many those were. It waits for locks for at most lockTimeout, and then fails
// with 55P03. It needs SELECT and DELETE on the table. age is that by which the
// versions were found: it lets the server leave out younger partitions.
func (s *Session) DeleteOld(ctx context.Context, t AgedTable, age time.Duration, versions []RowVersion, lockTimeout time.Duration) (int64, error) {
	tables, ctids, xmins := make([]uint32, len(versions)), make([]string, len(versions)), make([]string, len(versions))
	for i, v := range versions {
		tables[i], ctids[i], xmins[i] = v.Table, v.CTID, v.XMin
	}
	var deleted int64
	err := pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", max(1, lockTimeout.Milliseconds()))); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, fmt.Sprintf(`DELETE FROM %s AS aged USING unnest($2::oid[], ($3::text[])::tid[], ($4::text[])::xid[]) AS v(relation, place, writer)
			WHERE aged.ctid = v.place AND aged.tableoid = v.relation AND aged.xmin = v.writer AND aged.%s`, t.from, t.older), age.Microseconds(), tables, ctids, xmins)
		deleted = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete old rows from %s: %w", t, err)
	}
	return deleted, nil
}

// WrittenLSN returns a position at or after the end of every transaction whose rows
// this session has seen.
func (s *Session) WrittenLSN(ctx context.Context) (pglogrepl.LSN, error) {
	lsn, _, err := written(ctx, s.conn)
	return lsn, err
}

// MissingPrivileges returns which of SELECT and DELETE the role lacks on tables
// that exist, as GRANT has them.
func (s *Session) MissingPrivileges(ctx context.Context, tables []TableName) ([]string, error) {
	var missing []string
	for _, t := range tables {
		for _, p := range []string{"SELECT", "DELETE"} {
			var has bool
			if err := s.conn.QueryRow(ctx, `SELECT has_table_privilege($1, $2)`, t.SQL(), p).Scan(&has); err != nil {
				return nil, fmt.Errorf("look at the privileges on %s: %w", t, err)
			}
			if !has {
				missing = append(missing, p+" ON "+t.SQL())
			}
		}
	}
	return missing, nil
}
