package catalog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Plugin is the output plugin of the slots that the relay reads.
const Plugin = "pgoutput"

// Slot is a replication slot. LSN zero means that it has none.
type Slot struct {
	Name        string
	Plugin      string
	Type        string // logical or physical
	Database    string
	Active      bool
	ActivePID   int32 // zero: none
	TwoPhase    bool  // 14 and newer
	Temporary   bool
	Failover    bool   // 17 and newer
	Synced      bool   // 17 and newer: kept in step from a primary; unusable here
	WALStatus   string // reserved, extended, unreserved, lost
	Conflicting bool   // 16 and newer
	// InvalidationReason is empty for a usable slot and before 17.
	InvalidationReason string
	Restart            pglogrepl.LSN
	Confirmed          pglogrepl.LSN
	SafeWALSize        *int64 // bytes until the slot may be lost; nil: no limit, or lost
	CatalogXmin        string // "" : none
}

// Lost tells whether the slot can never be read again.
func (s Slot) Lost() bool {
	return s.WALStatus == "lost" || s.InvalidationReason != "" || s.Conflicting
}

// ParseLSN reads a position that a person gave, as strictly as the server does:
// pglogrepl's passes over what follows the number, and takes a digit too many for
// another position.
func ParseLSN(s string) (pglogrepl.LSN, error) {
	high, low, ok := strings.Cut(s, "/")
	h, herr := strconv.ParseUint(high, 16, 32)
	l, lerr := strconv.ParseUint(low, 16, 32)
	if !ok || herr != nil || lerr != nil || len(high) > 8 || len(low) > 8 {
		return 0, fmt.Errorf("%q is no position in the WAL, such as 0/16B3748", s)
	}
	return pglogrepl.LSN(h<<32 | l), nil
}

// Slot reads a slot, of any type and database; false when there is none.
func (s *Session) Slot(ctx context.Context, name string) (Slot, bool, error) {
	twoPhase, conflicting, failover := "false", "false", "false, false, ''"
	if s.version >= 140000 {
		twoPhase = "two_phase"
	}
	if s.version >= 160000 {
		conflicting = "coalesce(conflicting, false)"
	}
	if s.version >= 170000 {
		failover = "failover, synced AND pg_is_in_recovery(), coalesce(invalidation_reason, '')" // synced stays after a promotion
	}
	query := `SELECT slot_name::text, coalesce(plugin::text, ''), slot_type, coalesce(database::text, ''),
		active, coalesce(active_pid, 0), temporary, coalesce(wal_status, ''),
		coalesce(restart_lsn, '0/0')::text, coalesce(confirmed_flush_lsn, '0/0')::text, safe_wal_size,
		coalesce(catalog_xmin::text, ''), ` + strings.Join([]string{twoPhase, conflicting, failover}, ", ") + `
		FROM pg_replication_slots WHERE slot_name = $1`
	var v Slot
	var restart, confirmed string
	err := s.conn.QueryRow(ctx, query, name).Scan(&v.Name, &v.Plugin, &v.Type, &v.Database,
		&v.Active, &v.ActivePID, &v.Temporary, &v.WALStatus, &restart, &confirmed, &v.SafeWALSize,
		&v.CatalogXmin, &v.TwoPhase, &v.Conflicting, &v.Failover, &v.Synced, &v.InvalidationReason)
	if errors.Is(err, pgx.ErrNoRows) {
		return Slot{}, false, nil
	}
	if err != nil {
		return Slot{}, false, fmt.Errorf("read slot %q: %w", name, err)
	}
	if v.Restart, err = pglogrepl.ParseLSN(restart); err != nil {
		return Slot{}, false, fmt.Errorf("read slot %q: restart position %q: %w", name, restart, err)
	}
	if v.Confirmed, err = pglogrepl.ParseLSN(confirmed); err != nil {
		return Slot{}, false, fmt.Errorf("read slot %q: confirmed position %q: %w", name, confirmed, err)
	}
	return v, true, nil
}

// CreateSlotSQL is the statement by which CreateSlot makes a slot on a server of
// that version.
func CreateSlotSQL(versionNum int, name string, failover bool) string {
	args := Literal(name) + ", '" + Plugin + "'"
	if failover && versionNum >= 170000 {
		args += ", false, false, true"
	}
	return "SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot(" + args + ")"
}

// CreateSlot creates a slot and returns the position that it starts at: its
// confirmed LSN. The server waits for every transaction that is open in any
// database; past the timeout (zero: no limit) it gives up and removes the slot
// that it had begun, and the error is a 57014: see Blockers.
func (s *Session) CreateSlot(ctx context.Context, name string, failover bool, timeout time.Duration) (pglogrepl.LSN, error) {
	if timeout > 0 {
		set := fmt.Sprintf("SET statement_timeout = %d", max(timeout.Milliseconds(), 1))
		if err := s.Exec(ctx, set); err != nil {
			return 0, fmt.Errorf("bound the creation of slot %q: %w", name, err)
		}
		defer func() { _ = s.Exec(context.WithoutCancel(ctx), "SET statement_timeout = 0") }()
	}
	var lsn string
	if err := s.conn.QueryRow(ctx, CreateSlotSQL(s.version, name, failover)).Scan(&lsn); err != nil {
		return 0, fmt.Errorf("create slot %q: %w", name, err)
	}
	return pglogrepl.ParseLSN(lsn)
}

