package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/inbox"
)

var server *pgserver.Server

func TestMain(m *testing.M) {
	if os.Getenv("INBOX_WORKER_DSN") != "" {
		worker()
	}
	var err error
	settings := map[string]string{}
	if os.Getenv("INBOX_BENCH_FSYNC") != "" { // what a commit costs is told by the disk
		settings["fsync"] = "on"
	}
	server, err = pgserver.Start(context.Background(), pgserver.Options{Version: os.Getenv("CDC_RELAY_TEST_PG_VERSION"), Settings: settings})
	if err != nil {
		fmt.Fprintln(os.Stderr, "start PostgreSQL:", err)
		os.Exit(1)
	}
	code := m.Run()
	stopKafka()
	server.Close()
	os.Exit(code)
}

// env is a database with the tables of the package, and invoices as the effect.
type env struct {
	t    testing.TB
	db   string
	pool *pgxpool.Pool
	std  *sql.DB
}

var envs atomic.Int64

func newEnv(t testing.TB) *env {
	t.Helper()
	e := &env{t: t, db: fmt.Sprintf("db%d", envs.Add(1))}
	ctx := context.Background()
	e.must(server.CreateDatabase(ctx, e.db, ""))
	e.must(server.Exec(ctx, e.db, inbox.Schema, inbox.DeadLetterSchema,
		"CREATE TABLE invoices (id bigint GENERATED ALWAYS AS IDENTITY, order_id text NOT NULL)"))
	cfg, err := pgxpool.ParseConfig(server.DSN(e.db))
	e.must(err)
	cfg.MaxConns = 12
	e.pool, err = pgxpool.NewWithConfig(ctx, cfg)
	e.must(err)
	e.std = stdlib.OpenDB(*cfg.ConnConfig)
	t.Cleanup(func() {
		e.pool.Close()
		_ = e.std.Close()
	})
	return e
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// count returns the result of a query for one number.
func (e *env) count(query string, args ...any) int {
	e.t.Helper()
	var n int
	e.must(e.pool.QueryRow(context.Background(), query, args...).Scan(&n))
	return n
}

func (e *env) invoices() int { e.t.Helper(); return e.count("SELECT count(*) FROM invoices") }
func (e *env) markers() int  { e.t.Helper(); return e.count("SELECT count(*) FROM inbox") }

// tx is a transaction through one of the drivers.
type tx interface {
	once(ctx context.Context, consumer, id string, fn func(context.Context) error) (bool, error)
	exec(ctx context.Context, sql string, args ...any) error
	commit() error
	rollback()
}

type pgxTx struct{ pgx.Tx }

func (x pgxTx) once(ctx context.Context, consumer, id string, fn func(context.Context) error) (bool, error) {
	return inbox.Once(ctx, x.Tx, consumer, id, fn)
}
func (x pgxTx) exec(ctx context.Context, sql string, args ...any) error {
	_, err := x.Exec(ctx, sql, args...)
	return err
}
func (x pgxTx) commit() error { return x.Commit(context.Background()) }
func (x pgxTx) rollback()     { _ = x.Rollback(context.Background()) }

type sqlTx struct{ *sql.Tx }

func (x sqlTx) once(ctx context.Context, consumer, id string, fn func(context.Context) error) (bool, error) {
	return inbox.OnceSQL(ctx, x.Tx, consumer, id, fn)
}
func (x sqlTx) exec(ctx context.Context, sql string, args ...any) error {
	_, err := x.ExecContext(ctx, sql, args...)
	return err
}
func (x sqlTx) commit() error { return x.Commit() }
func (x sqlTx) rollback()     { _ = x.Rollback() }

// drivers are both of them, and pgx also without prepared statements.
func (e *env) drivers() map[string]func() tx {
	simple := func() tx {
		cfg, err := pgx.ParseConfig(server.DSN(e.db))
		e.must(err)
		cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		conn, err := pgx.ConnectConfig(context.Background(), cfg)
		e.must(err)
		e.t.Cleanup(func() { _ = conn.Close(context.Background()) })
		t, err := conn.Begin(context.Background())
		e.must(err)
		return pgxTx{t}
	}
	return map[string]func() tx{
		"pgx": func() tx {
			t, err := e.pool.Begin(context.Background())
			e.must(err)
			return pgxTx{t}
		},
		"pgx simple": simple,
		"database/sql": func() tx {
			t, err := e.std.BeginTx(context.Background(), nil)
			e.must(err)
			return sqlTx{t}
		},
	}
}
