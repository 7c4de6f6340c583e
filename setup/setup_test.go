package setup

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// complete asserts what every finished setup leaves behind.
func (e *env) complete() {
	e.t.Helper()
	s, ok := e.slot()
	m := e.mark()
	if !ok || m.Intent || m.LSN != s.Confirmed || m.LSN == 0 || m.Epoch == 0 || m.Timeline != 1 || m.Slot != e.o.Slot {
		e.t.Fatalf("slot %t %+v, mark %+v", ok, s, m)
	}
	ids, err := e.session().Identities(e.t.Context(), e.o.Publication, e.o.Tables)
	if err != nil {
		e.t.Fatal(err)
	}
	if d := catalog.Compare(m.Publication, m.Relations, ids); !d.Empty() || len(m.Relations) == 0 {
		e.t.Fatalf("identities of the mark differ: %s", d)
	}
}

func TestSetup_MakesAllAndIsIdempotent(t *testing.T) {
	e := newEnv(t)
	e.o.CreateTable = true
	var topics []string
	e.o.Topics = []Topic{{Name: "outbox.event.order", Partitions: 6, Replication: -1}}
	e.o.CreateTopic = func(_ context.Context, topic Topic) (bool, int, error) {
		topics = append(topics, fmt.Sprint(topic))
		return len(topics) == 1, 6, nil
	}
	e.mustSetup()
	e.complete()
	e.says("applied migration 00001_outbox.sql", "created publication", "created slot", "marked slot",
		`created topic "outbox.event.order" with 6 partitions`)
	if len(e.mark().Gaps) != 0 {
		t.Errorf("gaps of an empty table: %v", e.mark().Gaps)
	}
	e.sql("INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('order', '1', 'created')")
	p, _, _ := e.session().Publication(t.Context(), e.o.Publication)
	if !p.Insert || p.Update || p.Delete || p.Truncate || !p.ViaRoot {
		t.Errorf("publication %+v", p)
	}
	m, saves := e.mark(), e.store.saves
	e.mustSetup()
	e.says("already set up", `topic "outbox.event.order" exists, with 6 partitions`)
	if e.store.saves != saves || e.mark().Epoch != m.Epoch {
		t.Error("a second setup saved a mark")
	}
	if strings.Join(topics, " ") != "{outbox.event.order 6 -1} {outbox.event.order 6 -1}" {
		t.Errorf("topics %v", topics)
	}
}

func TestSetup_RecordsRowsFromBeforeTheSlotAsAGap(t *testing.T) {
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('before')")
	e.mustSetup()
	e.complete()
	g := e.mark().Gaps
	if len(g) != 1 || g[0].From != 0 || g[0].To != e.mark().LSN || g[0].Table != "public.outbox" || g[0].Found.IsZero() {
		t.Errorf("gaps %+v", g)
	}
}

func TestSetup_RefusesASlotThatItDidNotMake(t *testing.T) {
	e := newEnv(t, outbox)
	e.sql(`CREATE PUBLICATION "Cdc Relay" FOR TABLE outbox`, "SELECT pg_create_logical_replication_slot('"+e.o.Slot+"', 'pgoutput')")
	s, _ := e.slot()
	e.stops(e.setup(), 0, "without a mark", "--existing-slot", "adopt --lsn "+s.Confirmed.String())
	e.o.ExistingSlot = true
	e.mustSetup()
	e.complete()
	e.says("publishes more than inserts", "ALTER PUBLICATION")
	if strings.Contains(e.out.String(), "warning") {
		t.Errorf("warned of a publication that came first: %s", e.out.String())
	}
	e.mustSetup()
	e.says("already set up")
}

func TestSetup_WarnsOfAPublicationMadeAfterAnExistingSlot(t *testing.T) {
	e := newEnv(t, outbox, "INSERT INTO outbox (type) VALUES ('before')")
	e.o.ExistingSlot = true
	e.stops(e.setup(), 0, "does not exist", "pg_create_logical_replication_slot")
	e.sql("SELECT pg_create_logical_replication_slot('" + e.o.Slot + "', 'pgoutput')")
	e.stops(e.setup(), 0, `publication "Cdc Relay" does not`, "drop the slot")
	e.sql(`CREATE PUBLICATION "Cdc Relay" FOR TABLE outbox WITH (publish = 'insert')`)
	e.mustSetup()
	e.complete()
	e.says("warning", "nothing proves that publication")
	if len(e.mark().Gaps) != 1 {
		t.Errorf("gaps %v", e.mark().Gaps)
	}
}

