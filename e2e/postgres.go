package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// Timeout bounds each single step of the environment.
const Timeout = 60 * time.Second

// PGControl is what a test can do to a server of its own; a process or a container.
type PGControl interface {
	DSN(db string) string
	Start(context.Context) error
	StopFast(context.Context) error
	StopImmediate(context.Context) error
	Kill9()
	Close() error
}

// PG is a database for one test, with the server that it is on.
type PG struct {
	PGControl
	// Server is the server's process; nil when it is a container or an external one.
	Server   *pgserver.Server
	Version  string // major
	Database string
}

// PGVersion is the major version that tests run on.
func PGVersion() string {
	if v := os.Getenv("CDC_RELAY_TEST_PG_VERSION"); v != "" {
		return v
	}
	return "15"
}

var dbCount atomic.Int64

// Postgres starts a server for this test, with a database named app, and stops it at the end of the test. With
// CDC_RELAY_TEST_POSTGRES it makes a database on that server instead; a test that asks for options or calls RequireControl is
// then skipped.
func Postgres(t testing.TB, opts ...pgserver.Options) *PG {
	t.Helper()
	if dsn := os.Getenv("CDC_RELAY_TEST_POSTGRES"); dsn != "" {
		if len(opts) > 0 && !reflect.ValueOf(opts[0]).IsZero() {
			skip(t, "needs a PostgreSQL server of its own")
		}
		return externalPG(t, dsn)
	}
	var o pgserver.Options
	if len(opts) > 0 {
		o = opts[0]
	}
	if o.Version == "" {
		o.Version = PGVersion()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*Timeout) // the first time, with initdb
	defer cancel()
	pg := &PG{Version: o.Version, Database: "app"}
	if Containers() {
		if what := unsupportedPG(o); what != "" {
			skip(t, "needs a PostgreSQL server that is no container: "+what)
		}
		c, err := startPGContainer(ctx, o)
		if err != nil {
			t.Fatalf("start PostgreSQL in a container: %v", err)
		}
		pg.PGControl = c
	} else {
		s, err := pgserver.Start(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		pg.PGControl, pg.Server = s, s
	}
	t.Cleanup(func() {
		if t.Failed() && pg.Server != nil {
			t.Logf("log of PostgreSQL, the end:\n%s", tailFile(pg.Server.LogPath(), 6000))
		}
		if c := pg.Container(); t.Failed() && c != nil {
			t.Logf("log of PostgreSQL, the end:\n%s", c.Log())
		}
		if err := pg.Close(); err != nil {
			t.Errorf("stop PostgreSQL: %v", err)
		}
	})
	pg.ExecOn(t, "postgres", "CREATE DATABASE app")
	if Containers() { // the image decides
		pg.Version = pg.Query(t, "SELECT current_setting('server_version_num')::int / 10000")
	}
	return pg
}

// DSN is a superuser's URL of the test's database.
func (pg *PG) DSN() string { return pg.PGControl.DSN(pg.Database) }

// DSNFor is a superuser's URL of another database on the server.
func (pg *PG) DSNFor(db string) string { return pg.PGControl.DSN(db) }

// DSNThrough is DSN with the proxy's address in place of the server's.
func (pg *PG) DSNThrough(p *Proxy) string {
	u, err := url.Parse(pg.DSN())
	if err != nil {
		panic(err) // we made it
	}
	u.Host = p.Addr()
	return u.String()
}

// RequireControl skips the test when the server may not be stopped: an external one.
func (pg *PG) RequireControl(t testing.TB) {
	t.Helper()
	if _, external := pg.PGControl.(*externalServer); external {
		skip(t, "needs a PostgreSQL server of its own")
	}
}

// Conn opens a superuser's session on the test's database; it is closed with the test.
func (pg *PG) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	return pg.ConnTo(t, pg.DSN())
}

// ConnTo opens a session by DSN; it is closed with the test.
func (pg *PG) ConnTo(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect to PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Close(ctx)
	})
	return c
}

// Exec runs statements one by one as superuser on the test's database.
func (pg *PG) Exec(t testing.TB, statements ...string) {
	t.Helper()
	pg.ExecOn(t, pg.Database, statements...)
}

// ExecOn runs statements one by one as superuser on a database.
func (pg *PG) ExecOn(t testing.TB, db string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*Timeout)
	defer cancel()
	c, err := pgx.Connect(ctx, pg.DSNFor(db))
	if err != nil {
		t.Fatalf("connect to PostgreSQL: %v", err)
	}
	defer c.Close(ctx)
	for _, q := range statements {
		if _, err := c.Exec(ctx, q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// Query runs a query that returns one value, in PostgreSQL's text form; NULL is "".
func (pg *PG) Query(t testing.TB, query string, args ...any) string {
	t.Helper()
	s, err := pg.TryQuery(query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s
}

// TryQuery is Query for a server that may be away. The query must return one column.
func (pg *PG) TryQuery(query string, args ...any) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	c, err := pgx.Connect(ctx, pg.DSN())
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	var s *string
	if err := c.QueryRow(ctx, "SELECT q::text FROM ("+query+") AS x(q)", args...).Scan(&s); err != nil || s == nil {
		return "", err
	}
	return *s, nil
}

// StopFastIn stops the server as pg_ctl stop -m fast does and returns how long that took; it fails the test when it takes
// longer than limit.
func (pg *PG) StopFastIn(t testing.TB, limit time.Duration) time.Duration {
	t.Helper()
	pg.RequireControl(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	if err := pg.StopFast(ctx); err != nil {
		t.Errorf("fast stop of PostgreSQL within %v: %v", limit, err)
	}
	return time.Since(began)
}

// StartAgain starts a stopped server and fails the test when it does not come up.
func (pg *PG) StartAgain(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	if err := pg.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// externalServer is one that somebody else runs.
type externalServer struct{ url url.URL }

var errExternal = errors.New("this PostgreSQL server was given by CDC_RELAY_TEST_POSTGRES and is not ours to stop or start")

func (e *externalServer) DSN(db string) string {
	u := e.url
	u.Path = "/" + db
	return u.String()
}
func (e *externalServer) Start(context.Context) error         { return errExternal }
func (e *externalServer) StopFast(context.Context) error      { return errExternal }
func (e *externalServer) StopImmediate(context.Context) error { return errExternal }
func (e *externalServer) Kill9()                              { panic(errExternal) }
func (e *externalServer) Close() error                        { return nil }

func externalPG(t testing.TB, dsn string) *PG {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		t.Fatal("CDC_RELAY_TEST_POSTGRES is no URL such as postgres://user:password@host:port/postgres")
	}
	pg := &PG{PGControl: &externalServer{*u}, Database: strings.TrimPrefix(u.Path, "/")}
	home := pg.Database
	num := pg.Query(t, "SELECT current_setting('server_version_num')::int / 10000")
	pg.Version = num
	name := fmt.Sprintf("cdc_relay_test_%d_%d", os.Getpid(), dbCount.Add(1))
	pg.ExecOn(t, home, "CREATE DATABASE "+name)
	pg.Database = name
	t.Cleanup(func() {
		pg.ExecOn(t, home,
			"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active AND database = '"+name+"'",
			"SELECT pg_sleep(0.2)",
			"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '"+name+"'",
			"DROP DATABASE "+name+" WITH (FORCE)")
	})
	return pg
}

func tailFile(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}
