package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

var server *pgserver.Server

func TestMain(m *testing.M) {
	var err error
	server, err = pgserver.Start(context.Background(), pgserver.Options{Version: os.Getenv("CDC_RELAY_TEST_PG_VERSION")})
	if err != nil {
		fmt.Fprintln(os.Stderr, "start PostgreSQL:", err)
		os.Exit(1)
	}
	code := m.Run()
	server.Close()
	os.Exit(code)
}

// env is a database with a slot, read as the relay reads its own.
type env struct {
	t    *testing.T
	db   string
	conn *pgx.Conn // of the observer
	std  *sql.DB
}

var envs atomic.Int64

// newEnv runs the statements, outbox.Schema if there are none.
func newEnv(t *testing.T, statements ...string) *env {
	t.Helper()
	e := &env{t: t, db: fmt.Sprintf("db%d", envs.Add(1))}
	e.must(server.CreateDatabase(t.Context(), e.db, ""))
	if len(statements) == 0 {
		statements = []string{outbox.Schema}
	}
	statements = append(statements, "CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert')",
		"SELECT pg_create_logical_replication_slot('"+e.db+"', 'pgoutput')")
	e.must(server.Exec(t.Context(), e.db, statements...))
	e.conn = e.connect()
	e.std = stdlib.OpenDB(*e.config())
	t.Cleanup(func() {
		_ = e.std.Close()
		_ = server.Exec(context.Background(), e.db, "SELECT pg_drop_replication_slot('"+e.db+"')")
	})
	return e
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) config() *pgx.ConnConfig {
	cfg, err := pgx.ParseConfig(server.DSN(e.db))
	e.must(err)
	return cfg
}

func (e *env) connect() *pgx.Conn {
	e.t.Helper()
	conn, err := pgx.ConnectConfig(e.t.Context(), e.config())
	e.must(err)
	e.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// count returns the result of a query for one number.
func (e *env) count(query string, args ...any) int {
	e.t.Helper()
	var n int
	e.must(e.conn.QueryRow(e.t.Context(), query, args...).Scan(&n))
	return n
}

// tx is a transaction through one of the drivers.
type tx interface {
	writeBatch(o *outbox.Outbox, events ...outbox.Event) ([]outbox.Ref, error)
	exec(sql string) error
	commit() error
	rollback()
}

// drivers are all ways to write: both drivers, and every way of pgx to send
// parameters, two of which do without prepared statements.
func (e *env) drivers() map[string]func() tx {
	drivers := map[string]func() tx{"database/sql": e.beginSQL}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		drivers["pgx "+mode.String()] = func() tx { return e.beginPGX(mode) }
	}
	return drivers
}

type pgxTx struct {
	e  *env
	tx pgx.Tx
}

func (e *env) beginPGX(mode pgx.QueryExecMode) tx {
	e.t.Helper()
	cfg := e.config()
	cfg.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(e.t.Context(), cfg)
	e.must(err)
	e.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(e.t.Context())
	e.must(err)
	return pgxTx{e, tx}
}

func (x pgxTx) writeBatch(o *outbox.Outbox, events ...outbox.Event) ([]outbox.Ref, error) {
	return o.WriteBatch(x.e.t.Context(), x.tx, events)
}
func (x pgxTx) exec(sql string) error { _, err := x.tx.Exec(x.e.t.Context(), sql); return err }
func (x pgxTx) commit() error         { return x.tx.Commit(x.e.t.Context()) }
func (x pgxTx) rollback()             { _ = x.tx.Rollback(context.Background()) }

type sqlTx struct {
	e  *env
	tx *sql.Tx
}

func (e *env) beginSQL() tx {
	e.t.Helper()
	tx, err := e.std.BeginTx(e.t.Context(), nil)
	e.must(err)
	return sqlTx{e, tx}
}

func (x sqlTx) writeBatch(o *outbox.Outbox, events ...outbox.Event) ([]outbox.Ref, error) {
	return o.WriteBatchSQL(x.e.t.Context(), x.tx, events)
}
func (x sqlTx) exec(sql string) error { _, err := x.tx.ExecContext(x.e.t.Context(), sql); return err }
func (x sqlTx) commit() error         { return x.tx.Commit() }
func (x sqlTx) rollback()             { _ = x.tx.Rollback() }

// commitOf writes the events in a transaction of their own.
func (e *env) commitOf(begin func() tx, o *outbox.Outbox, events ...outbox.Event) []outbox.Ref {
	e.t.Helper()
	tx := begin()
	defer tx.rollback()
	refs, err := tx.writeBatch(o, events...)
	e.must(err)
	e.must(tx.commit())
	return refs
}

func (e *env) outbox(c outbox.Config) *outbox.Outbox {
	e.t.Helper()
	o, err := outbox.New(c)
	e.must(err)
	return o
}

// published takes from the slot what the relay with that configuration would
// publish, a line per record.
func (e *env) published(c config.Config) []string {
	e.t.Helper()
	rows, err := e.conn.Query(e.t.Context(), `SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, NULL,
		'proto_version', '1', 'publication_names', 'p', 'messages', 'true')`, e.db)
	e.must(err)
	frames, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	e.must(err)
	r, messages, err := route.CompileAll(c.Tables(), c.LogicalMessages())
	e.must(err)
	var lines []string
	var now route.Tx
	d := decoder.New()
	for _, frame := range frames {
		ev, err := d.Decode(frame)
		e.must(err)
		var rec sink.Record
		routed := false
		switch ev.Kind {
		case decoder.KindBegin:
			now = route.Tx{CommitLSN: ev.Begin.CommitLSN, CommitTime: ev.Begin.CommitTime}
		case decoder.KindRelation:
			e.must(r.Relation(ev.Relation))
		case decoder.KindInsert:
			routed, err = r.Route(now, 0, ev.Row, &rec)
			e.must(err)
		case decoder.KindMessage:
			if messages != nil && messages.Matches(ev.Message.Prefix) {
				routed = true
				e.must(messages.Route(now, 0, ev.Message, &rec))
			}
		}
		if routed {
			lines = append(lines, show(rec))
		}
	}
	return lines
}

// show prints a record in one line; null and empty look different.
func show(rec sink.Record) string {
	text := func(b []byte) string {
		if b == nil {
			return "null"
		}
		return string(b)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s=%s", rec.Topic, text(rec.Key), text(rec.Value))
	for _, h := range rec.Headers {
		fmt.Fprintf(&b, " %s:%s", h.Key, text(h.Value))
	}
	return b.String()
}

// relay is the relay's default configuration, without the headers of positions.
func relay(change ...func(*config.Outbox)) config.Config {
	c := config.Default()
	o := &c.Outbox[0]
	o.PositionHeaders = false
	for _, f := range change {
		f(o)
	}
	return c
}

func relayOfMessages() config.Config {
	c := config.Default()
	c.Outbox = nil
	c.Messages.Prefix, c.Messages.PositionHeaders = "shop", false
	return c
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}
