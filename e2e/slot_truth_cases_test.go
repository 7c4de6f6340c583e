package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/e2e"
)

func truthCases() []truthCase {
	return append(append(slotCases(), publicationCases()...), serverCases()...)
}

// slotCases are about the slot and its mark.
func slotCases() []truthCase {
	anew := (*truth).anew
	atSlot := (*truth).atSlot
	const makeAnew = "cdc-relay recover"
	return []truthCase{
		{name: "recreated", says: []string{`slot "SLOT"`, "ahead of the mark", "made it anew", "cdc-relay adopt --lsn"}, adopt: atSlot,
			breaks: func(x *truth) { x.put("doubt"); x.anew() }},
		{name: "recreated_running", running: true, says: []string{`slot "SLOT"`, "ahead of the mark", "cdc-relay adopt --lsn"}, adopt: atSlot,
			breaks: func(x *truth) { x.whileAway(func() { x.dropSlot(); x.put("doubt"); x.anew() }) }},
		{name: "advanced", says: []string{`slot "SLOT"`, "ahead of the mark", "someone else advanced it", "cdc-relay adopt --lsn"}, adopt: atSlot,
			breaks: func(x *truth) { x.put("doubt"); x.advance() }},
		{name: "advanced_running", running: true, says: []string{`slot "SLOT"`, "ahead of the mark", "cdc-relay adopt --lsn"}, adopt: atSlot,
			breaks: func(x *truth) { x.whileAway(func() { x.seize("SELECT 1"); x.put("doubt"); x.advance() }) }},
		{name: "beyond_wal", says: []string{`slot "SLOT"`, "1000/0", "beyond the end of the server's WAL", makeAnew}, mend: anew, adopt: atSlot,
			breaks: func(x *truth) { x.rogueConfirm("1000/0"); x.put("doubt") }},
		{name: "other_database", doubt: from, says: []string{`slot "SLOT"`, "belongs to the database", "truth_other_database", "source.slot"},
			breaks: func(x *truth) { x.put("doubt"); x.elsewhere() }, mend: func(x *truth) { x.dsn = x.pg.DSN() }},
		{name: "other_plugin", doubt: from, says: []string{`slot "SLOT"`, `"test_decoding"`, makeAnew}, mend: anew, adopt: atSlot,
			breaks: func(x *truth) { x.put("doubt"); x.replace("'test_decoding'") }},
		{name: "two_phase", since: 14, doubt: from, says: []string{`slot "SLOT"`, "two_phase", makeAnew}, mend: anew, adopt: atSlot,
			breaks: func(x *truth) { x.put("doubt"); x.replace("'pgoutput', false, true") }},
		{name: "no_mark", doubt: before, says: []string{`slot "SLOT"`, "no mark", "cdc-relay adopt --lsn", "setup --existing-slot"}, adopt: atSlot,
			begin:  func(x *truth) { x.pg.Exec(x.t, outboxTable, outboxPublication) },
			breaks: func(x *truth) { x.ensureMarks(); x.put("doubt"); x.anew() }},
		{name: "no_slot", says: []string{`slot "SLOT" does not exist`, makeAnew}, mend: anew, adopt: atSlot,
			breaks: func(x *truth) { x.put("doubt"); x.dropSlot() }},
		{name: "dropped_running", running: true, doubt: from, says: []string{`slot "SLOT"`, makeAnew}, mend: anew, adopt: atSlot,
			breaks: func(x *truth) { x.whileAway(func() { x.dropSlot(); x.put("doubt") }) }},
	}
}

const outboxPublication = "CREATE PUBLICATION outbox_pub FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)"

