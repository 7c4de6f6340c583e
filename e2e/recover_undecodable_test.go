package e2e_test

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

var hugeRow = flag.Bool("huge_row", false, "recover: also with a bytea that is too large for the server to print, which takes a minute and a few GB of memory")

// undecodableTest counts over the cases.
type undecodableTest struct {
	t                                    *testing.T
	server                               *rig
	missing, rows, halted, named, leaked int
	wrong                                int
}

// recoverUndecodable has transactions that the server can never decode: a
// text that is not UTF-8, one that has no equivalent in it, a publication that did
// not exist yet. The relay halts, says which one and what to do; recover names it,
// asks, passes it and publishes its rows, but for those that nobody can read, which
// it names; and what comes behind is published.
func recoverUndecodable(t *testing.T) {
	u := &undecodableTest{t: t, server: newRig(t, rigOptions{noTable: true, partitions: 1})}
	u.server.pg.RequireControl(t)
	u.value("SQL_ASCII", "22021", "convert_from('\\x"+hexOf(secretPayload)+"ff'::bytea, 'SQL_ASCII')")
	u.value("WIN1252", "22P05", "'"+secretPayload+"' || chr(129)")
	u.publication(false)
	u.publication(true)
	if *hugeRow {
		u.value("UTF8", "XX000", "convert_to(repeat('x', 550000000), 'UTF8')")
	}
	ok := u.wrong == 0 && u.missing == 0 && u.leaked == 0
	e2e.Result(t, "recover", ok, "case", "undecodable", "missing", u.missing, "rows", u.rows, "halted", u.halted, "unreadable_named", u.named,
		"leaked", u.leaked, "wrong", u.wrong, "pg", u.server.pg.Version)
}

func hexOf(s string) string { return fmt.Sprintf("%x", s) }

func (u *undecodableTest) hold(ok bool, format string, args ...any) {
	u.t.Helper()
	if !ok {
		u.wrong++
		u.t.Errorf(format, args...)
	}
}

// says looks for words, and for what must not be shown.
func (u *undecodableTest) says(what, text string, words ...string) {
	u.t.Helper()
	for _, w := range words {
		u.hold(strings.Contains(text, w), "%s: does not say %q:\n%s", what, w, text)
	}
	for _, secret := range []string{secretPayload, "0xff", "0x81"} {
		if strings.Contains(text, secret) {
			u.leaked++
			u.t.Errorf("%s: shows %s:\n%s", what, secret, text)
		}
	}
}

