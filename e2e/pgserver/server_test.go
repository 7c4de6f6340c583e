package pgserver_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

func start(t *testing.T, opts pgserver.Options) *pgserver.Server {
	t.Helper()
	if opts.Version == "" {
		opts.Version = os.Getenv("CDC_RELAY_TEST_PG_VERSION")
	}
	began := time.Now()
	s, err := pgserver.Start(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %v", time.Since(began))
	t.Cleanup(func() { s.Close() })
	return s
}

func queryRow[T any](t *testing.T, s *pgserver.Server, db, q string) T {
	t.Helper()
	var v T
	err := s.WithSuperuser(context.Background(), db, func(c *pgx.Conn) error {
		return c.QueryRow(context.Background(), q).Scan(&v)
	})
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return v
}

func TestServer_KeepsDataAndPortOverKillAndRestart(t *testing.T) {
	ctx := context.Background()
	s := start(t, pgserver.Options{})
	if err := s.Exec(ctx, "postgres", "create table t (i int)", "insert into t values (1)"); err != nil {
		t.Fatal(err)
	}
	port := s.Port()
	s.Kill9()
	if s.Alive() {
		t.Fatal("alive after kill")
	}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.StopImmediate(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if n := queryRow[int](t, s, "postgres", "select count(*) from t"); n != 1 || s.Port() != port {
		t.Fatalf("rows %d, port %d, want 1 and %d", n, s.Port(), port)
	}
}

func TestServer_EachHasItsOwnIdentityAndPassword(t *testing.T) {
	a, b := start(t, pgserver.Options{Scram: true}), start(t, pgserver.Options{Settings: map[string]string{"work_mem": "7MB"}})
	const q = "select system_identifier from pg_control_system()"
	if x, y := queryRow[int64](t, a, "postgres", q), queryRow[int64](t, b, "postgres", q); x == y {
		t.Fatalf("both servers have the system identifier %d", x)
	}
	if m := queryRow[string](t, b, "postgres", "show work_mem"); m != "7MB" {
		t.Fatalf("work_mem %s", m)
	}
	if c, err := pgx.Connect(context.Background(), a.DSNAs(pgserver.Superuser, "wrong", "postgres")); err == nil {
		c.Close(context.Background())
		t.Fatal("a wrong password was taken")
	}
	if err := b.CreateDatabase(context.Background(), "latin", "LATIN1"); err != nil {
		t.Fatal(err)
	}
	if e := queryRow[string](t, b, "latin", "show server_encoding"); e != "LATIN1" {
		t.Fatalf("encoding %s", e)
	}
}