// publicationCases are about what the slot can see.
func publicationCases() []truthCase {
	here := func(x *truth) string { return x.pg.Query(x.t, "SELECT pg_current_wal_lsn()") } // after what cannot be decoded
	atSlot := (*truth).atSlot
	recreate := func(x *truth) { x.pg.Exec(x.t, "DROP TABLE outbox", outboxTable) }
	addTable := func(x *truth) { x.pg.Exec(x.t, "ALTER PUBLICATION outbox_pub ADD TABLE outbox") }
	alter := func(how string) func(*truth) {
		return func(x *truth) { x.pg.Exec(x.t, "ALTER PUBLICATION outbox_pub "+how) }
	}
	changed := func(how string) func(*truth) {
		return func(x *truth) { alter(how)(x); x.put("doubt") }
	}
	create := func(x *truth) { x.pg.Exec(x.t, outboxPublication) }
	return []truthCase{
		{name: "publication_missing", says: []string{`publication "outbox_pub" does not exist`, "CREATE PUBLICATION", "cdc-relay adopt --lsn"}, mend: create, adopt: here,
			breaks: func(x *truth) { x.pg.Exec(x.t, "DROP PUBLICATION outbox_pub"); x.put("doubt") }},
		{name: "publication_dropped_running", running: true, doubt: from, says: []string{`publication "outbox_pub"`, "cdc-relay adopt"}, mend: create, adopt: here,
			breaks: func(x *truth) { x.pg.Exec(x.t, "DROP PUBLICATION outbox_pub"); x.put("doubt") }},
		{name: "publication_after_slot", halts: true, doubt: from, says: []string{`publication "outbox_pub" did not exist at this point of the WAL`, "cdc-relay recover"}, adopt: here,
			begin:  func(x *truth) { x.pg.Exec(x.t, outboxTable) },
			breaks: func(x *truth) { x.anew(); x.put("doubt"); create(x); x.setup(x.t, "--existing-slot") }},
		{name: "table_recreated", says: []string{"table public.outbox", `is not in publication "outbox_pub"`, "ADD TABLE", "cdc-relay adopt"}, mend: addTable, adopt: atSlot,
			breaks: func(x *truth) { recreate(x); x.put("doubt") }},
		{name: "table_recreated_added", says: []string{"table public.outbox was dropped and created again", "cdc-relay adopt"}, adopt: atSlot,
			breaks: func(x *truth) { recreate(x); x.put("doubt"); addTable(x) }},
		{name: "table_recreated_running", running: true, says: []string{"table public.outbox was dropped", "cdc-relay adopt"}, mend: addTable, adopt: atSlot,
			breaks: func(x *truth) { recreate(x); x.put("doubt") }},
		{name: "partition_detached_running", running: true, says: []string{"partition public.outbox_1 was detached from public.outbox", "cdc-relay adopt"}, adopt: atSlot,
			begin: (*truth).beginPartitioned, breaks: (*truth).detach},
		{name: "inserts_off_running", running: true, says: []string{`publication "outbox_pub" was changed`, "insert=false", "cdc-relay adopt"}, mend: alter("SET (publish = 'insert')"), adopt: atSlot,
			breaks: changed("SET (publish = 'update')")},
		{name: "row_filter_running", running: true, since: 15, says: []string{`table public.outbox is published by "outbox_pub" in another way`, "every row", "filter=", "cdc-relay adopt"}, mend: alter("SET TABLE outbox"), adopt: atSlot,
			breaks: changed("SET TABLE outbox WHERE (aggregatetype = 'none')")},
		{name: "inserts_off_and_on", says: []string{`publication "outbox_pub" was altered`, "now as it was", "cdc-relay adopt"}, adopt: atSlot,
			breaks: func(x *truth) { changed("SET (publish = 'update')")(x); alter("SET (publish = 'insert')")(x) }},
		{name: "table_removed_and_added", says: []string{"public.outbox was taken out of what publication", "cdc-relay adopt"}, adopt: atSlot,
			breaks: func(x *truth) { changed("DROP TABLE outbox")(x); addTable(x) }},
		{name: "table_removed_running", running: true, says: []string{"table public.outbox has left publication", "cdc-relay adopt"}, mend: addTable, adopt: atSlot,
			breaks: changed("DROP TABLE outbox")},
	}
}

// serverCases concern all slots of the server, and so run alone, the last one
// at the end.
func serverCases() []truthCase {
	anew, atSlot := (*truth).anew, (*truth).atSlot
	lost := []string{`slot "SLOT" is lost`, "max_slot_wal_keep_size", "cdc-relay recover"}
	return []truthCase{
		{name: "server_synchronous", doubt: certain, says: []string{`synchronous_standby_names (FIRST 1 ("cdc-relay"))`, "source.application_name", "source.allow_synchronous"},
			breaks: func(x *truth) { x.put("doubt"); x.set("synchronous_standby_names", `FIRST 1 ("cdc-relay")`) },
			mend:   func(x *truth) { x.set("synchronous_standby_names", "") }},
		{name: "server_lost", says: lost, mend: anew, adopt: atSlot,
			breaks: func(x *truth) { x.put("doubt"); x.lose() }},
		{name: "server_lost_running", running: true, says: lost, mend: anew, adopt: atSlot,
			breaks: func(x *truth) {
				x.relay.Pause(x.t) // so that it does not confirm
				x.lose()
				x.put("doubt")
				x.relay.Resume(x.t)
			}},
		{name: "server_went_back", says: []string{`slot "SLOT" was published up to`, "the server went back", "cdc-relay adopt --lsn"}, adopt: atSlot,
			mend: func(x *truth) { x.low = mustLSN(x.t, atSlot(x)); x.high = x.low }, // what is gone was published
			breaks: func(x *truth) {
				x.restoreOlder(func() {
					relay := x.startReady(x.t)
					x.put("gone")
					x.waitCaughtUp(x.t, 30*time.Second)
					relay.Terminate(x.t, 30*time.Second)
				})
			}},
	}
}