func TestSetup_RefusesASlotThatCannotBeRead(t *testing.T) {
	e := newEnv(t, outbox, `CREATE PUBLICATION "Cdc Relay" FOR TABLE outbox WITH (publish = 'insert')`)
	other := newEnv(t)
	e.o.ExistingSlot = true
	create := "SELECT pg_create_logical_replication_slot('" + e.o.Slot + "', "
	cases := []struct{ db, sql, word string }{
		{e.db, create + "'test_decoding')", "test_decoding"},
		{e.db, "SELECT pg_create_physical_replication_slot('" + e.o.Slot + "')", "physical"},
		{other.db, create + "'pgoutput')", `belongs to database "` + other.db},
	}
	if server.Version() >= "14" {
		cases = append(cases, struct{ db, sql, word string }{e.db, create + "'pgoutput', false, true)", "two_phase"})
	}
	for _, c := range cases {
		if err := server.Exec(t.Context(), c.db, c.sql); err != nil {
			t.Fatal(err)
		}
		e.stops(e.setup(), 0, c.word)
		e.stops(e.adopt(1), 0, c.word)
		e.sql("SELECT pg_drop_replication_slot('" + e.o.Slot + "')")
	}
}

func TestSetup_RefusesWhenMarkAndSlotDisagree(t *testing.T) {
	e := newEnv(t, outbox)
	e.mustSetup()
	first, saves := e.mark(), e.store.saves
	e.sql("INSERT INTO outbox (type) VALUES ('skipped')",
		"SELECT pg_replication_slot_advance('"+e.o.Slot+"', pg_current_wal_lsn())")
	s, _ := e.slot()
	e.stops(e.setup(), saves, first.LSN.String(), s.Confirmed.String(), "ahead of its mark", "adopt --lsn "+s.Confirmed.String())

	e.edit(func(m *checkpoint.Mark) { m.LSN = 0xF00000000 })
	e.stops(e.setup(), saves, "F/0", "went back")
	e.edit(func(m *checkpoint.Mark) { m.LSN, m.Timeline = 0xF00000000, 9 })
	e.stops(e.setup(), saves, "timeline 9", "F/0")

	e.sql("SELECT pg_drop_replication_slot('" + e.o.Slot + "')")
	e.stops(e.setup(), saves, "is gone", "F/0", "cdc-relay recover")
	if _, ok := e.slot(); ok {
		t.Error("a slot was made silently")
	}
}

func TestSetup_SaysWhatDiffersInAPublicationAndChangesNothing(t *testing.T) {
	for _, c := range []struct{ create, what, fix string }{
		{"FOR TABLE other", "lacks table public.outbox", `ALTER PUBLICATION "Cdc Relay" ADD TABLE "public"."outbox"`},
		{"FOR TABLE outbox WITH (publish = 'update')", "does not publish inserts", `SET (publish = 'insert'`},
		{"FOR TABLE outbox", "under their own names", `SET (publish_via_partition_root = true)`},
	} {
		e := newEnv(t, "CREATE TABLE other (a int)", strings.Replace(outbox, ")", ") PARTITION BY LIST (type)", 1),
			"CREATE TABLE outbox_1 PARTITION OF outbox DEFAULT", `CREATE PUBLICATION "Cdc Relay" `+c.create)
		e.stops(e.setup(), 0, c.what, c.fix)
		if _, ok := e.slot(); ok {
			t.Errorf("%s: a slot was made", c.create)
		}
	}
	e := newEnv(t, "CREATE UNLOGGED TABLE outbox (id int)")
	e.stops(e.setup(), 0, "unlogged", "SET LOGGED")
	e = newEnv(t)
	e.stops(e.setup(), 0, "public.outbox does not exist", "--create-table")
	e = newEnv(t, "CREATE VIEW outbox AS SELECT 1 AS id")
	e.stops(e.setup(), 0, "not a table")
}

