package e2e_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// setupTest is one server with a database for each part.
type setupTest struct {
	*rig
	t *testing.T
}

// TestE2E_SetupAdopt sets up in the ways that the documentation names: again and
// again, by a DBA with the SQL of a dry run, with too few privileges, and against
// an open transaction; runs with the least privileges; and has a second instance
// take over.
func TestE2E_SetupAdopt(t *testing.T) {
	s := &setupTest{t: t, rig: newRig(t, rigOptions{noTable: true})}
	s.pg.RequireControl(t) // roles outlive a database
	idempotent := s.idempotent()
	dba := s.dryRun()
	least := s.leastPrivileges()
	missing := s.missingPrivileges()
	blocked := s.blocked()
	declined := s.declined()
	takeover, stands := s.takeOver()
	ok := idempotent && dba && least && missing && blocked && declined && stands && takeover < 10*time.Second
	e2e.Result(t, "setup_adopt", ok, "idempotent", idempotent, "dry_run", dba, "least_privileges", least, "missing_named", missing,
		"blocker_named", blocked, "declined", declined, "standby_ready", stands, "takeover_ms", takeover.Milliseconds())
}

func (s *setupTest) hold(ok *bool, holds bool, format string, args ...any) {
	s.t.Helper()
	if !holds {
		*ok = false
		s.t.Errorf(format, args...)
	}
}

// publishes starts the relay, inserts a row, sees it in the topic, and stops.
func (s *setupTest) publishes(r *rig, id string) bool {
	s.t.Helper()
	relay := r.startReady(s.t)
	ok := s.arrives(r, id)
	code := relay.Terminate(s.t, 30*time.Second)
	s.hold(&ok, code == 0, "%s: the relay ended with %d", id, code)
	return ok
}

func (s *setupTest) arrives(r *rig, id string) bool {
	s.t.Helper()
	r.pg.Exec(s.t, "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES ('"+id+"', 'order', 'k', 'created', '{}')")
	r.waitCaughtUp(s.t, 30*time.Second)
	ok := true
	n := 0
	for _, rec := range r.k.Consume(s.t, r.topic) {
		if got, _ := rec.Header("id"); got == id {
			n++
		}
	}
	s.hold(&ok, n == 1, "row %s came %d times", id, n)
	return ok
}

// idempotent: nothing changes the second time, not even beside a running relay.
func (s *setupTest) idempotent() bool {
	r := s.inDatabase(s.t, "again")
	r.pg.Exec(s.t, outboxTable)
	ok := true
	state := func() string {
		return r.pg.Query(s.t, `SELECT concat(s.confirmed_flush_lsn, ' ', p.oid) FROM pg_replication_slots s, pg_publication p WHERE s.slot_name = $1`, r.slot)
	}
	r.setup(s.t)
	was := state()
	said := r.setup(s.t)
	s.hold(&ok, state() == was && strings.Contains(said, "already set up"), "a second setup made %q of %q:\n%s", state(), was, said)
	relay := r.startReady(s.t)
	r.setup(s.t)
	s.hold(&ok, relay.Alive(), "setup ended a running relay")
	ok = s.arrives(r, "again/1") && ok
	code := relay.Terminate(s.t, 30*time.Second)
	s.hold(&ok, code == 0, "the relay ended with %d", code)
	return ok
}

// dryRun: its SQL, run by psql, and setup --existing-slot, are a whole setup,
// also with the table in the default shape.
func (s *setupTest) dryRun() bool {
	psql, err := pgserver.ClientBinary("psql")
	if err != nil {
		s.t.Skip(err)
	}
	r := s.inDatabase(s.t, "dba")
	if code, _, stderr := r.command(s.t, "setup", "--dry-run"); code != 0 {
		s.t.Fatalf("setup --dry-run ended with %d: %s", code, stderr)
	}
	_, sql, _ := r.command(s.t, "setup", "--dry-run")
	ok := true
	s.hold(&ok, r.pg.Query(s.t, "SELECT count(*) FROM pg_publication") == "0", "a dry run made a publication")
	if !strings.Contains(sql, "CREATE TABLE") { // of a shape of its own
		r.pg.Exec(s.t, outboxTable)
	}
	cmd := exec.Command(psql, "--no-psqlrc", "--set=ON_ERROR_STOP=1", r.pg.DSN())
	cmd.Stdin = strings.NewReader(sql)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.hold(&ok, false, "the SQL of setup --dry-run fails: %v\n%s\n%s", err, out, sql)
		return false
	}
	code, _, stderr := r.command(s.t, "setup")
	s.hold(&ok, code == 1 && strings.Contains(stderr, "--existing-slot"), "setup takes a slot that it did not make, or does not say how: %d, %s", code, stderr)
	r.setup(s.t, "--existing-slot")
	return s.publishes(r, "e0000000-0000-4000-8000-000000000001") && ok
}

// leastPrivileges: run needs LOGIN and REPLICATION, and no right on any table.
func (s *setupTest) leastPrivileges() bool {
	r := s.inDatabase(s.t, "least")
	r.pg.Exec(s.t, outboxTable, "REVOKE ALL ON SCHEMA public FROM PUBLIC", "CREATE ROLE least LOGIN REPLICATION")
	r.setup(s.t)
	x := *r
	x.dsn = asRole(s.t, r.dsn, "least")
	return s.publishes(&x, "least/1")
}