// whileAway does f while the relay is paused, so that it cannot hurry.
func (x *truth) whileAway(f func()) {
	x.t.Helper()
	x.relay.Pause(x.t)
	f()
	x.relay.Resume(x.t)
}

// advance moves the slot to the end of WAL.
func (x *truth) advance() {
	x.t.Helper()
	x.seize("SELECT pg_replication_slot_advance('" + x.slot + "', pg_current_wal_lsn())")
}

// replace makes a slot of the same name, with these arguments.
func (x *truth) replace(args string) {
	x.t.Helper()
	x.dropSlot()
	x.pg.Exec(x.t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', %s)", x.slot, args))
}

// elsewhere leads the relay to another database, which has the same outbox.
func (x *truth) elsewhere() {
	x.t.Helper()
	db := x.pg.Database + "_2"
	x.pg.ExecOn(x.t, "postgres", "CREATE DATABASE "+db)
	x.pg.ExecOn(x.t, db, outboxTable, outboxPublication)
	x.dsn = x.pg.DSNFor(db)
}

// ensureMarks has setup of another slot make the topic of the marks, where no
// other case has made it.
func (x *truth) ensureMarks() {
	x.t.Helper()
	other := *x.rig
	other.slot += "_other"
	other.setup(x.t)
	x.pg.Exec(x.t, "SELECT pg_drop_replication_slot('"+other.slot+"')")
}

// rogueConfirm confirms a position, as a careless reader of the slot does.
func (x *truth) rogueConfirm(position string) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), e2e.Timeout)
	defer cancel()
	conn, err := pgconn.Connect(ctx, x.pg.DSN()+"&replication=database")
	if err != nil {
		x.t.Fatal(err)
	}
	defer conn.Close(ctx)
	err = pglogrepl.StartReplication(ctx, conn, x.slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'outbox_pub'"}})
	if err != nil {
		x.t.Fatal(err)
	}
	lsn := mustLSN(x.t, position)
	err = pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: lsn, WALFlushPosition: lsn, WALApplyPosition: lsn})
	if err != nil {
		x.t.Fatal(err)
	}
	e2e.Eventually(x.t, 10*time.Second, "the server to believe "+position, func() bool { return x.confirmed(x.t) == position })
}

// beginPartitioned is begin with a partitioned outbox.
func (x *truth) beginPartitioned() {
	x.t.Helper()
	x.pg.Exec(x.t, strings.Replace(outboxTable, "PRIMARY KEY", "NOT NULL", 1)+" PARTITION BY LIST (aggregatetype)",
		"CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN ('order')", "CREATE TABLE outbox_2 PARTITION OF outbox DEFAULT")
	x.beginWith(true)
}

// detach takes a partition away, into which a row is then inserted.
func (x *truth) detach() {
	x.t.Helper()
	x.pg.Exec(x.t, "ALTER TABLE outbox DETACH PARTITION outbox_1")
	x.low = mustLSN(x.t, x.now())
	x.pg.Exec(x.t, fmt.Sprintf("INSERT INTO outbox_1 (id, aggregateid, payload) VALUES ('%s', 'k', 'payload-of-doubt')", x.id("doubt")))
	x.high = mustLSN(x.t, x.now())
}

// set changes a setting of the server, now.
func (x *truth) set(name, value string) {
	x.t.Helper()
	x.pg.ExecOn(x.t, "postgres", fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value), "SELECT pg_reload_conf()")
	e2e.Eventually(x.t, 10*time.Second, name+" to change", func() bool {
		return x.pg.Query(x.t, "SELECT current_setting($1)", name) == value
	})
}

// lose writes so much WAL that the server takes away what the slot needs.
func (x *truth) lose() {
	x.t.Helper()
	x.set("max_slot_wal_keep_size", "1MB")
	defer x.set("max_slot_wal_keep_size", "-1")
	e2e.Eventually(x.t, 30*time.Second, "the server to lose the slot", func() bool {
		x.pg.Exec(x.t, "CREATE TABLE IF NOT EXISTS filler (t text)", "INSERT INTO filler VALUES ('x')", "SELECT pg_switch_wal()", "CHECKPOINT")
		return x.pg.Query(x.t, "SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1", x.slot) == "lost"
	})
}
