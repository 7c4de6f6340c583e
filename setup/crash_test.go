package setup

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
)

var errCrash = errors.New("crash")

// crasher ends a run at its n-th step that changes something: before the step,
// or after it with its answer lost.
type crasher struct {
	steps, at int
	after     bool
	dead      bool
}

func (c *crasher) step(do func() error) error {
	if c.dead {
		return errCrash
	}
	c.steps++
	if c.steps != c.at {
		return do()
	}
	c.dead = true
	if c.after {
		_ = do()
	}
	return errCrash
}

type crashStore struct {
	checkpoint.Store
	c *crasher
}

func (s crashStore) Save(ctx context.Context, m checkpoint.Mark) error {
	return s.c.step(func() error { return s.Store.Save(ctx, m) })
}

type crashSource struct {
	source
	c *crasher
}

func (s crashSource) Exec(ctx context.Context, sql string) error {
	return s.c.step(func() error { return s.source.Exec(ctx, sql) })
}

func (s crashSource) CreateSlot(ctx context.Context, name string, failover bool, timeout time.Duration) (lsn pglogrepl.LSN, err error) {
	err = s.c.step(func() error { lsn, err = s.source.CreateSlot(ctx, name, failover, timeout); return err })
	return lsn, err
}

func (s crashSource) CopySlot(ctx context.Context, from, to string) (lsn pglogrepl.LSN, err error) {
	err = s.c.step(func() error { lsn, err = s.source.CopySlot(ctx, from, to); return err })
	return lsn, err
}

func (s crashSource) DropSlot(ctx context.Context, name string) error {
	return s.c.step(func() error { return s.source.DropSlot(ctx, name) })
}

func (s crashSource) AdvanceSlot(ctx context.Context, name string, to pglogrepl.LSN) (lsn pglogrepl.LSN, err error) {
	err = s.c.step(func() error { lsn, err = s.source.AdvanceSlot(ctx, name, to); return err })
	return lsn, err
}

// crashing returns options under which a run crashes.
func (e *env) crashing(c *crasher) Options {
	o := e.o
	o.Store = crashStore{e.store, c}
	o.open = func(ctx context.Context, cfg *pgx.ConnConfig, name string) (source, error) {
		s, err := catalog.Open(ctx, cfg, name)
		return crashSource{s, c}, err
	}
	return o
}

func TestSetup_FinishesWhatACrashLeft(t *testing.T) {
	const steps = 4 // publication, intent, slot, mark
	for at := 1; at <= steps; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("step %d after=%t", at, after), func(t *testing.T) {
				e := newEnv(t, outbox)
				c := &crasher{at: at, after: after}
				if err := Setup(t.Context(), e.crashing(c)); !errors.Is(err, errCrash) {
					t.Fatalf("no crash: %v", err)
				}
				e.sql("INSERT INTO outbox (type) VALUES ('between')")
				if _, exists := e.slot(); exists && e.mark().LSN == 0 && !e.mark().Intent {
					t.Fatal("a slot without mark and intent")
				}
				e.mustSetup()
				e.complete()
				// The row is streamed, or on record as a gap.
				if s, _ := e.slot(); len(e.mark().Gaps) == 0 && !e.streams(s.Confirmed, "between") {
					t.Error("a row is neither streamed nor in a gap")
				}
			})
		}
	}
	e := newEnv(t, outbox)
	c := &crasher{}
	if err := Setup(t.Context(), e.crashing(c)); err != nil || c.steps != steps {
		t.Errorf("%d steps, want %d, each with a crash: %v", c.steps, steps, err)
	}
}

func TestSetup_AfterACrashRefusesAPublicationMadeAgain(t *testing.T) {
	e := newEnv(t, outbox)
	_ = Setup(t.Context(), e.crashing(&crasher{at: 4}))
	e.sql(`DROP PUBLICATION "Cdc Relay"`, `CREATE PUBLICATION "Cdc Relay" FOR TABLE outbox WITH (publish = 'insert')`)
	e.stops(e.setup(), e.store.saves, "dropped and created again", "pg_drop_replication_slot")
	e.sql("SELECT pg_drop_replication_slot('" + e.o.Slot + "')")
	e.mustSetup()
	e.complete()
}

func TestAdopt_RecordsTheGapBeforeAnythingIsSkipped(t *testing.T) {
	for at := 1; at <= 2; at++ { // mark, advance
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("step %d after=%t", at, after), func(t *testing.T) {
				e := newEnv(t, outbox)
				e.mustSetup()
				m := e.mark()
				e.sql("INSERT INTO outbox (type) VALUES ('skipped')")
				o := e.crashing(&crasher{at: at, after: after})
				o.Yes, o.LSN = true, e.current()
				if err := Adopt(t.Context(), o); !errors.Is(err, errCrash) {
					t.Fatalf("no crash: %v", err)
				}
				if s, _ := e.slot(); s.Confirmed > e.mark().LSN {
					t.Fatalf("slot at %s, ahead of the mark at %s", s.Confirmed, e.mark().LSN)
				}
				if err := e.adopt(o.LSN); err != nil {
					t.Fatal(err)
				}
				e.complete()
				e.gapsAre(checkpoint.Gap{From: m.LSN, To: o.LSN})
			})
		}
	}
}

func TestSetup_StoreThatIsAwayIsNotBlamedOnPostgreSQL(t *testing.T) {
	e := newEnv(t, outbox)
	o := e.crashing(&crasher{at: 2})
	err := Setup(t.Context(), o)
	var fe *fault.Error
	if !errors.As(err, &fe) || fe.Class != fault.Retry || fe.What == "PostgreSQL cannot be reached" {
		t.Errorf("got %v", err)
	}
}

// stream starts reading the slot on a replication connection.
func (e *env) stream(from pglogrepl.LSN) *pgconn.PgConn {
	e.t.Helper()
	cfg, err := pgconn.ParseConfig(server.DSN(e.db))
	if err != nil {
		e.t.Fatal(err)
	}
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(e.t.Context(), cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { conn.Close(context.Background()) })
	err = pglogrepl.StartReplication(e.t.Context(), conn, e.o.Slot, from, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", `publication_names '"` + e.o.Publication + `"'`},
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return conn
}

func (e *env) await(what string, ok func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("not in time: %s", what)
		}
	}
}

// streams tells whether a text is decoded from the slot, by peeking.
func (e *env) streams(_ pglogrepl.LSN, text string) bool {
	e.t.Helper()
	conn, err := server.Connect(e.t.Context(), e.db)
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var found bool
	err = conn.QueryRow(e.t.Context(), `SELECT coalesce(bool_or(position($2::bytea IN data) > 0), false)
		FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', '"Cdc Relay"')`,
		e.o.Slot, []byte(text)).Scan(&found)
	if err != nil {
		e.t.Fatal(err)
	}
	return found
}