// missingPrivileges: setup names the one that is missing, and leaves nothing.
func (s *setupTest) missingPrivileges() bool {
	r := s.inDatabase(s.t, "missing")
	r.pg.Exec(s.t, outboxTable, "CREATE ROLE poor LOGIN", "CREATE ROLE owner LOGIN REPLICATION", "ALTER TABLE outbox OWNER TO owner")
	ok := true
	refused := func(role string, words ...string) {
		s.t.Helper()
		x := *r
		x.dsn = asRole(s.t, r.dsn, role)
		code, stdout, stderr := x.command(s.t, "setup")
		s.hold(&ok, code == 1, "setup of %s ended with %d", role, code)
		for _, w := range words {
			s.hold(&ok, strings.Contains(stderr, w), "setup of %s does not say %q: %s%s", role, w, stdout, stderr)
		}
	}
	refused("poor", "REPLICATION", `ALTER ROLE "poor" REPLICATION`)
	refused("owner", `GRANT CREATE ON DATABASE "missing" TO "owner"`)
	r.pg.Exec(s.t, `GRANT CREATE ON DATABASE missing TO owner`, "CREATE ROLE other LOGIN REPLICATION", "GRANT CREATE ON DATABASE missing TO other")
	refused("other", "owner of its tables", "CREATE PUBLICATION")
	s.hold(&ok, r.pg.Query(s.t, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", r.slot) == "0", "a setup that was refused left a slot")
	x := *r
	x.dsn = asRole(s.t, r.dsn, "owner")
	x.setup(s.t)
	return s.publishes(&x, "missing/1") && ok
}

// blocked: an open transaction holds up the slot; setup gives up within its
// bound, names it, and leaves no slot.
func (s *setupTest) blocked() bool {
	r := s.inDatabase(s.t, "blocked")
	r.pg.Exec(s.t, outboxTable)
	conn := s.pg.ConnTo(s.t, s.pg.DSNFor("postgres")) // another database: that makes no difference
	ctx := context.Background()
	var pid int
	if _, err := conn.Exec(ctx, "BEGIN; CREATE TABLE held (t text)"); err != nil {
		s.t.Fatal(err)
	}
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		s.t.Fatal(err)
	}
	ok := true
	began := time.Now()
	code, stdout, stderr := r.command(s.t, "setup", "--slot-timeout", "2s")
	took := time.Since(began)
	s.hold(&ok, code == 1 && took > 2*time.Second && took < 12*time.Second, "a blocked setup ended with %d after %v: %s", code, took, stdout)
	for _, w := range []string{fmt.Sprint(pid), "postgres", "idle in transaction", "pg_terminate_backend"} {
		s.hold(&ok, strings.Contains(stderr, w), "a blocked setup does not say %q: %s", w, stderr)
	}
	s.hold(&ok, !strings.Contains(stderr, "held"), "a blocked setup shows the statement: %s", stderr)
	slots := func() string {
		return r.pg.Query(s.t, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", r.slot)
	}
	s.hold(&ok, slots() == "0", "a blocked setup left a slot")
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		s.t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	s.hold(&ok, slots() == "0", "a slot came after the setup that was given up")
	r.setup(s.t)
	return s.publishes(r, "blocked/1") && ok
}

// declined: adopt asks, and a no changes nothing.
func (s *setupTest) declined() bool {
	r := s.inDatabase(s.t, "declined")
	r.pg.Exec(s.t, outboxTable)
	r.setup(s.t)
	r.pg.Exec(s.t, "INSERT INTO outbox (id, payload) VALUES ('declined/1', 'x')", "SELECT pg_replication_slot_advance('declined', pg_current_wal_lsn())")
	ok := true
	at := r.confirmed(s.t)
	code, stdout, stderr := r.command(s.t, "adopt", "--lsn", at) // the end of input is a no
	s.hold(&ok, code == 1 && strings.Contains(stdout, at) && strings.Contains(stderr, "nothing was changed"), "adopt that nobody confirmed ended with %d: %s%s", code, stdout, stderr)
	code = r.start(s.t).WaitExit(s.t, 20*time.Second)
	s.hold(&ok, code == 1, "the relay runs after an adopt that nobody confirmed: %d", code)
	code, _, stderr = r.command(s.t, "adopt", "--lsn", "0/1", "--yes")
	s.hold(&ok, code == 1 && strings.Contains(stderr, "cannot go back"), "adopt of an earlier position: %d, %s", code, stderr)
	code, _, stderr = r.command(s.t, "adopt", "--lsn", "FFFF/0", "--yes")
	s.hold(&ok, code == 1 && strings.Contains(stderr, "beyond the server's position"), "adopt of a later position than the server's: %d, %s", code, stderr)
	return ok
}

// takeOver: the second instance is ready as standby, and streams within seconds
// after the first was killed.
func (s *setupTest) takeOver() (took time.Duration, stands bool) {
	r := s.inDatabase(s.t, "takeover")
	r.pg.Exec(s.t, outboxTable)
	r.setup(s.t)
	first := r.startReady(s.t)
	second := r.startReady(s.t)
	_, body := second.Ready()
	stands = true
	s.hold(&stands, strings.Contains(body, `"standby"`), "the second instance is ready, but not as standby: %s", body)
	stands = s.arrives(r, "takeover/1") && stands
	s.hold(&stands, first.Alive() && second.Alive(), "an instance ended")
	first.Kill()
	began := time.Now()
	e2e.Eventually(s.t, 30*time.Second, "the second instance to stream", func() bool {
		ready, body := second.Ready()
		return ready && strings.Contains(body, `"streaming"`)
	})
	took = time.Since(began)
	stands = s.arrives(r, "takeover/2") && stands
	code := second.Terminate(s.t, 30*time.Second)
	s.hold(&stands, code == 0, "the second instance ended with %d", code)
	return took, stands
}
