package rig

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// Names of what setup makes in the database.
const (
	Slot        = "cdc_relay"
	Publication = "cdc_relay"
	Database    = "app"
)

// DrainSettings: the server's own work is the same for all systems. Statistics and checkpoints in the middle of a round would
// not be.
var DrainSettings = map[string]string{
	"autovacuum": "off", "max_wal_size": "16GB", "checkpoint_timeout": "1h", "synchronous_commit": "off", "shared_buffers": "256MB",
}

// SteadySettings are those of a server at work: synchronous_commit stays on.
var SteadySettings = map[string]string{"max_wal_size": "4GB", "shared_buffers": "256MB"}

// Rig is a database server for one group of cells, with the outbox and the slot that setup made before anything was written.
type Rig struct {
	*Env
	PG *pgserver.Server
	*Session
}

// Session is a superuser's session on the database, for one goroutine.
type Session struct{ conn *pgx.Conn }

// slots counts the copies, so that each has a name of its own.
var slots atomic.Int64

// NewSession opens a session beside the rig's own, for another goroutine.
func (r *Rig) NewSession(ctx context.Context) (*Session, error) {
	conn, err := r.PG.Connect(ctx, Database)
	return &Session{conn}, err
}

// Close ends the session.
func (s *Session) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.conn.Close(ctx)
}

const outboxTable = `CREATE TABLE outbox (
	id text PRIMARY KEY, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text,
	type text NOT NULL DEFAULT 'created', payload text)`

// NewRig starts a server of the given major version with the outbox in it.
func (e *Env) NewRig(ctx context.Context, version string, settings map[string]string) (*Rig, error) {
	pg, err := pgserver.Start(ctx, pgserver.Options{Version: version, Settings: settings})
	if err != nil {
		return nil, err
	}
	r := &Rig{Env: e, PG: pg}
	if err := r.prepare(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Rig) prepare(ctx context.Context) error {
	if err := r.PG.Exec(ctx, "postgres", "CREATE DATABASE "+Database); err != nil {
		return err
	}
	var err error
	if r.Session, err = r.NewSession(ctx); err != nil {
		r.Session = nil
		return err
	}
	if err := r.conn.QueryRow(ctx, "SHOW server_version").Scan(&r.Machine.PostgreSQL); err != nil {
		return err
	}
	if err := r.Exec(ctx, outboxTable); err != nil {
		return err
	}
	return r.setup(ctx, RelayOptions{Slot: Slot, Null: true})
}

// Close stops the server. The broker stays.
func (r *Rig) Close() {
	if r.Session != nil {
		r.Session.Close()
	}
	_ = r.PG.Close() // killed with this process at the latest
}

// DSN is a superuser's URL of the database.
func (r *Rig) DSN() string { return r.PG.DSN(Database) }

// Exec runs statements one by one.
func (s *Session) Exec(ctx context.Context, statements ...string) error {
	for _, q := range statements {
		if _, err := s.conn.Exec(ctx, q); err != nil {
			return fmt.Errorf("%.60s: %w", q, err)
		}
	}
	return nil
}

// Number runs a query that returns one number.
func (s *Session) Number(ctx context.Context, query string, args ...any) (float64, error) {
	var n float64
	err := s.conn.QueryRow(ctx, "SELECT ("+query+")::float8", args...).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("%.60s: %w", query, err)
	}
	return n, nil
}

// Position is the end of the WAL.
func (s *Session) Position(ctx context.Context) (string, error) {
	var lsn string
	err := s.conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&lsn)
	return lsn, err
}

// CopySlot makes a slot of a new name that stands where from stands, and returns the name.
func (s *Session) CopySlot(ctx context.Context, from string) (string, error) {
	name := fmt.Sprintf("copy_%d", slots.Add(1))
	_, err := s.conn.Exec(ctx, "SELECT pg_copy_logical_replication_slot($1::name, $2::name)", from, name)
	if err != nil {
		return "", fmt.Errorf("copy slot %s: %w", from, err)
	}
	return name, nil
}

// DropSlot drops a slot, which a client that just ended may still hold for a moment.
func (s *Session) DropSlot(ctx context.Context, name string) error {
	return Poll(ctx, 30*time.Second, 20*time.Millisecond, "the end of slot "+name, func() (bool, error) {
		_, err := s.conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active`, name)
		if err != nil {
			return false, err
		}
		n, err := s.Number(ctx, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", name)
		return n == 0, err
	})
}

// Reached tells whether a slot is confirmed up to a position.
func (s *Session) Reached(ctx context.Context, slot, position string) (bool, error) {
	var done bool
	err := s.conn.QueryRow(ctx, "SELECT confirmed_flush_lsn >= $2::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $1",
		slot, position).Scan(&done)
	return done, err
}

// Backlog is what was committed while nobody read.
type Backlog struct {
	Rows, SlowRows int
	Slot           string // stands before all rows
	SlowSlot       string // stands before the last SlowRows
	End            string // the position behind them
}

// Fill commits rows with a payload of size bytes, txRows at a time, and leaves a slot before the last slow ones, for systems
// that would take too long for all.
func (r *Rig) Fill(ctx context.Context, rows, slow, txRows, size int) (Backlog, error) {
	b := Backlog{Rows: rows, SlowRows: slow, Slot: Slot, SlowSlot: "slow"}
	if err := r.Exec(ctx, `CREATE OR REPLACE PROCEDURE fill(first int, last int, per int, size int) LANGUAGE plpgsql AS $$
		DECLARE i int := first;
		BEGIN
			WHILE i < last LOOP
				INSERT INTO outbox (id, aggregateid, payload)
				SELECT n::text, 'k' || n % 997, left(repeat(lpad(n::text, 10, '0'), size / 10 + 1), size)
				FROM generate_series(i, least(i + per, last) - 1) n;
				COMMIT;
				i := i + per;
			END LOOP;
		END $$`,
		fmt.Sprintf("CALL fill(0, %d, %d, %d)", rows-slow, txRows, size),
		fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", b.SlowSlot),
		fmt.Sprintf("CALL fill(%d, %d, %d, %d)", rows-slow, rows, txRows, size),
		"CHECKPOINT"); err != nil {
		return b, fmt.Errorf("fill the outbox: %w", err)
	}
	var err error
	b.End, err = r.Position(ctx)
	return b, err
}

// WaitConfirmed waits until a slot is confirmed up to a position, while the relay lives.
func (r *Rig) WaitConfirmed(ctx context.Context, slot, position string, limit time.Duration, relay *Relay) error {
	return Poll(ctx, limit, 20*time.Millisecond, "the relay to confirm "+position, func() (bool, error) {
		if !relay.Alive() {
			return false, relay.Failure()
		}
		return r.Reached(ctx, slot, position)
	})
}

// WaitActive waits until somebody streams from a slot.
func (s *Session) WaitActive(ctx context.Context, slot string) error {
	return Poll(ctx, time.Minute, 20*time.Millisecond, "slot "+slot+" to be active", func() (bool, error) {
		n, err := s.Number(ctx, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active", slot)
		return n > 0, err
	})
}
