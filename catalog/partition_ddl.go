package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// detachedConstraint is what a partition gets in the transaction that detaches it.
// It refuses every row, so that nobody inserts what would not be published, and
// its comment is the note by which the table is known again.
const detachedConstraint = "cdc_relay_detached"

// idleLimit and statementLimit bound how long a relay that hangs in the middle of
// a change of partitions, or a slow server, holds its locks.
const (
	idleLimit      = 2 * time.Second
	statementLimit = 5 * time.Second
	// nameLimit is the longest name of a table in bytes, NAMEDATALEN - 1.
	nameLimit = 63
)

// Note says of a detached partition who detached it, and when it may be dropped.
type Note struct {
	SystemID string    `json:"system_id"`
	Slot     string    `json:"slot"`
	Epoch    uint64    `json:"epoch"` // of the mark
	Parent   TableName `json:"parent"`
	OID      uint32    `json:"oid"`   // of the partition
	Bound    string    `json:"bound"` // as ATTACH PARTITION takes it
	// LSN is at or behind the end of every transaction that inserted through the
	// parent.
	LSN pglogrepl.LSN `json:"-"`
	At  time.Time     `json:"at"`
}

type noteText struct {
	Note
	About string `json:"about"`
	LSN   string `json:"lsn"`
}

// Detached is a table that a relay detached and has not dropped yet.
type Detached struct {
	TableName
	Note
	Owner string
	// Refuses: it has had its constraint since, so that no row came in.
	Refuses bool
	// Attached: somebody made it a partition again.
	Attached bool
}