// database makes one of that encoding, with an outbox of its own.
func (u *undecodableTest) database(name, encoding string) *rig {
	u.t.Helper()
	x, pg := *u.server, *u.server.pg
	pg.Database = name
	x.pg, x.slot, x.dsn = &pg, name, pg.DSN()
	pg.ExecOn(u.t, "postgres", fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C'", name, encoding))
	x.topic = x.k.Topic(u.t, name, 1)
	payload := "text"
	if encoding == "UTF8" {
		payload = "bytea"
	}
	x.pg.Exec(u.t, "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text, type text NOT NULL DEFAULT 'created', payload "+payload+")",
		"ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL")
	return &x
}

func insertRow(id, payload string) string {
	return fmt.Sprintf("INSERT INTO outbox (id, aggregateid, payload) VALUES ('%s', 'k', %s)", id, payload)
}

var commitAt = regexp.MustCompile(`the transaction committed at ([0-9A-F]+/[0-9A-F]+) \(xid (\d+)`)

// value has a transaction with savepoints, and one value that cannot be printed.
func (u *undecodableTest) value(encoding, code, expr string) {
	u.t.Helper()
	r := u.database("undecodable_"+strings.ToLower(code), encoding)
	r.setup(u.t)
	r.pg.Exec(u.t, insertRow("before-1", "'x'"), insertRow("before-2", "'x'"))
	conn := r.pg.Conn(u.t)
	for _, sql := range []string{"SET client_encoding = 'SQL_ASCII'", "BEGIN", insertRow("with-1", "'x'"), "SAVEPOINT s", insertRow("with-2", "'x'"), insertRow("bad", expr), "RELEASE s",
		insertRow("with-3", "'x'"), "COMMIT"} {
		if _, err := conn.Exec(u.t.Context(), sql); err != nil {
			u.t.Fatalf("%.60s: %v", sql, err)
		}
	}
	behind := mustLSN(u.t, r.pg.Query(u.t, "SELECT pg_current_wal_insert_lsn()"))
	r.pg.Exec(u.t, insertRow("after-1", "'x'"), insertRow("after-2", "'x'"))
	u.rows += 8

	relay := r.start(u.t)
	at := u.halts(r, relay, code)
	if m := commitAt.FindStringSubmatch(at); m == nil || mustLSN(u.t, m[1]) >= behind {
		u.hold(false, "%s: names no transaction, or one behind %s: %s", code, behind, at)
	} else {
		at = m[1]
	}
	status, _, _ := e2e.RunRelay(u.t, time.Minute, e2e.RelayOptions{Config: r.config() + "admin:\n  listen: " + relay.Admin + "\n", Command: "status"})
	_, told, _ := e2e.RunRelay(u.t, time.Minute, e2e.RelayOptions{Config: r.config() + "admin:\n  listen: " + relay.Admin + "\n", Command: "status"})
	u.hold(status == 0, "%s: status of a halted relay ended with %d", code, status)
	u.says(code+": status", told, "halted", at, "to fix it", "cdc-relay recover")
	u.stop(code, relay)

	was := r.confirmed(u.t)
	exit, stdout, stderr := r.command(u.t, "recover", "--order-by", "id", "--dry-run")
	u.hold(exit == 0, "%s: a dry run ended with %d: %s%s", code, exit, stdout, stderr)
	u.says(code+": dry run", stdout+stderr, "committed at "+at, code, "nothing was changed", "row \"bad\" cannot be read", "would publish")
	exit, stdout, stderr = r.command(u.t, "recover", "--order-by", "id") // the end of input is a no
	u.hold(exit == 1, "%s: recover that nobody confirmed ended with %d: %s%s", code, exit, stdout, stderr)
	u.says(code+": declined", stdout+stderr, "nothing was changed")
	u.hold(r.confirmed(u.t) == was, "%s: a dry run or a no moved the slot from %s to %s", code, was, r.confirmed(u.t))
	if code == "22021" {
		u.ownPosition(r, at)
	}
	u.recover(code, r)
	_, told, _ = r.command(u.t, "status")
	u.says(code+": open gap", told, "row \"bad\" cannot be read from the table either", "open gap")
	u.named += strings.Count(told, "row \"bad\"")
	u.goesOn(code, r, "bad")

	// Mended, it is published by its id, and the gap is closed.
	r.pg.Exec(u.t, "UPDATE outbox SET payload = 'mended' WHERE id = 'bad'")
	exit, stdout, stderr = r.command(u.t, "backfill", "--where", "id = 'bad'", "--order-by", "id", "--closes-gaps")
	u.hold(exit == 0, "%s: backfill of the mended row ended with %d: %s%s", code, exit, stdout, stderr)
	relay = r.startReady(u.t)
	_, told, _ = r.command(u.t, "status")
	u.says(code+": no gap", told, "open gaps")
	u.hold(!strings.Contains(told, "open gap "), "%s: a gap is open after all is mended:\n%s", code, told)
	u.hold(relay.Terminate(u.t, 30*time.Second) == 0, "%s: the relay did not stop cleanly", code)
	u.count(code, r)
}

// ownPosition: adopt with the position of the transaction itself would skip nothing,
// and says so.
func (u *undecodableTest) ownPosition(r *rig, at string) {
	u.t.Helper()
	was := r.confirmed(u.t)
	exit, stdout, stderr := r.command(u.t, "adopt", "--lsn", at, "--yes")
	said := stdout + stderr
	u.hold(exit == 1 || strings.Contains(said, "note: a transaction is committed exactly at"), "adopt at the transaction's own position ended with %d: %s", exit, said)
	u.says("adopt at its own position", said, "--lsn "+(mustLSN(u.t, at)+1).String())
	u.hold(r.confirmed(u.t) == was, "it moved the slot")
}

// halts waits until the relay says that the server cannot decode what comes next,
// and returns that.
func (u *undecodableTest) halts(r *rig, relay *e2e.Relay, code string) string {
	u.t.Helper()
	relay.WaitNotReady(u.t, time.Minute, "To fix it: stop the relay and run cdc-relay recover")
	_, body := relay.Ready()
	u.says(code+": readyz", body, `"halted"`, code, "Nothing behind it is published", "WAL")
	e2e.Eventually(u.t, 10*time.Second, "metrics that tell of it", func() bool {
		m := relay.Metrics(u.t)
		return strings.Contains(m, "cdc_relay_halted_records 1") && !strings.Contains(m, "cdc_relay_oldest_unpublished_age_seconds 0\n")
	})
	u.hold(relay.Alive(), "%s: the relay ended", code)
	u.halted++
	return body
}

func (u *undecodableTest) stop(what string, relay *e2e.Relay) {
	u.t.Helper()
	began := time.Now()
	exit := relay.Terminate(u.t, 30*time.Second)
	u.hold(exit == 1 && time.Since(began) < 3*time.Second, "%s: a halted relay ended with %d, %v after SIGTERM", what, exit, time.Since(began))
	u.says(what+": log", relay.Log(), "stopped while halted", "cdc-relay recover")
}

func (u *undecodableTest) recover(what string, r *rig) {
	u.t.Helper()
	exit, stdout, stderr := r.command(u.t, "recover", "--order-by", "id", "--yes")
	u.hold(exit == 0, "%s: recover ended with %d: %s%s", what, exit, stdout, stderr)
	u.says(what+": recover", stdout+stderr, "found:", "gap covered")
	u.t.Logf("%s:\n%s", what, stdout)
}

// goesOn: the relay streams what comes behind. Nothing is missing but what nobody
// can read.
func (u *undecodableTest) goesOn(what string, r *rig, unreadable ...string) {
	u.t.Helper()
	relay := r.startReady(u.t)
	r.pg.Exec(u.t, insertRow("last", "'x'"))
	u.rows++
	r.waitCaughtUp(u.t, 30*time.Second)
	u.hold(relay.Terminate(u.t, 30*time.Second) == 0, "%s: the relay did not stop cleanly", what)
	u.says(what+": log after recover", relay.Log())
	exit, stdout, stderr := r.command(u.t, "recover", "--order-by", "id")
	u.hold(exit == 0, "%s: recover without need ended with %d: %s%s", what, exit, stdout, stderr)
	u.says(what+": recover without need", stdout, "nothing to recover")
	u.count(what, r, unreadable...)
}

// count adds up the rows of the table that are in no record.
func (u *undecodableTest) count(what string, r *rig, unreadable ...string) {
	u.t.Helper()
	want := strings.Fields(r.pg.Query(u.t, "SELECT string_agg(id, ' ' ORDER BY id) FROM outbox"))
	seen := map[string]int{}
	for _, rec := range r.k.Consume(u.t, r.topic) {
		id, _ := rec.Header("id")
		seen[id]++
	}
	for _, id := range unreadable {
		u.hold(seen[id] == 0, "%s: row %s, which nobody can read, is in the topic", what, id)
		seen[id]++
	}
	for _, id := range want {
		if seen[id] == 0 {
			u.missing++
			u.t.Errorf("%s: row %s is missing", what, id)
		}
	}
}

// publication has rows from before the publication was there, on a slot that was
// made by hand; or was dropped and made again, which the relay refuses to pass.
func (u *undecodableTest) publication(again bool) {
	u.t.Helper()
	name := "undecodable_42704"
	if again {
		name += "_again"
	}
	r := u.database(name, "UTF8")
	r.sourceYAML = "  publication: pub\n"
	const create = "CREATE PUBLICATION pub FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)"
	slot := "SELECT pg_create_logical_replication_slot('" + name + "', 'pgoutput')"
	if again {
		r.pg.Exec(u.t, create, slot)
		r.setup(u.t, "--existing-slot")
		r.pg.Exec(u.t, insertRow("unpublished-1", "'x'"), "DROP PUBLICATION pub")
		u.rows++
	} else {
		r.pg.Exec(u.t, slot)
	}
	r.pg.Exec(u.t, insertRow("doubt-1", "'x'"), insertRow("doubt-2", "'x'"), insertRow("doubt-3", "'x'"), create, insertRow("after-1", "'x'"))
	u.rows += 4
	if !again {
		r.setup(u.t, "--existing-slot")
		relay := r.start(u.t)
		relay.WaitNotReady(u.t, time.Minute, "did not exist at this point of the WAL")
		_, body := relay.Ready()
		u.says(name, body, `"halted"`, "To fix it: see that it is there", "stop the relay and run cdc-relay recover")
		u.halted++
		u.stop(name, relay)
	}
	exit, stdout, stderr := r.command(u.t, "recover", "--order-by", "id", "--dry-run")
	u.hold(exit == 0, "%s: a dry run ended with %d: %s%s", name, exit, stdout, stderr)
	u.says(name, stdout, "found:", "did not exist")
	u.recover(name, r)
	u.goesOn(name, r)
}
