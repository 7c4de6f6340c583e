package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/fault"
)

var server *pgserver.Server

func TestMain(m *testing.M) {
	var err error
	server, err = pgserver.Start(context.Background(), pgserver.Options{
		Version: os.Getenv("CDC_RELAY_TEST_PG_VERSION"),
		Settings: map[string]string{"max_prepared_transactions": "5", "max_replication_slots": "60",
			"autovacuum": "off"}, // its transactions would hold up slots
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "start PostgreSQL:", err)
		os.Exit(1)
	}
	code := m.Run()
	server.Close()
	os.Exit(code)
}

// memStore keeps marks in memory, under the rules of checkpoint.Store.
type memStore struct {
	marks map[string]checkpoint.Mark
	saves int
}

func (s *memStore) Load(_ context.Context, systemID, slot string) (checkpoint.Mark, bool, error) {
	m, ok := s.marks[systemID+"/"+slot]
	return m, ok, nil
}

func (s *memStore) Others(_ context.Context, systemID, slot string) ([]checkpoint.Mark, error) {
	return checkpoint.OtherClusters(s.marks, systemID, slot), nil
}

func (s *memStore) Save(_ context.Context, m checkpoint.Mark) error {
	old := s.marks[m.SystemID+"/"+m.Slot]
	if m.SystemID == "" || m.Slot == "" || m.SavedAt.IsZero() {
		return errors.New("incomplete mark")
	}
	if m.Epoch < old.Epoch || m.Epoch == old.Epoch && m.LSN < old.LSN {
		return checkpoint.ErrStale
	}
	s.marks[m.SystemID+"/"+m.Slot] = m
	s.saves++
	return nil
}

func (s *memStore) Close() error { return nil }

// env is one database with an outbox, and the options for it.
type env struct {
	t     *testing.T
	db    string
	store *memStore
	out   bytes.Buffer
	o     Options
}

var envs atomic.Int64

func newEnv(t *testing.T, statements ...string) *env { return newEnvIn(t, "", statements...) }

// newEnvIn is newEnv in a database of that encoding.
func newEnvIn(t *testing.T, encoding string, statements ...string) *env {
	t.Helper()
	n := envs.Add(1)
	e := &env{t: t, db: fmt.Sprintf("db%d", n), store: &memStore{marks: map[string]checkpoint.Mark{}}}
	if err := server.CreateDatabase(t.Context(), e.db, encoding); err != nil {
		t.Fatal(err)
	}
	e.sql(statements...)
	e.o = Options{
		ApplicationName: "cdc-relay", Slot: fmt.Sprintf("slot_%d", n), Publication: "Cdc Relay",
		Tables: []catalog.TableName{DefaultTable}, Store: e.store, Out: &e.out,
	}
	e.as(pgserver.Superuser)
	t.Cleanup(func() {
		_ = server.Exec(context.Background(), e.db, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '"+e.o.Slot+"'")
	})
	return e
}

const outbox = "CREATE TABLE outbox (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb)"

func (e *env) as(user string) {
	e.o.Connect = func() (*pgx.ConnConfig, error) { return pgx.ParseConfig(server.DSNAs(user, pgserver.Password, e.db)) }
}

func (e *env) sql(statements ...string) {
	e.t.Helper()
	if err := server.Exec(context.Background(), e.db, statements...); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) session() *catalog.Session {
	e.t.Helper()
	cfg, err := pgx.ParseConfig(server.DSN(e.db))
	if err != nil {
		e.t.Fatal(err)
	}
	s, err := catalog.Open(context.Background(), cfg, "oracle")
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

func (e *env) slot() (catalog.Slot, bool) {
	e.t.Helper()
	s, ok, err := e.session().Slot(context.Background(), e.o.Slot)
	if err != nil {
		e.t.Fatal(err)
	}
	return s, ok
}

func (e *env) current() pglogrepl.LSN {
	e.t.Helper()
	v, err := e.session().Server(context.Background())
	if err != nil {
		e.t.Fatal(err)
	}
	return v.CurrentLSN
}

func (e *env) mark() checkpoint.Mark {
	for _, m := range e.store.marks {
		if m.Slot == e.o.Slot {
			return m
		}
	}
	return checkpoint.Mark{}
}

// edit changes the mark, as a relay or a restored server would.
func (e *env) edit(f func(*checkpoint.Mark)) {
	for k, m := range e.store.marks {
		if m.Slot == e.o.Slot {
			f(&m)
			e.store.marks[k] = m
		}
	}
}

func (e *env) setup() error {
	e.t.Helper()
	e.out.Reset()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return Setup(ctx, e.o)
}

func (e *env) mustSetup() {
	e.t.Helper()
	if err := e.setup(); err != nil {
		e.t.Fatalf("setup: %v", err)
	}
}

func (e *env) adopt(lsn pglogrepl.LSN) error {
	e.t.Helper()
	e.out.Reset()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o := e.o
	o.LSN, o.Yes = lsn, o.Confirm == nil
	return Adopt(ctx, o)
}

// stops asserts a Stop error that holds all the words, and that nothing was
// saved since before.
func (e *env) stops(err error, saves int, words ...string) {
	e.t.Helper()
	if err == nil || fault.ClassOf(err) != fault.Stop {
		e.t.Fatalf("got %v, want a stop", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			e.t.Errorf("no %q in: %v", w, err)
		}
	}
	if e.store.saves != saves {
		e.t.Errorf("the mark was saved %d times", e.store.saves-saves)
	}
}

func (e *env) says(words ...string) {
	e.t.Helper()
	for _, w := range words {
		if !strings.Contains(e.out.String(), w) {
			e.t.Errorf("no %q in output:\n%s", w, e.out.String())
		}
	}
}