// Detached returns the tables that the relay of a slot detached. A copy from a
// dump, and one of another cluster or slot, is not among them; with no systemID both
// are: after an upgrade or a restore they still hold rows that no table shows.
func (s *Session) Detached(ctx context.Context, systemID, slot string) ([]Detached, error) {
	rows, err := s.conn.Query(ctx, `SELECT n.nspname::text, c.relname::text, c.oid, pg_get_userbyid(c.relowner)::text, c.relispartition,
			NOT k.convalidated AND coalesce(pg_get_expr(k.conbin, k.conrelid), '') = 'false' AND coalesce((to_jsonb(k)->>'conenforced')::bool, true),
			coalesce(obj_description(k.oid, 'pg_constraint'), '')
		FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE k.conname = $1 AND k.contype = 'c' AND c.relkind = 'r' ORDER BY 1, 2`, detachedConstraint)
	if err != nil {
		return nil, fmt.Errorf("look for detached partitions: %w", err)
	}
	var found []Detached
	var d Detached
	var oid uint32
	var note string
	_, err = pgx.ForEachRow(rows, []any{&d.Schema, &d.Name, &oid, &d.Owner, &d.Attached, &d.Refuses, &note}, func() error {
		var ok bool
		if d.Note, ok = parseNote(note); ok && d.Slot == slot && (systemID == "" || d.OID == oid && d.SystemID == systemID) {
			found = append(found, d)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for detached partitions: %w", err)
	}
	return found, nil
}

func parseNote(text string) (Note, bool) {
	var n noteText
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return Note{}, false
	}
	lsn, err := pglogrepl.ParseLSN(n.LSN)
	if err != nil || lsn == 0 {
		return Note{}, false
	}
	n.Note.LSN = lsn
	return n.Note, true
}

func (n Note) text() (string, error) {
	b, err := json.Marshal(noteText{Note: n, LSN: n.LSN.String(),
		About: "detached by cdc-relay, which drops it when everything up to lsn is published; until then nothing may be inserted"})
	return string(b), err
}

// ErrPartitionChanged says that a partition is not what it was when it was looked
// at.
var ErrPartitionChanged = errors.New("it has changed meanwhile")

// Detach detaches a partition and notes on it what note says, with the position
// that must be published before it may be dropped, all in one transaction. It
// waits for locks for at most lockTimeout each, and then fails with 55P03. may is
// asked while the table is locked: its error is returned, and nothing is changed.
func (s *Session) Detach(ctx context.Context, t PartitionedTable, p RangePartition, note Note, lockTimeout time.Duration, may func(context.Context) error) (Detached, error) {
	d := Detached{TableName: p.TableName, Owner: p.Owner, Refuses: true, Note: note}
	err := s.change(ctx, t.Owner, lockTimeout, func(tx pgx.Tx) error {
		// The parent first, as those who insert do. Then no transaction has a row in
		// the partition that is not committed.
		if err := run(ctx, tx, "LOCK TABLE ONLY "+t.SQL()+" IN ACCESS EXCLUSIVE MODE", "LOCK TABLE ONLY "+p.SQL()+" IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		now, err := s.PartitionedTable(ctx, t.TableName, t.Column)
		if err != nil {
			return err
		}
		if now.OID != t.OID || !contains(now.Partitions, p) {
			return ErrPartitionChanged
		}
		if err := may(ctx); err != nil {
			return err
		}
		if d.LSN, d.At, err = written(ctx, tx); err != nil {
			return err
		}
		d.Parent, d.OID, d.Bound = t.TableName, p.OID, p.Bound
		text, err := d.Note.text()
		if err != nil {
			return err
		}
		return run(ctx, tx, "ALTER TABLE "+t.SQL()+" DETACH PARTITION "+p.SQL(),
			"ALTER TABLE "+p.SQL()+" ADD CONSTRAINT "+detachedConstraint+" CHECK (false) NOT VALID",
			"COMMENT ON CONSTRAINT "+detachedConstraint+" ON "+p.SQL()+" IS "+Literal(text))
	})
	if err != nil {
		return Detached{}, fmt.Errorf("detach partition %s: %w", p, err)
	}
	return d, nil
}

func contains(parts []RangePartition, p RangePartition) bool {
	for _, is := range parts {
		if is == p {
			return true
		}
	}
	return false
}

// Drop drops a table that Detach detached, when it is still that table, and has
// let no row in since. may is asked while it is locked.
func (s *Session) Drop(ctx context.Context, d Detached, lockTimeout time.Duration, may func(context.Context) error) error {
	err := s.change(ctx, d.Owner, lockTimeout, func(tx pgx.Tx) error {
		if err := run(ctx, tx, "LOCK TABLE ONLY "+d.SQL()+" IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		now, err := s.Detached(ctx, d.SystemID, d.Slot)
		if err != nil {
			return err
		}
		same := false
		for _, is := range now {
			same = same || is.OID == d.OID && is.TableName == d.TableName && is.LSN == d.LSN && is.Refuses && !is.Attached
		}
		if !same {
			return ErrPartitionChanged
		}
		if err := may(ctx); err != nil {
			return err
		}
		return run(ctx, tx, "DROP TABLE "+d.SQL())
	})
	if err != nil {
		return fmt.Errorf("drop detached partition %s: %w", d.TableName, err)
	}
	return nil
}

// WayBack are the statements by which a person makes a detached table a partition
// again.
func (d Detached) WayBack() string {
	return fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s; ALTER TABLE %s ATTACH PARTITION %s %s",
		d.SQL(), detachedConstraint, d.Parent.SQL(), d.SQL(), d.Bound)
}

// ErrDefaultHolds says that a partition cannot be made, since rows of its range
// are in the default partition.
type ErrDefaultHolds struct {
	Default TableName
	Range   TimeRange
}

func (e *ErrDefaultHolds) Error() string {
	return fmt.Sprintf("rows from %s to %s are in the default partition %s already, so that no partition can be made for them; move them out of it",
		e.Range.From.Format(time.RFC3339), e.Range.To.Format(time.RFC3339), e.Default)
}

// MakePartition makes a partition for a range, owned by the table's owner, and
// returns its name: name, or that with a number behind it when there is such a
// relation. The table is attached in the transaction that makes it, which holds up
// nobody who inserts, where CREATE TABLE ... PARTITION OF would lock the parent.
func (s *Session) MakePartition(ctx context.Context, t PartitionedTable, r TimeRange, name string, lockTimeout time.Duration) (TableName, error) {
	made, err := s.freeName(ctx, t.Schema, name)
	if err != nil {
		return made, err
	}
	from, to := t.literal(r.From), t.literal(r.To)
	err = s.change(ctx, t.Owner, lockTimeout, func(tx pgx.Tx) error {
		for _, p := range t.Partitions {
			if !p.Default {
				continue
			}
			var holds bool
			q := fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s >= %s AND %s < %s)", p.SQL(), Ident(t.Column), from, Ident(t.Column), to)
			if err := tx.QueryRow(ctx, q).Scan(&holds); err != nil {
				return err
			}
			if holds {
				return &ErrDefaultHolds{p.TableName, r}
			}
		}
		like := "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING GENERATED"
		if s.version >= 140000 {
			like += " INCLUDING COMPRESSION"
		}
		create := "CREATE TABLE " + made.SQL() + " (LIKE " + t.SQL() + " " + like + ")"
		if t.tablespace != "" {
			create += " TABLESPACE " + Ident(t.tablespace)
		}
		return run(ctx, tx, create, "ALTER TABLE "+t.SQL()+" ATTACH PARTITION "+made.SQL()+" FOR VALUES FROM ("+from+") TO ("+to+")")
	})
	if err != nil {
		return made, fmt.Errorf("cannot make partition %s for %s to %s: %w", made, r.From.Format(time.RFC3339), r.To.Format(time.RFC3339), err)
	}
	return made, nil
}

// freeName returns the first of name, name_2, name_3 and so on that no relation
// has.
func (s *Session) freeName(ctx context.Context, schema, name string) (TableName, error) {
	for i := 1; i < 100; i++ {
		n := TableName{schema, name}
		if i > 1 {
			n.Name = fmt.Sprintf("%s_%d", name, i)
		}
		if len(n.Name) > nameLimit {
			return n, fmt.Errorf("the name %s of a partition has %d bytes; %d are possible: make retention.partition_name shorter", n, len(n.Name), nameLimit)
		}
		var taken bool
		err := s.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2)`,
			n.Schema, n.Name).Scan(&taken)
		if err != nil {
			return n, fmt.Errorf("look for a free name for a partition: %w", err)
		}
		if !taken {
			return n, nil
		}
	}
	return TableName{schema, name}, fmt.Errorf("no name like %s.%s is free for a partition: change retention.partition_name", schema, name)
}

// LockHolder is a transaction that holds a lock.
type LockHolder struct {
	Transaction string // virtual, as pg_locks has it
	PID         int32  // 0 for a prepared one
}

// LockHolders returns who, beside this session, holds a lock on one of the
// relations.
func (s *Session) LockHolders(ctx context.Context, relations ...uint32) ([]LockHolder, error) {
	rows, err := s.conn.Query(ctx, `SELECT DISTINCT virtualtransaction, coalesce(pid, 0) FROM pg_locks
		WHERE locktype = 'relation' AND granted AND relation = ANY($1::oid[]) AND pid IS DISTINCT FROM pg_backend_pid()
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, relations)
	if err != nil {
		return nil, fmt.Errorf("look who holds locks: %w", err)
	}
	holders, err := pgx.CollectRows(rows, pgx.RowToStructByPos[LockHolder])
	if err != nil {
		return nil, fmt.Errorf("look who holds locks: %w", err)
	}
	return holders, nil
}

// change runs f in a transaction, as owner, that holds its locks for a short time
// whatever happens here.
func (s *Session) change(ctx context.Context, owner string, lockTimeout time.Duration, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		err := run(ctx, tx, fmt.Sprintf("SET LOCAL lock_timeout = %d", max(1, lockTimeout.Milliseconds())),
			fmt.Sprintf("SET LOCAL statement_timeout = %d", (lockTimeout+statementLimit).Milliseconds()),
			fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", idleLimit.Milliseconds()),
			"SET LOCAL ROLE "+Ident(owner))
		if err != nil {
			return err
		}
		return f(tx)
	})
}

func run(ctx context.Context, tx pgx.Tx, statements ...string) error {
	for _, q := range statements {
		if _, err := tx.Exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}
