package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Snapshot is a view of the database in which nothing changes. It holds back
// vacuum while it is open, and is the session's only transaction.
type Snapshot struct {
	s  *Session
	tx pgx.Tx
	// Xmin is the oldest transaction that was running: rows of older ones are in
	// the snapshot, or never will be.
	Xmin string
	// LSN is a position at or after the end of every transaction that is visible.
	LSN pglogrepl.LSN
	// At is the server's clock.
	At time.Time
}

// Snapshot begins to read. Row level security that would hide rows is an error,
// not a shorter answer.
func (s *Session) Snapshot(ctx context.Context) (*Snapshot, error) {
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("begin a snapshot: %w", err)
	}
	v := &Snapshot{s: s, tx: tx}
	if err := v.begin(ctx); err != nil {
		v.End(ctx)
		return nil, fmt.Errorf("begin a snapshot: %w", err)
	}
	return v, nil
}

// begin takes the snapshot with its first query, and the position only then: a
// commit is in the WAL before it is visible.
func (v *Snapshot) begin(ctx context.Context) error {
	if _, err := v.tx.Exec(ctx, `SET LOCAL row_security = off`); err != nil {
		return err
	}
	if err := v.tx.QueryRow(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text`).Scan(&v.Xmin); err != nil {
		return err
	}
	var err error
	v.LSN, v.At, err = written(ctx, v.tx)
	return err
}

// End gives the snapshot up. Ending twice is safe.
func (v *Snapshot) End(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = v.tx.Rollback(ctx)
}

// Scan says which rows to read, and what of them.
type Scan struct {
	Table TableName
	// Partitioned: rows of the partitions are the table's; of other children they are
	// not, since they are published under their own names.
	Partitioned bool
	Columns     []string
	// Where is a condition in SQL; "" takes every row.
	Where string
}

// Each calls f for each row, with the columns' text; nil is NULL. They are valid
// until f returns. The rows are not kept in memory. An error of f ends it.
func (v *Snapshot) Each(ctx context.Context, scan Scan, f func(values [][]byte) error) error {
	query := "SELECT "
	for i, c := range scan.Columns {
		if i > 0 {
			query += ", "
		}
		query += Ident(c)
	}
	query += " FROM "
	if !scan.Partitioned {
		query += "ONLY "
	}
	query += scan.Table.SQL()
	if scan.Where != "" {
		query += " WHERE " + scan.Where
	}
	rows, err := v.tx.Query(ctx, query)
	if err != nil {
		return fmt.Errorf("read table %s: %w", scan.Table, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows.RawValues()); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read table %s: %w", scan.Table, err)
	}
	return nil
}

// CommittedSince is a condition for the rows of transactions that were running
// when the snapshot was taken, or began later. It needs the column xmin.
func (v *Snapshot) CommittedSince() string {
	// age counts down to the past, also across a wraparound.
	return "pg_catalog.age(xmin) <= pg_catalog.age(" + Literal(v.Xmin) + "::xid8::xid)"
}

// Between is a condition for the rows whose timestamp is NULL, or at or after
// since and before until; a zero time is no limit. The column has the given
// type, one that can be mapped as timestamp. It is written so that an index of
// the column can be used.
func Between(column string, baseType uint32, since, until time.Time) string {
	var bounds string
	add := func(op string, t time.Time) {
		if t.IsZero() {
			return
		}
		if bounds != "" {
			bounds += " AND "
		}
		bounds += Ident(column) + " " + op + " " + timeLiteral(baseType, t)
	}
	add(">=", since)
	add("<", until)
	if bounds == "" {
		return ""
	}
	return "(" + bounds + " OR " + Ident(column) + " IS NULL)"
}

// OIDs of types that stand for a time.
const (
	oidInt8        = 20
	oidInt4        = 23
	oidTimestampTZ = 1184
)

func timeLiteral(baseType uint32, t time.Time) string {
	text := t.UTC().Format("2006-01-02 15:04:05.000000")
	switch baseType {
	case oidInt8, oidInt4:
		return fmt.Sprintf("%d::int8", t.UnixMilli())
	case oidTimestampTZ:
		return Literal(text+"+00") + "::timestamptz"
	default: // timestamp in UTC; a date is compared as its midnight
		return Literal(text) + "::timestamp"
	}
}

// Unreadable returns which of the columns the role may not SELECT, and whether it
// lacks USAGE on the schema.
func (s *Session) Unreadable(ctx context.Context, t TableName, columns []string) (denied []string, noUsage bool, err error) {
	err = s.conn.QueryRow(ctx, `SELECT NOT has_schema_privilege(n.oid, 'USAGE'), coalesce(
			(SELECT array_agg(q.c ORDER BY q.i) FROM unnest($3::text[]) WITH ORDINALITY AS q(c, i)
				WHERE NOT has_column_privilege(c.oid, q.c, 'SELECT')), '{}')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, t.Schema, t.Name, columns).Scan(&noUsage, &denied)
	if err != nil {
		return nil, false, fmt.Errorf("read the privileges on table %s: %w", t, err)
	}
	return denied, noUsage, nil
}

// EstimatedRows is about how many rows a table has, by what the last ANALYZE or
// VACUUM found; -1 when none was done.
func (s *Session) EstimatedRows(ctx context.Context, t TableName) (int64, error) {
	var n int64
	err := s.conn.QueryRow(ctx, `WITH t AS (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = $1 AND c.relname = $2),
		parts AS (SELECT oid FROM t UNION SELECT p.relid::oid FROM t, pg_partition_tree(t.oid) p)
		SELECT coalesce(sum(greatest(c.reltuples, 0)) FILTER (WHERE c.relkind <> 'p'), 0)::int8
		FROM pg_class c JOIN parts USING (oid)`, t.Schema, t.Name).Scan(&n)
	if err != nil {
		return -1, fmt.Errorf("estimate the rows of table %s: %w", t, err)
	}
	if n == 0 {
		return -1, nil
	}
	return n, nil
}
