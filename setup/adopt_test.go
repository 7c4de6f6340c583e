package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/checkpoint"
)

// gapsAre asserts the gaps of the mark, without their times.
func (e *env) gapsAre(want ...checkpoint.Gap) {
	e.t.Helper()
	got := slices.Clone(e.mark().Gaps)
	for i := range got {
		if got[i].Found.IsZero() || got[i].Reason == "" {
			e.t.Errorf("incomplete gap %+v", got[i])
		}
		got[i] = checkpoint.Gap{From: got[i].From, To: got[i].To, Table: got[i].Table}
	}
	if !slices.Equal(got, want) {
		e.t.Errorf("gaps %+v\nwant %+v", got, want)
	}
}

func TestAdopt_TakesASlotWithoutAMark(t *testing.T) {
	e := newEnv(t, outbox, `CREATE PUBLICATION "Cdc Relay" FOR TABLE outbox WITH (publish = 'insert')`)
	e.stops(e.adopt(1), 0, "does not exist")
	e.sql("SELECT pg_create_logical_replication_slot('" + e.o.Slot + "', 'pgoutput')")
	s, _ := e.slot()
	e.stops(e.adopt(s.Confirmed-1), 0, "cannot go back", s.Confirmed.String())
	e.stops(e.adopt(s.Confirmed+1<<40), 0, "beyond the server's position")
	if err := e.adopt(s.Confirmed); err != nil {
		t.Fatal(err)
	}
	e.says(s.Confirmed.String(), "mark:   none", "everything before")
	e.complete()
	e.gapsAre(checkpoint.Gap{To: s.Confirmed})

	m, saves := e.mark(), e.store.saves
	if err := e.adopt(s.Confirmed); err != nil || e.store.saves != saves || e.mark().Epoch != m.Epoch {
		t.Errorf("a repeated adopt changed something: %v", err)
	}
	e.says("nothing to adopt")
	e.mustSetup()
	e.says("already set up")
}

func TestAdopt_TakesASlotAheadOfItsMark(t *testing.T) {
	e := newEnv(t, outbox)
	e.mustSetup()
	m := e.mark()
	e.sql("INSERT INTO outbox (type) VALUES ('skipped')",
		"SELECT pg_replication_slot_advance('"+e.o.Slot+"', pg_current_wal_lsn())")
	s, _ := e.slot()
	if err := e.adopt(s.Confirmed); err != nil {
		t.Fatal(err)
	}
	e.says(m.LSN.String(), s.Confirmed.String())
	e.complete()
	e.gapsAre(checkpoint.Gap{From: m.LSN, To: s.Confirmed})
	if e.mark().Epoch != m.Epoch+1 {
		t.Errorf("epoch %d after %d", e.mark().Epoch, m.Epoch)
	}
}

func TestAdopt_SkipsToALaterPositionAndRecordsIt(t *testing.T) {
	e := newEnv(t, outbox)
	e.mustSetup()
	m := e.mark()
	e.sql("INSERT INTO outbox (type) VALUES ('poison')")
	to := e.current()
	if err := e.adopt(to); err != nil {
		t.Fatal(err)
	}
	e.complete()
	if s, _ := e.slot(); s.Confirmed != to {
		t.Errorf("slot at %s, want %s", s.Confirmed, to)
	}
	e.gapsAre(checkpoint.Gap{From: m.LSN, To: to})
	saves := e.store.saves
	if err := e.adopt(to); err != nil || e.store.saves != saves {
		t.Errorf("repeated: %v", err)
	}
}

func TestAdopt_SkippingWhatWasPublishedLeavesNoGap(t *testing.T) {
	e := newEnv(t, outbox)
	e.mustSetup()
	e.sql("INSERT INTO outbox (type) VALUES ('published')")
	to := e.current()
	e.edit(func(m *checkpoint.Mark) { m.LSN = to })
	if err := e.adopt(to); err != nil {
		t.Fatal(err)
	}
	e.complete()
	e.gapsAre()
}

func TestAdopt_TakesChangedTablesAndPublications(t *testing.T) {
	e := newEnv(t, outbox)
	e.mustSetup()
	m := e.mark()
	e.sql("DROP TABLE outbox", outbox, "INSERT INTO outbox (type) VALUES ('unseen')")
	s, _ := e.slot()
	e.stops(e.adopt(s.Confirmed), e.store.saves, "lacks table public.outbox", "ADD TABLE")
	e.sql(`ALTER PUBLICATION "Cdc Relay" ADD TABLE outbox`)
	before := e.current()
	if err := e.adopt(s.Confirmed); err != nil {
		t.Fatal(err)
	}
	g := e.mark().Gaps
	if len(g) != 1 || g[0].From != m.CheckedLSN || g[0].From == 0 || g[0].To < before || g[0].Table != "public.outbox" || e.mark().LSN != s.Confirmed || e.mark().Epoch != m.Epoch+1 {
		t.Errorf("mark %+v", e.mark())
	}
	e.mustSetup()
	checked := e.mark().CheckedLSN
	if checked < before {
		t.Errorf("checked at %s, before %s", checked, before)
	}
	e.sql(`DROP PUBLICATION "Cdc Relay"`)
	e.stops(e.adopt(s.Confirmed), e.store.saves, `publication "Cdc Relay" does not exist`, "CREATE PUBLICATION")
	e.sql(`CREATE PUBLICATION "Cdc Relay" FOR TABLE outbox WITH (publish = 'insert')`)
	if err := e.adopt(s.Confirmed); err != nil {
		t.Fatal(err)
	}
	if g := e.mark().Gaps; len(g) != 2 || g[1].Table != "" || g[1].From != checked || g[1].To < g[0].To {
		t.Errorf("gaps %+v", g)
	}
}