func TestSetup_NamesThePrivilegeThatIsMissing(t *testing.T) {
	e := newEnv(t, outbox)
	role := "r_" + e.db
	e.sql("CREATE ROLE " + role + " LOGIN")
	e.as(role)
	e.stops(e.setup(), 0, "REPLICATION", `ALTER ROLE "`+role+`" REPLICATION`)
	e.sql("ALTER ROLE " + role + " REPLICATION")
	e.stops(e.setup(), 0, "may not create publication", `GRANT CREATE ON DATABASE "`+e.db+`" TO "`+role+`", which must own the tables too (public.outbox)`,
		"CDC_RELAY_SOURCE_URL", "--dry-run", "--existing-slot")
	e.sql("GRANT CREATE ON DATABASE " + e.db + " TO " + role)
	e.stops(e.setup(), 0, "owner of its tables", "CREATE PUBLICATION")
	e.sql("ALTER TABLE outbox OWNER TO " + role)
	e.mustSetup()
	e.complete()

	e = newEnv(t, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	e.o.CreateTable = true
	e.as(role)
	e.stops(e.setup(), 0, "may not create table public.outbox", `GRANT CREATE ON SCHEMA public TO "`+role+`"`)
}

func TestSetup_WithAPublicationByADBANeedsOnlyReplication(t *testing.T) {
	e := newEnv(t, outbox, `CREATE PUBLICATION "Cdc Relay" FOR TABLE outbox WITH (publish = 'insert')`,
		"INSERT INTO outbox (type) VALUES ('before')")
	e.sql("CREATE ROLE r_"+e.db+" LOGIN REPLICATION", "REVOKE ALL ON outbox FROM PUBLIC")
	e.as("r_" + e.db)
	e.mustSetup()
	e.complete()
	if len(e.mark().Gaps) != 1 {
		t.Error("rows are not seen without SELECT")
	}
}

func TestSetup_NamesTheBlockerAndLeavesNoSlot(t *testing.T) {
	e := newEnv(t, outbox)
	conn, err := server.Connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{"SET application_name = 'holder'", "BEGIN", "SELECT pg_current_xact_id()"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	e.o.SlotTimeout = 300 * time.Millisecond
	err = e.setup()
	e.stops(err, 2, fmt.Sprintf("process %d", conn.PgConn().PID()), "holder", "idle in transaction", "SELECT", "no slot was left")
	if _, ok := e.slot(); ok {
		t.Fatal("orphan slot")
	}
	if m := e.mark(); m.Intent || m.LSN != 0 {
		t.Fatalf("the intent was not withdrawn: %+v", m)
	}

	// Interrupted while it waits: the server must not go on to make the slot.
	e.o.SlotTimeout = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := Setup(ctx, e.o); err == nil {
		t.Fatal("an interrupted setup succeeded")
	}
	if _, ok := e.slot(); ok {
		t.Fatal("orphan slot after an interruption")
	}
	// A slot that somebody makes now is not taken for ours.
	if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	e.sql("SELECT pg_create_logical_replication_slot('" + e.o.Slot + "', 'pgoutput')")
	e.stops(e.setup(), e.store.saves, "without a mark")
	e.sql("SELECT pg_drop_replication_slot('" + e.o.Slot + "')")
	e.mustSetup()
	e.complete()
}

func TestSetup_RecordsATableThatIsAddedLater(t *testing.T) {
	e := newEnv(t, outbox, "CREATE TABLE second (id int)")
	e.mustSetup()
	m := e.mark()
	e.o.Tables = append(e.o.Tables, catalog.TableName{Schema: "public", Name: "second"})
	e.stops(e.setup(), e.store.saves, "lacks table public.second", "ADD TABLE")
	e.sql(`ALTER PUBLICATION "Cdc Relay" ADD TABLE second`)
	e.edit(func(m *checkpoint.Mark) { m.Timeline = 0 })
	e.stops(e.setup(), e.store.saves, "timeline 1", "start the relay once")
	e.edit(func(m *checkpoint.Mark) { m.Timeline = 1 })
	e.mustSetup()
	e.says("table public.second was added")
	now := e.mark()
	if now.Epoch != m.Epoch+1 || now.LSN != m.LSN || len(now.Gaps) != 1 || now.Gaps[0].Table != "public.second" || now.Gaps[0].To <= m.LSN {
		t.Errorf("mark %+v", now)
	}
	e.mustSetup()
	e.says("already set up")
}

func TestSetup_RefusesATableDroppedAndCreatedAgain(t *testing.T) {
	e := newEnv(t, outbox)
	e.mustSetup()
	e.sql("DROP TABLE outbox", outbox)
	e.stops(e.setup(), e.store.saves, "lacks table public.outbox", "adopt")
	e.sql(`ALTER PUBLICATION "Cdc Relay" ADD TABLE outbox`)
	e.stops(e.setup(), e.store.saves, "dropped and created again", e.mark().LSN.String(), "adopt --lsn")
}

func TestSetup_OneAtATime(t *testing.T) {
	e := newEnv(t, outbox)
	if ok, err := e.session().TryLock(t.Context(), "cdc-relay setup "+e.o.Slot); !ok || err != nil {
		t.Fatal(ok, err)
	}
	e.stops(e.setup(), 0, "another setup, adopt, backfill or recovery")
}

func TestSetup_DryRunPrintsWhatADBARunsAndTouchesNothing(t *testing.T) {
	e := newEnv(t)
	e.o.DryRun, e.o.CreateTable, e.o.Store = true, true, nil
	e.mustSetup()
	script := e.out.String()
	e.says("\n-- 1. ", "\n-- 2. ", "\n-- 3. ", "\n-- 4. ", "\n-- 5. Then `cdc-relay setup --existing-slot` saves", "CREATE ROLE", "GRANT CONNECT", "CREATE TABLE public.outbox", `CREATE PUBLICATION "Cdc Relay"`, "pg_create_logical_replication_slot", "--existing-slot")
	if _, ok := e.slot(); ok {
		t.Fatal("a dry run made a slot")
	}
	// It runs as it is, statement by statement, and setup takes over from there.
	for _, statement := range strings.Split(script, ";\n") {
		if strings.TrimSpace(statement) != "" {
			e.sql(statement)
		}
	}
	e.o.DryRun, e.o.Store, e.o.ExistingSlot = false, e.store, true
	e.mustSetup()
	e.complete()
	if strings.Contains(e.out.String(), "warning") {
		t.Errorf("a setup by script is doubted: %s", e.out.String())
	}
}

func TestSetup_DryRunCountsItsStepsAndListsTheTopics(t *testing.T) {
	var out strings.Builder
	o := Options{Slot: "s", Publication: "p", Tables: []catalog.TableName{{Schema: "shop", Name: "events"}}, DryRun: true, Out: &out,
		Topics: []Topic{{Name: "orders", Partitions: 6}, {Name: "alone", Partitions: 1}}, MarkTopic: "marks", Flags: " --config relay.yaml"}
	if err := Setup(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n-- 1. ", "\n-- 2. The publication", "\n-- 3. The slot",
		"\n-- 4. Then `cdc-relay setup --config relay.yaml --existing-slot --create-topics` saves",
		"\n--   marks: 1 partition, cleanup.policy=compact", "\n--   orders: 6 partitions\n", "\n--   alone: 1 partition\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

// Logical messages need a publication, and no table.
func TestSetup_MessagesWithoutATable(t *testing.T) {
	e := newEnv(t)
	e.o.Tables, e.o.Messages = nil, "outbox"
	e.mustSetup()
	e.says("without a table", "created slot", "marked slot", "Any role of the database may emit one")
	m := e.mark()
	if len(m.Relations) != 0 || len(m.Gaps) != 0 || m.LSN == 0 || m.Publication.OID == 0 {
		t.Errorf("mark %+v", m)
	}
	e.mustSetup()
	e.says("already set up")
	// A table that is added later is recorded with what it held.
	e.sql(outbox, `ALTER PUBLICATION "Cdc Relay" ADD TABLE outbox`)
	e.o.Tables = []catalog.TableName{DefaultTable}
	e.mustSetup()
	if m = e.mark(); len(m.Relations) != 1 || len(m.Gaps) != 1 {
		t.Errorf("mark %+v", m)
	}
}

func TestSetup_DryRunTellsOfMessages(t *testing.T) {
	var out strings.Builder
	o := Options{Slot: "s", Publication: "p", Messages: "outbox\nx", DryRun: true, Out: &out}
	if err := Setup(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`CREATE PUBLICATION "p" WITH (publish = 'insert'`, `-- 5. Logical messages with the prefix "outbox\nx"`, "\n-- REVOKE EXECUTE ON FUNCTION"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestMigrations_AreAppliedOnce(t *testing.T) {
	e := newEnv(t)
	cfg, err := pgx.ParseConfig(server.DSN(e.db))
	if err != nil {
		t.Fatal(err)
	}
	e.sql("CREATE TABLE goose_db_version (of_the_application int)")
	for i, want := range []int{1, 0} {
		applied, err := migrations.Apply(t.Context(), cfg, "test")
		if err != nil || len(applied) != want {
			t.Fatalf("run %d: %v %v", i, applied, err)
		}
	}
	e.sql("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('a', 'b', 'c', NULL)")
	e.sql("DROP TABLE outbox")
	e.o.CreateTable = true
	e.stops(e.setup(), 0, "dropped since", "--dry-run")
}

func TestSetup_DryRunGrantsWhatMarkingNeeds(t *testing.T) {
	var out strings.Builder
	events := catalog.TableName{Schema: "shop", Name: "events"}
	o := Options{Slot: "s", Publication: "p", Tables: []catalog.TableName{events}, DryRun: true, Out: &out,
		Marking: []catalog.Marking{{Table: events, ID: "id", Column: "status", Value: "done"}}}
	if err := Setup(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if want := `-- GRANT SELECT ("id", "status"), UPDATE ("status") ON "shop"."events" TO "cdc_relay";`; !strings.Contains(out.String(), want) || strings.Contains(out.String(), "no SELECT") {
		t.Errorf("no %s in:\n%s", want, out.String())
	}
}

func TestSetup_TellsWhetherRowsCanBeMarked(t *testing.T) {
	for value, want := range map[string]string{"1": `note: published rows of public.outbox get "1" in column "n"`, "done": "warning: published rows cannot be marked: "} {
		e := newEnv(t, outbox, "ALTER TABLE outbox ADD n int")
		e.o.Marking = []catalog.Marking{{Table: DefaultTable, ID: "id", Column: "n", Value: value}}
		if err := Setup(t.Context(), e.o); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(e.out.String(), want) {
			t.Errorf("no %q in:\n%s", want, e.out.String())
		}
	}
}
