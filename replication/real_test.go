package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// realServer starts PostgreSQL, or skips the test where it is not installed.
func realServer(t *testing.T) *pgserver.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	if _, err := pgserver.FindBinaries("15"); err != nil {
		t.Skip(err)
	}
	srv, err := pgserver.Start(t.Context(), pgserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	return srv
}

func execute(t *testing.T, srv *pgserver.Server, db string, statements ...string) {
	t.Helper()
	if err := srv.Exec(t.Context(), db, statements...); err != nil {
		t.Fatal(err)
	}
}

func query[T any](t *testing.T, srv *pgserver.Server, db, q string, args ...any) T {
	t.Helper()
	var v T
	err := srv.WithSuperuser(t.Context(), db, func(c *pgx.Conn) error {
		return c.QueryRow(t.Context(), q, args...).Scan(&v)
	})
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return v
}

// makeSlot makes a slot and returns its confirmed position.
func makeSlot(t *testing.T, srv *pgserver.Server, db, name string) pglogrepl.LSN {
	t.Helper()
	return parse(t, query[string](t, srv, db, "SELECT lsn::text FROM pg_create_logical_replication_slot($1, 'pgoutput')", name))
}

func confirmedOf(t *testing.T, srv *pgserver.Server, slot string) pglogrepl.LSN {
	t.Helper()
	return parse(t, query[string](t, srv, "postgres", "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", slot))
}