// A filter that is taken off left rows out since it was put on, and not since somebody
// looked last: were the gap a short one, a backfill of it would leave the others out, and
// retention would delete them.
func TestAdopt_DoubtsAllThatAFilterLeftOut(t *testing.T) {
	e := newEnv(t, outbox)
	if e.session().VersionNum() < 150000 {
		t.Skip("row filters came with 15")
	}
	e.sql(`CREATE PUBLICATION "Cdc Relay" FOR TABLE outbox WHERE (type <> 'out') WITH (publish = 'insert')`)
	e.mustSetup()
	e.sql(`ALTER PUBLICATION "Cdc Relay" SET TABLE outbox`)
	s, _ := e.slot()
	if err := e.adopt(s.Confirmed); err != nil {
		t.Fatal(err)
	}
	if g := e.mark().Gaps; len(g) != 1 || g[0].From != 0 || g[0].To == 0 || g[0].Table != "public.outbox" {
		t.Errorf("gaps %+v", g)
	}
}

// The rows of a partition are read with its table, so that only a gap of that can be
// closed.
func TestAdopt_NamesTheTableOfAPartition(t *testing.T) {
	e := newEnv(t, outbox+" PARTITION BY LIST (type)", "CREATE TABLE part PARTITION OF outbox DEFAULT")
	e.mustSetup()
	e.sql("ALTER TABLE outbox DETACH PARTITION part", "INSERT INTO part (type) VALUES ('unseen')", "ALTER TABLE outbox ATTACH PARTITION part DEFAULT")
	s, _ := e.slot()
	if err := e.adopt(s.Confirmed); err != nil {
		t.Fatal(err)
	}
	g := e.mark().Gaps
	if len(g) != 1 || g[0].Table != "public.outbox" {
		t.Fatalf("gaps %+v", g)
	}
	f := &backfill{run: &run{Options: e.o}, BackfillOptions: BackfillOptions{Tables: e.o.Tables}}
	if why := f.whyOpen(g[0], g[0].To); why != "" {
		t.Errorf("a backfill of the table leaves it open: %s", why)
	}
}

func TestAdopt_AfterTheServerWentBackDoubtsEverything(t *testing.T) {
	for _, change := range []func(*checkpoint.Mark){
		func(m *checkpoint.Mark) { m.LSN, m.CheckedLSN = 0xF00000000, 0xF00000000 },
		func(m *checkpoint.Mark) { m.Timeline = 7 },
		func(m *checkpoint.Mark) { m.LSN, m.CheckedLSN, m.Timeline = 0xF00000000, 0xF00000000, 7 },
	} {
		e := newEnv(t, outbox)
		e.mustSetup()
		e.edit(change)
		s, _ := e.slot()
		if err := e.adopt(s.Confirmed); err != nil {
			t.Fatal(err)
		}
		e.complete()
		e.gapsAre(checkpoint.Gap{To: s.Confirmed})
		e.mustSetup()
	}
}

func TestAdopt_AsksAndTakesNoForAnAnswer(t *testing.T) {
	e := newEnv(t, outbox)
	e.mustSetup()
	to := e.current()
	e.sql("INSERT INTO outbox (type) VALUES ('x')")
	to = max(to, e.current())
	asked := ""
	for _, answer := range []struct {
		yes bool
		err error
	}{{false, nil}, {true, errors.New("no terminal")}} {
		e.o.Confirm = func(q string) (bool, error) { asked = q; return answer.yes, answer.err }
		saves := e.store.saves
		if err := e.adopt(to); err == nil || e.store.saves != saves {
			t.Fatalf("answer %+v: %v", answer, err)
		}
		if s, _ := e.slot(); s.Confirmed != e.mark().LSN {
			t.Fatal("the slot was moved")
		}
	}
	if asked == "" {
		t.Error("nobody was asked")
	}
	e.o.Confirm = nil
	o := e.o
	o.LSN = to
	if err := Adopt(t.Context(), o); err == nil {
		t.Error("adopted although nobody could be asked")
	}
	e.o.Confirm = func(string) (bool, error) { return true, nil }
	if err := e.adopt(to); err != nil {
		t.Fatal(err)
	}
	e.complete()
}

func TestAdopt_RefusesASlotThatIsReadAndOneBeyondTheEnd(t *testing.T) {
	e := newEnv(t, outbox)
	e.mustSetup()
	conn := e.stream(0)
	e.stops(e.adopt(e.mark().LSN), e.store.saves, "is being read by process")
	beyond := e.current() + 1<<32
	err := pglogrepl.SendStandbyStatusUpdate(t.Context(), conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: beyond, WALFlushPosition: beyond, WALApplyPosition: beyond})
	if err != nil {
		t.Fatal(err)
	}
	e.await("confirmed beyond the end", func() bool { s, _ := e.slot(); return s.Confirmed == beyond })
	conn.Close(context.Background())
	e.await("slot released", func() bool { s, _ := e.slot(); return !s.Active })
	e.stops(e.adopt(beyond), e.store.saves, "beyond the server's position", "cdc-relay recover")
	e.stops(e.setup(), e.store.saves, fmt.Sprint(beyond), "beyond the server's position")

	// The way out that the message names.
	m := e.mark()
	e.sql("SELECT pg_drop_replication_slot('"+e.o.Slot+"')", "SELECT pg_create_logical_replication_slot('"+e.o.Slot+"', 'pgoutput')")
	s, _ := e.slot()
	if err := e.adopt(s.Confirmed); err != nil {
		t.Fatal(err)
	}
	e.complete()
	e.gapsAre(checkpoint.Gap{From: m.LSN, To: s.Confirmed})
}
