package catalog_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/fault"
)

var server *pgserver.Server

func TestMain(m *testing.M) {
	var err error
	server, err = pgserver.Start(context.Background(), pgserver.Options{
		Version:  os.Getenv("CDC_RELAY_TEST_PG_VERSION"),
		Settings: map[string]string{"max_prepared_transactions": "5"},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "start PostgreSQL:", err)
		os.Exit(1)
	}
	code := m.Run()
	server.Close()
	os.Exit(code)
}

var databases atomic.Int64

// database makes a database with what the statements make in it.
func database(t *testing.T, statements ...string) string {
	t.Helper()
	db := fmt.Sprintf("db%d", databases.Add(1))
	if err := server.CreateDatabase(t.Context(), db, ""); err != nil {
		t.Fatal(err)
	}
	exec(t, db, statements...)
	return db
}

func exec(t *testing.T, db string, statements ...string) {
	t.Helper()
	if err := server.Exec(context.Background(), db, statements...); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dsn string) *catalog.Session {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := catalog.Open(t.Context(), cfg, "catalog-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestOpen_NoSettingOfTheDatabaseReachesTheSession(t *testing.T) {
	db := database(t)
	for _, set := range []string{"statement_timeout = 1", "lock_timeout = 1", "idle_in_transaction_session_timeout = 1",
		"datestyle = 'German'", "client_encoding = 'LATIN1'", "default_transaction_read_only = on",
		"standard_conforming_strings = off", "search_path = 'nowhere'", "timezone = 'Asia/Tokyo'"} {
		exec(t, "postgres", "ALTER DATABASE "+db+" SET "+set)
	}
	if server.Version() >= "14" {
		exec(t, "postgres", "ALTER DATABASE "+db+" SET idle_session_timeout = 200")
	}
	s := open(t, server.DSN(db))
	if err := s.Wait(t.Context(), 400*time.Millisecond); err != nil {
		t.Fatalf("idle: %v", err)
	}
	v := must[catalog.Server](t)(s.Server(t.Context()))
	if v.Database != db || v.Role.Name != pgserver.Superuser || v.StartedAt.Before(time.Now().Add(-time.Hour)) {
		t.Errorf("got %+v", v)
	}
	if err := s.Exec(t.Context(), `CREATE TABLE public."o\'o" (a int)`); err != nil {
		t.Fatalf("read only: %v", err)
	}
	if _, ok, err := s.Table(t.Context(), "public", `o\'o`); err != nil || !ok {
		t.Errorf("odd name: %t %v", ok, err)
	}
}

func TestOpen_TellsWhoseFaultItIs(t *testing.T) {
	for name, dsn := range map[string]string{
		"3D000":             server.DSN("nowhere"),
		"28000":             server.DSNAs("nobody", "", "postgres"),
		catalog.CodeRefused: "postgres://postgres@127.0.0.1:1/postgres",
		catalog.CodeDNS:     "postgres://postgres@no-such-host.invalid/postgres",
	} {
		cfg, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		_, err = catalog.Open(t.Context(), cfg, "")
		class, code := catalog.Classify(err)
		if code != name || (class == fault.Stop) != (len(code) == 5) {
			t.Errorf("%s: got %s %q: %v", name, class, code, err)
		}
	}
	cfg, _ := pgx.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=require", server.Port()))
	if _, err := catalog.Open(t.Context(), cfg, ""); err != nil {
		if class, code := catalog.Classify(err); class != fault.Stop || code != catalog.CodeTLSRefused {
			t.Errorf("TLS: got %s %q: %v", class, code, err)
		}
	} else {
		t.Error("TLS: connected")
	}
}

func TestServer_ReadsAllWithLeastPrivileges(t *testing.T) {
	db := database(t, "CREATE ROLE least LOGIN REPLICATION", "CREATE ROLE plain LOGIN")
	v := must[catalog.Server](t)(open(t, server.DSNAs("least", "", db)).Server(t.Context()))
	want := catalog.Role{Name: "least", Replication: true}
	if v.Role != want {
		t.Errorf("role %+v", v.Role)
	}
	if v.SystemID == "" || v.SystemID == "0" || v.Timeline != 1 || v.CurrentLSN == 0 || v.InRecovery || v.Encoding != "UTF8" ||
		v.WALLevel != "logical" || v.MaxSlotWALKeepSize != -1 || v.MaxReplicationSlots != 20 || v.MaxWALSenders != 20 ||
		v.WalSenderTimeout != time.Minute || v.VersionNum < catalog.MinVersion {
		t.Errorf("got %+v", v)
	}
	v = must[catalog.Server](t)(open(t, server.DSNAs("plain", "", db)).Server(t.Context()))
	if v.Role.Replication {
		t.Error("a role without REPLICATION has it")
	}
}

func TestMessageEmitters_RevokeIsWhatTheServerTakes(t *testing.T) {
	db := database(t)
	s := open(t, server.DSN(db))
	e := must[catalog.MessageEmitters](t)(s.MessageEmitters(t.Context()))
	if !e.Public || len(e.Revoke) != 2 {
		t.Fatalf("got %+v", e)
	}
	exec(t, db, e.Revoke...)
	if e = must[catalog.MessageEmitters](t)(s.MessageEmitters(t.Context())); e.Public || len(e.Revoke) != 0 {
		t.Errorf("revoked: %+v", e)
	}
}

func TestWait_SeesAServerThatEndsTheConnectionAtOnce(t *testing.T) {
	s := open(t, server.DSN("postgres"))
	if err := s.Wait(t.Context(), 20*time.Millisecond); err != nil {
		t.Fatalf("quiet: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Wait(ctx, time.Minute); err != context.DeadlineExceeded {
		t.Fatalf("context ended: %v", err)
	}
	if _, err := s.Server(t.Context()); err != nil {
		t.Fatalf("not usable after a wait that ended: %v", err)
	}
	got := make(chan error, 1)
	began := time.Now()
	go func() { got <- s.Wait(context.Background(), time.Minute) }()
	exec(t, "postgres", fmt.Sprintf("SELECT pg_terminate_backend(%d)", s.PID()))
	err := <-got
	if !catalog.IsShutdown(err) || time.Since(began) > 10*time.Second {
		t.Errorf("got %v after %s", err, time.Since(began))
	}
}

func TestSlot_IsReadAsItIs(t *testing.T) {
	db := database(t)
	s := open(t, server.DSN(db))
	if _, ok, err := s.Slot(t.Context(), "read_1"); ok || err != nil {
		t.Fatalf("missing slot: %t %v", ok, err)
	}
	failover := s.VersionNum() >= 170000
	lsn, err := s.CreateSlot(t.Context(), "read_1", failover, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	v, ok, err := s.Slot(t.Context(), "read_1")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if v.Confirmed != lsn || v.Restart == 0 || v.Restart > lsn || v.Plugin != "pgoutput" || v.Type != "logical" || v.Database != db ||
		v.Active || v.TwoPhase || v.Temporary || v.Lost() || v.WALStatus != "reserved" || v.Failover != failover || v.CatalogXmin == "" {
		t.Errorf("got %+v", v)
	}
	exec(t, db, "CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)")
	now := must[catalog.Server](t)(s.Server(t.Context())).CurrentLSN
	end, err := s.AdvanceSlot(t.Context(), "read_1", now)
	if err != nil || end != now {
		t.Fatalf("advanced to %s, want %s: %v", end, now, err)
	}
	if v, _, _ := s.Slot(t.Context(), "read_1"); v.Confirmed != now {
		t.Errorf("confirmed %s", v.Confirmed)
	}
	if _, err := s.CreateSlot(t.Context(), "read_1", false, time.Minute); catalog.SQLState(err) != "42710" {
		t.Errorf("created twice: %v", err)
	}
	if err := s.DropSlot(t.Context(), "read_1"); err != nil {
		t.Error(err)
	}
}

func TestBlockers_NamesWhoHoldsUpTheSlotToAnyRole(t *testing.T) {
	db := database(t, "CREATE TABLE t (a int)", "CREATE ROLE blocked LOGIN REPLICATION")
	conn, err := server.Connect(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{"SET application_name = 'holder'", "BEGIN", "INSERT INTO t VALUES (4711)"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, db, "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'gid'")
	defer exec(t, db, "ROLLBACK PREPARED 'gid'")
	for _, user := range []string{"blocked", pgserver.Superuser} {
		s := open(t, server.DSNAs(user, pgserver.Password, "postgres"))
		_, err = s.CreateSlot(t.Context(), "blocked_1", false, 200*time.Millisecond)
		if catalog.SQLState(err) != "57014" {
			t.Fatalf("got %v", err)
		}
		if _, ok, err := s.Slot(t.Context(), "blocked_1"); ok || err != nil {
			t.Fatalf("orphan slot: %t %v", ok, err)
		}
		text := fmt.Sprint(must[[]catalog.Blocker](t)(s.Blockers(t.Context())))
		want := []string{fmt.Sprintf("process %d", conn.PgConn().PID()), `"holder"`, db, `prepared transaction "gid"`}
		if user == pgserver.Superuser {
			want = append(want, "idle in transaction", "last query INSERT", "open for")
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: no %q in %s", user, w, text)
			}
		}
		if strings.Contains(text, "4711") {
			t.Errorf("a value is shown: %s", text)
		}
	}
}