func parse(t *testing.T, s string) pglogrepl.LSN {
	t.Helper()
	lsn, err := pglogrepl.ParseLSN(s)
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

func pgConfig(t *testing.T, srv *pgserver.Server, db string) *pgconn.Config {
	t.Helper()
	cfg, err := pgconn.ParseConfig(srv.DSN(db))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func ordinary(c *Config) { c.StatusInterval, c.SilenceTimeout = time.Second, 8*time.Second }

// untilCommit reads one transaction: its inserts as they came, and the end LSN of
// its commit.
func untilCommit(t *testing.T, s *Stream) (inserts [][]byte, end pglogrepl.LSN) {
	t.Helper()
	for {
		m := next(t, s)
		if m.Data == nil {
			continue
		}
		switch m.Data[0] {
		case 'I':
			inserts = append(inserts, bytes.Clone(m.Data))
		case 'C': // flags, commit LSN, end LSN, time
			if len(inserts) == 0 {
				continue
			}
			var v uint64
			for _, b := range m.Data[10:18] {
				v = v<<8 | uint64(b)
			}
			return inserts, pglogrepl.LSN(v)
		}
	}
}

// TestReal_Stream holds what only a server can show; one server for all.
func TestReal_Stream(t *testing.T) {
	srv := realServer(t)
	t.Run("forced settings beat the database's and the role's", func(t *testing.T) { realSettings(t, srv) })
	t.Run("names with quotes", func(t *testing.T) { realNames(t, srv) })
	t.Run("confirm and finish", func(t *testing.T) { realConfirm(t, srv) })
	t.Run("survives wal_sender_timeout unread", func(t *testing.T) { realUnread(t, srv) })
}

func realSettings(t *testing.T, srv *pgserver.Server) {
	execute(t, srv, "postgres", "CREATE DATABASE odd")
	var odd []string
	for _, on := range []string{"DATABASE odd", "ROLE postgres", "ROLE postgres IN DATABASE odd"} {
		for _, set := range []string{
			"datestyle = 'German, DMY'", "timezone = 'Asia/Tokyo'", "bytea_output = escape", "client_encoding = LATIN1",
			"extra_float_digits = -10", "intervalstyle = iso_8601", "client_min_messages = error",
			"statement_timeout = '300ms'", "lock_timeout = '300ms'", "idle_in_transaction_session_timeout = '300ms'",
			"idle_session_timeout = '300ms'",
		} {
			odd = append(odd, "ALTER "+on+" SET "+set)
		}
	}
	execute(t, srv, "postgres", odd...)
	defer execute(t, srv, "postgres", "ALTER ROLE postgres RESET ALL", "ALTER ROLE postgres IN DATABASE odd RESET ALL")
	execute(t, srv, "odd",
		"CREATE TABLE t (a timestamptz, b timestamp, c bytea, d text, e float8, f interval)",
		"CREATE PUBLICATION pub FOR TABLE t WITH (publish = 'insert')")
	start := makeSlot(t, srv, "odd", "odd")
	execute(t, srv, "odd", `INSERT INTO t VALUES ('2026-02-03 04:05:06.789+00', '2026-02-03 04:05:06',
		'\x00ff41', U&'\00e9\20ac', 0.1::float8 + 0.2::float8, '1 day 02:03:04')`)
	pc := pgConfig(t, srv, "odd")
	pc.RuntimeParams["TimeZone"], pc.RuntimeParams["DateStyle"] = "Asia/Tokyo", "German" // as from a DSN
	conn := connectTo(t, pc, ordinary)
	sys, err := conn.Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := query[string](t, srv, "odd", "SELECT system_identifier::text FROM pg_control_system()")
	if sys.ID != want || sys.Timeline != 1 || sys.Database != "odd" {
		t.Errorf("%+v", sys)
	}
	time.Sleep(400 * time.Millisecond) // longer than the time-outs
	s, err := conn.Start(t.Context(), "odd", "pub", start)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	time.Sleep(400 * time.Millisecond)
	rows, _ := untilCommit(t, s)
	for _, want := range []string{"2026-02-03 04:05:06.789+00", "2026-02-03 04:05:06", `\x00ff41`, "é€", "0.30000000000000004", "1 day 02:03:04"} {
		field := append([]byte{'t', 0, 0, 0, byte(len(want))}, want...)
		if !bytes.Contains(rows[0], field) {
			t.Errorf("no field %q in %q", want, rows[0])
		}
	}
}

func realNames(t *testing.T, srv *pgserver.Server) {
	execute(t, srv, "postgres", "CREATE TABLE named (i int)", `CREATE PUBLICATION "we""ird'P, ub\" FOR TABLE named`)
	start := makeSlot(t, srv, "postgres", "named")
	execute(t, srv, "postgres", "INSERT INTO named VALUES (1)")
	s, err := connectTo(t, pgConfig(t, srv, "postgres"), ordinary).Start(t.Context(), "named", `we"ird'P, ub\`, start)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if rows, _ := untilCommit(t, s); len(rows) != 1 {
		t.Errorf("%d rows", len(rows))
	}
	_, err = connectTo(t, pgConfig(t, srv, "postgres"), ordinary).Start(t.Context(), "named", "x", start)
	if catalog.SQLState(err) != "55006" {
		t.Errorf("a slot in use: %v", err)
	}
	for _, slot := range []string{"missing", `quo"ted`, "it's", "UPPER"} {
		_, err := connectTo(t, pgConfig(t, srv, "postgres"), ordinary).Start(t.Context(), slot, "x", start)
		state := catalog.SQLState(err)
		if state == "42601" && strings.Contains(slot, `"`) {
			continue // the replication grammar of PostgreSQL 15.18 knows no doubled quote; no slot has such a name
		}
		if state != "42704" {
			t.Errorf("slot %q: %v", slot, err)
		}
	}
	s.Close()
	// A publication that is missing is the server's error in the middle of the stream.
	end := time.Now().Add(5 * time.Second)
	for {
		s, err = connectTo(t, pgConfig(t, srv, "postgres"), ordinary).Start(t.Context(), "named", "nowhere", start)
		if catalog.SQLState(err) != "55006" || time.Now().After(end) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for err == nil {
		_, err = s.Next()
	}
	if catalog.SQLState(err) != "42704" || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a missing publication: %v", err)
	}
}

func realConfirm(t *testing.T, srv *pgserver.Server) {
	execute(t, srv, "postgres", "CREATE TABLE conf (i int)", "CREATE PUBLICATION conf FOR TABLE conf")
	start := makeSlot(t, srv, "postgres", "conf")
	s, err := connectTo(t, pgConfig(t, srv, "postgres"), ordinary).Start(t.Context(), "conf", "conf", start)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	execute(t, srv, "postgres", "INSERT INTO conf VALUES (1)", "INSERT INTO conf VALUES (2)", "INSERT INTO conf VALUES (3)")
	_, first := untilCommit(t, s)
	_, second := untilCommit(t, s)
	if got := confirmedOf(t, srv, "conf"); got >= first {
		t.Fatalf("confirmed %s before Confirm(%s)", got, first)
	}
	s.Confirm(first)
	end := time.Now().Add(5 * time.Second)
	for confirmedOf(t, srv, "conf") != first {
		if time.Now().After(end) {
			t.Fatalf("confirmed %s, want %s", confirmedOf(t, srv, "conf"), first)
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.Confirm(second)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	if got := confirmedOf(t, srv, "conf"); got != second {
		t.Errorf("after Finish confirmed is %s, want %s", got, second)
	}
	// The third comes again, and nothing before it; also in a stream that begins
	// below the confirmed position.
	s = startAgain(t, srv, "conf", start)
	defer s.Close()
	rows, third := untilCommit(t, s)
	if len(rows) != 1 || third <= second || !bytes.HasSuffix(rows[0], []byte("3")) {
		t.Errorf("%d rows, end %s", len(rows), third)
	}
	// A Finish with a lot under way: what is dropped was not confirmed.
	execute(t, srv, "postgres", "INSERT INTO conf SELECT g FROM generate_series(1, 200000) g")
	next(t, s)
	s.Confirm(third)
	if err := s.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	if got := confirmedOf(t, srv, "conf"); got != third {
		t.Errorf("after Finish confirmed is %s, want %s", got, third)
	}
}

// startAgain starts a slot whose last walsender may not be gone yet.
func startAgain(t *testing.T, srv *pgserver.Server, name string, at pglogrepl.LSN) *Stream {
	t.Helper()
	end := time.Now().Add(5 * time.Second)
	for {
		s, err := connectTo(t, pgConfig(t, srv, "postgres"), ordinary).Start(t.Context(), name, name, at)
		if err == nil {
			return s
		}
		if catalog.SQLState(err) != "55006" || time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// realUnread does not call Next for longer than the server waits for a client,
// while more is sent than the sockets hold.
func realUnread(t *testing.T, srv *pgserver.Server) {
	execute(t, srv, "postgres", "CREATE TABLE unread (s text)", "CREATE PUBLICATION unread FOR TABLE unread")
	start := makeSlot(t, srv, "postgres", "unread")
	c := connectTo(t, pgConfig(t, srv, "postgres"), func(c *Config) {
		ordinary(c)
		c.StatusInterval = 500 * time.Millisecond
		c.RuntimeParams = map[string]string{"wal_sender_timeout": "2s"}
	})
	s, err := c.Start(t.Context(), "unread", "unread", start)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const rows = 20_000
	execute(t, srv, "postgres", fmt.Sprintf("INSERT INTO unread SELECT repeat('x', 1000) FROM generate_series(1, %d)", rows))
	time.Sleep(5 * time.Second) // more than twice wal_sender_timeout; nothing to poll for
	got, end := untilCommit(t, s)
	if len(got) != rows {
		t.Errorf("%d rows, want %d", len(got), rows)
	}
	s.Confirm(end)
	if err := s.Finish(t.Context()); err != nil {
		t.Error(err)
	}
	if at := confirmedOf(t, srv, "unread"); at != end {
		t.Errorf("confirmed %s, want %s", at, end)
	}
	if _, err := s.Next(); err == nil || errors.Is(err, ErrSilent) {
		t.Errorf("Next after Finish: %v", err)
	}
}