// DropSlot drops a slot that is not active.
func (s *Session) DropSlot(ctx context.Context, name string) error {
	if _, err := s.conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, name); err != nil {
		return fmt.Errorf("drop slot %q: %w", name, err)
	}
	return nil
}

// AdvanceSlot moves a slot that is not active forward and returns where it is
// then. What lies between is never decoded again.
func (s *Session) AdvanceSlot(ctx context.Context, name string, lsn pglogrepl.LSN) (pglogrepl.LSN, error) {
	var end string
	err := s.conn.QueryRow(ctx, `SELECT end_lsn::text FROM pg_replication_slot_advance($1, $2::pg_lsn)`,
		name, lsn.String()).Scan(&end)
	if err != nil {
		return 0, fmt.Errorf("advance slot %q to %s: %w", name, lsn, err)
	}
	return pglogrepl.ParseLSN(end)
}

// CopySlotSQL is the statement by which CopySlot makes a slot.
func CopySlotSQL(from, to string) string {
	return "SELECT lsn FROM pg_catalog.pg_copy_logical_replication_slot(" + Literal(from) + ", " + Literal(to) + ")"
}

// CopySlot makes a slot that stands where another one stands, which may be in use,
// and returns that position. Unlike CreateSlot it waits for nobody. The copy is
// never a failover slot.
func (s *Session) CopySlot(ctx context.Context, from, to string) (pglogrepl.LSN, error) {
	var lsn string
	if err := s.conn.QueryRow(ctx, CopySlotSQL(from, to)).Scan(&lsn); err != nil {
		return 0, fmt.Errorf("copy slot %q to %q: %w", from, to, err)
	}
	return pglogrepl.ParseLSN(lsn)
}

// Blocker is a transaction that the creation of a slot has to wait for.
type Blocker struct {
	PID         int32  // zero: a prepared transaction
	GID         string // of a prepared transaction
	Database    string
	User        string
	Application string
	State       string        // "" : not allowed to see
	QueryKind   string        // first word of its last query; "" : not allowed to see
	Age         time.Duration // of the transaction; zero: not allowed to see
}

// String names the blocker for a person.
func (b Blocker) String() string {
	age := ""
	if b.Age > 0 {
		age = ", open for " + b.Age.Truncate(time.Second/10).String()
	}
	if b.PID == 0 {
		return fmt.Sprintf("prepared transaction %q in database %q of user %q%s", b.GID, b.Database, b.User, age)
	}
	detail := "state hidden: GRANT pg_read_all_stats shows it"
	if b.State != "" {
		detail = b.State + ", last query " + b.QueryKind
	}
	return fmt.Sprintf("process %d (application %q, user %q, database %q, %s%s)",
		b.PID, b.Application, b.User, b.Database, detail, age)
}

// pg_locks is open to every role, where pg_stat_activity hides backend_xid; no
// more than the first word of a query leaves the server.
const blockersQuery = `SELECT pid, '', coalesce(datname::text, ''), coalesce(usename::text, ''),
		coalesce(application_name, ''), coalesce(state, ''),
		CASE WHEN state IS NULL THEN '' ELSE coalesce(upper(substring(query from '^\s*([A-Za-z]{1,20})')), '?') END,
		coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::float8
	FROM pg_stat_activity
	WHERE pid <> pg_backend_pid() AND pid IN (SELECT pid FROM pg_locks
		WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted)
	UNION ALL
	SELECT 0, gid, database::text, owner::text, '', 'prepared', '',
		extract(epoch FROM clock_timestamp() - prepared)::float8
	FROM pg_prepared_xacts
	ORDER BY 8 DESC LIMIT 10`

// Blockers lists the transactions with a transaction id that are open in any
// database, oldest first, at most ten.
func (s *Session) Blockers(ctx context.Context) ([]Blocker, error) {
	rows, err := s.conn.Query(ctx, blockersQuery)
	if err != nil {
		return nil, fmt.Errorf("look for open transactions: %w", err)
	}
	blockers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Blocker, error) {
		var b Blocker
		var seconds float64
		err := row.Scan(&b.PID, &b.GID, &b.Database, &b.User, &b.Application, &b.State, &b.QueryKind, &seconds)
		b.Age = time.Duration(seconds * float64(time.Second))
		return b, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for open transactions: %w", err)
	}
	return blockers, nil
}
