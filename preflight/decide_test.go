package preflight_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// refusal is a set of facts that must be refused. The sentence names each of
// the strings in says.
type refusal struct {
	name   string
	class  fault.Class
	breaks func(*preflight.Want, *preflight.Facts)
	says   []string
}

const (
	confirmed = "0/A0"
	mark      = "0/B0"
	checked   = "0/C0"
	end       = "0/100"
)

var refusals = []refusal{
	{"server too old", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Server.VersionNum = 120022 }, []string{"120022", "13 or newer"}},
	{"no messages before 14", fault.Stop, func(w *preflight.Want, f *preflight.Facts) { w.Messages, f.Server.VersionNum = true, 130022 }, []string{"messages.prefix", "130022", "14 or newer"}},
	{"server in recovery", fault.Retry, func(_ *preflight.Want, f *preflight.Facts) { f.Server.InRecovery = true }, []string{"standby", "primary"}},
	{"wal level", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Server.WALLevel = "replica" }, []string{`"replica"`, "wal_level = logical"}},
	{"synchronous standby", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.Server.SynchronousStandbyNames = "FIRST 1 (CDC-Relay)"
	}, []string{"FIRST 1 (CDC-Relay)", "source.allow_synchronous: true"}},
	{"two clusters", fault.Retry, func(_ *preflight.Want, f *preflight.Facts) { f.Server.SystemID = "7002" }, []string{"7001", "7002", "source.host"}},
	{"two timelines", fault.Retry, func(_ *preflight.Want, f *preflight.Facts) { f.Server.Timeline = 2 }, []string{"1", "2"}},
	{"mark of another cluster", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Mark.SystemID = "6999" }, []string{"7001", "6999", mark}},

	{"physical slot", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Type = "physical" }, []string{"physical", confirmed, mark, "source.slot"}},
	{"other plugin", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Plugin = "wal2json" }, []string{`"wal2json"`, confirmed, mark, "cdc-relay recover"}},
	{"other plugin, no mark", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.Slot.Plugin = "wal2json"
		f.HasMark, f.Mark = false, checkpoint.Mark{}
	}, []string{`"wal2json"`, confirmed, "no mark"}},
	{"other database", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Database = "crm" }, []string{`"crm"`, `"shop"`, confirmed, mark}},
	{"two_phase slot", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.TwoPhase = true }, []string{"two_phase", "prepared", confirmed, mark}},
	{"temporary slot", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Temporary = true }, []string{"temporary", confirmed, mark}},
	{"synced slot", fault.Retry, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Synced = true }, []string{"promoted"}},
	{"slot in creation", fault.Retry, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Confirmed = 0 }, []string{"still being created"}},
	{"backfill not finished", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.Mark = checkpoint.Mark{SystemID: "7001", Slot: "relay", Epoch: 4, Timeline: 1, Intent: true,
			Backfill: &checkpoint.Backfill{Begun: postmasterStart, LSN: atConfirmed}}
	}, []string{"backfill", "2026-01-02 03:04:05Z", confirmed, "--give-up", "starts over"}},
	{"backfill without its slot", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.HasSlot, f.Slot = false, catalog.Slot{}
		f.Mark = checkpoint.Mark{SystemID: "7001", Slot: "relay", Epoch: 4, Timeline: 1, Intent: true,
			Backfill: &checkpoint.Backfill{Begun: postmasterStart}}
	}, []string{"backfill", "rows from before its slot"}},
	{"backfill whose slot is lost", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.Slot.WALStatus = "lost"
		f.Mark = checkpoint.Mark{SystemID: "7001", Slot: "relay", Epoch: 4, Timeline: 1, Intent: true,
			Backfill: &checkpoint.Backfill{Begun: postmasterStart, LSN: atConfirmed}}
	}, []string{"backfill", "starts over"}},
	{"recovery not finished", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.Mark = checkpoint.Mark{SystemID: "7001", Slot: "relay", Epoch: 4, Timeline: 1, Intent: true,
			Backfill: &checkpoint.Backfill{Begun: postmasterStart, LSN: atConfirmed, Replaces: &checkpoint.Mark{LSN: atMark}}}
	}, []string{"recovery", "2026-01-02 03:04:05Z", mark, "cdc-relay recover again", "--give-up"}},
	{"slot lost", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.WALStatus = "lost" }, []string{"lost", "max_slot_wal_keep_size", mark, end, "still in the table"}},
	{"slot invalidated", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.InvalidationReason = "idle_timeout" }, []string{"idle_timeout", mark, end}},
	{"slot conflicting", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Conflicting = true }, []string{"lost", mark, end}},

	{"neither slot nor mark", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.HasSlot, f.HasMark = false, false
		f.Slot, f.Mark = catalog.Slot{}, checkpoint.Mark{}
	}, []string{`"relay"`, "run cdc-relay setup"}},
	{"mark without slot", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.HasSlot, f.Slot = false, catalog.Slot{} }, []string{mark, end, "cdc-relay recover"}},
	{"slot without mark", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.HasMark, f.Mark = false, checkpoint.Mark{} }, []string{confirmed, "7001", "adopt --lsn 0/A0", "setup --existing-slot", "cdc-relay recover"}},
	{"neither, and a mark of another cluster", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.HasSlot, f.Slot = false, catalog.Slot{}
		f.HasMark, f.Mark, f.Elsewhere = false, checkpoint.Mark{}, elsewhere()
	}, []string{"7001", "6999", "0/77", "pg_upgrade", "cdc-relay recover", "cdc-relay setup"}},
	{"slot, and a mark of another cluster", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.HasMark, f.Mark, f.Elsewhere = false, checkpoint.Mark{}, elsewhere()
	}, []string{"7001", "6999", "0/77", confirmed, "pg_upgrade", "cdc-relay recover", "adopt --lsn 0/A0", "setup --existing-slot"}},
	{"intent without slot", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.HasSlot, f.Slot = false, catalog.Slot{}
		f.Mark.Intent, f.Mark.LSN = true, 0
	}, []string{"not finished", "run cdc-relay setup again"}},
	{"intent with slot", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Mark.Intent, f.Mark.LSN = true, 0 }, []string{"not finished", "run cdc-relay setup again"}},

	{"slot ahead of its mark", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Confirmed = 0xB8 }, []string{mark, "0/B8", "adopt --lsn 0/B8", "records the gap", "cdc-relay recover"}},
	{"slot beyond the end of WAL", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Confirmed = 0x1000_00000000 }, []string{mark, "1000/0", end, "cdc-relay recover"}},
	{"slot ahead of its mark, failover", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		*f = onNewTimeline(true)
		f.Slot.Confirmed, f.Server.CurrentLSN = 0xB8, 0xBF
	}, []string{mark, "0/B8"}},
	{"mark ahead of the server", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Server.CurrentLSN = 0xA8 }, []string{mark, "0/A8", "restored", "cdc-relay recover", "adopt --lsn 0/A0"}},
	{"older timeline", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Mark.Timeline = 2 }, []string{"timeline 1", "timeline 2", mark, "wrong server", "cdc-relay recover"}},
	{"new timeline, no failover slot", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { *f = onNewTimeline(false) }, []string{"timeline 2", "timeline 1", mark, confirmed, "adopt --lsn 0/A0", "cdc-relay recover"}},

	{"no publication", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.HasPublication, f.Publication = false, catalog.Publication{}
		f.Identities = catalog.Identities{Publication: checkpoint.Identity{Name: "pub"}}
	}, []string{`"pub"`, checked, end, "CREATE PUBLICATION", "adopt --lsn"}},
	{"publication without inserts", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Publication.Insert = false }, []string{`ALTER PUBLICATION "pub" SET (publish = 'insert')`, checked, end}},
	{"publication recreated", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Identities.Publication.OID = 98 }, []string{"created again", checked, end, "adopt"}},
	{"publication changed", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.Identities.Publication.Def = "insert=true via_root=false"
	}, []string{"via_root=true", "via_root=false", checked, end}},
	{"publication altered and altered back", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.Mark.Publication.Version, f.Identities.Publication.Version = "700", "701"
	}, []string{"was altered", "now as it was", checked, end, "adopt"}},
	{"publication renamed", fault.Stop, func(w *preflight.Want, f *preflight.Facts) {
		w.Publication, f.Identities.Publication.Name = "pub2", "pub2"
	}, []string{`"pub"`, `"pub2"`, checked, end, "adopt"}},
	{"table not published", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) { f.Identities.Relations = nil }, []string{"public.outbox", `ADD TABLE "public"."outbox"`, checked, end}},
	{"configured table is only a partition", fault.Stop, func(w *preflight.Want, _ *preflight.Facts) {
		w.Tables = []catalog.TableName{{Schema: "public", Name: "outbox_1"}}
	}, []string{"public.outbox_1", checked, end}},
	{"table recreated", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.Identities.Relations = []checkpoint.Identity{{OID: 20, Name: "public.outbox"}}
		f.Gone = map[uint32]bool{rootOID: true, leafOID: true, otherLeaf: true}
	}, []string{"created again", "10", "20", checked, end}},
	{"table renamed, configuration follows", fault.Stop, func(w *preflight.Want, f *preflight.Facts) {
		w.Tables = []catalog.TableName{{Schema: "public", Name: "events"}}
		f.Identities.Relations[0].Name = "public.events"
		f.Columns = nil
	}, []string{"public.outbox", "public.events", checked, end, "adopt"}},
	{"partition detached", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.Identities.Relations = without(relations(), leafOID)
	}, []string{"public.outbox_1", "detached", checked, end}},
	{"identities never checked", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		f.Mark.CheckedLSN = 0
		f.Identities.Publication.OID = 98
	}, []string{mark, end}},
	{"publication changed over a failover", fault.Stop, func(_ *preflight.Want, f *preflight.Facts) {
		*f = onNewTimeline(true)
		f.Identities.Publication.OID = 98
	}, []string{"from 0/A0 to 0/A8"}},
}

func TestDecide_RefusesEachContradiction(t *testing.T) {
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			w, f := wanted(), healthy()
			r.breaks(&w, &f)
			plan, err := preflight.Decide(w, f, preflight.Known{})
			if err == nil {
				t.Fatalf("accepted: %+v", plan)
			}
			var fe *fault.Error
			if !errors.As(err, &fe) {
				t.Fatalf("%T is no *fault.Error", err)
			}
			if fe.Class != r.class {
				t.Errorf("class %s, want %s", fe.Class, r.class)
			}
			if fe.Class == fault.Stop && fe.Fix == "" {
				t.Error("a person has to act and is not told how")
			}
			for _, want := range r.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the sentence does not say %q: %s", want, err)
				}
			}
			if plan.Start != 0 {
				t.Errorf("a refusal has a start: %s", plan.Start)
			}
		})
	}
}

// TestDecide_SentencesReadWell holds all sentences side by side, for a person.
func TestDecide_SentencesReadWell(t *testing.T) {
	var b bytes.Buffer
	for _, r := range refusals {
		w, f := wanted(), healthy()
		r.breaks(&w, &f)
		_, err := preflight.Decide(w, f, preflight.Known{})
		var fe *fault.Error
		if !errors.As(err, &fe) {
			t.Fatalf("%s: %v", r.name, err)
		}
		if strings.HasSuffix(fe.What, ".") || strings.HasSuffix(fe.Fix, ".") {
			t.Errorf("%s: a part ends with a period: %s", r.name, err)
		}
		fmt.Fprintf(&b, "%s (%s)\n    %s\n", r.name, fe.Class, fe.What)
		if fe.Fix != "" {
			fmt.Fprintf(&b, "    To fix it: %s\n", fe.Fix)
		}
		b.WriteByte('\n')
	}
	golden(t, "testdata/sentences.txt", b.Bytes())
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; look at the difference after go test ./preflight -rewrite. Got:\n%s", path, got)
	}
}

func TestDecide_StartsAtTheSlotUnlessTheServerIsTheSame(t *testing.T) {
	same, other := postmasterStart, postmasterStart.Add(-time.Minute)
	for _, c := range []struct {
		name  string
		known preflight.Known
		mark  uint64
		want  uint64
	}{
		{"first connection", preflight.Known{}, atMark, atConfirmed},
		{"same server, confirm was lost", preflight.Known{StartedAt: same, Durable: atMark}, atMark, atMark},
		{"same server, between slot and mark", preflight.Known{StartedAt: same, Durable: 0xA8}, atMark, 0xA8},
		{"same server, nothing saved", preflight.Known{StartedAt: same}, atMark, atConfirmed},
		{"same server, slot is further", preflight.Known{StartedAt: same, Durable: 0x98}, atMark, atConfirmed},
		{"server restarted", preflight.Known{StartedAt: other, Durable: atMark}, atMark, atConfirmed},
		{"mark went back by adopt", preflight.Known{StartedAt: same, Durable: atMark}, 0xA4, atConfirmed},
		{"only the position is known", preflight.Known{Durable: atMark}, atMark, atConfirmed},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := healthy()
			f.Mark.LSN = lsn(c.mark)
			p, err := preflight.Decide(wanted(), f, c.known)
			if err != nil {
				t.Fatal(err)
			}
			if p.Start != lsn(c.want) {
				t.Errorf("start %s, want %s", p.Start, lsn(c.want))
			}
			if p.SaveFirst || len(p.Warnings) > 0 || p.Mark.Epoch != 3 || p.Mark.LSN != lsn(c.mark) {
				t.Errorf("a plain start changes the mark: %+v", p)
			}
			if p.Mark.CheckedLSN != atEnd {
				t.Errorf("checked %s, want the server's %s", p.Mark.CheckedLSN, lsn(atEnd))
			}
		})
	}
}

func TestDecide_FailoverRaisesTheEpochAndSaysWhatWasPublished(t *testing.T) {
	f := onNewTimeline(true)
	p, err := preflight.Decide(wanted(), f, preflight.Known{StartedAt: postmasterStart.Add(-time.Hour), Durable: atMark})
	if err != nil {
		t.Fatal(err)
	}
	if p.Start != atConfirmed || p.Mark.LSN != atConfirmed || p.Mark.Epoch != 4 || p.Mark.Timeline != 2 || !p.SaveFirst {
		t.Errorf("plan %+v", p)
	}
	if p.Seen.Epoch != 3 || p.Seen.LSN != atMark || p.Seen.Timeline != 1 {
		t.Errorf("seen %+v, want the mark as it was read", p.Seen)
	}
	if len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], mark) || !strings.Contains(p.Warnings[0], confirmed) {
		t.Errorf("warnings %q do not name the range %s to %s", p.Warnings, confirmed, mark)
	}
}

func TestDecide_NewTableLeavesAGap(t *testing.T) {
	w, f := wanted(), healthy()
	w.Tables = append(w.Tables, catalog.TableName{Schema: "public", Name: "audit"})
	f.Identities.Relations = append(relations(), checkpoint.Identity{OID: 30, Name: "public.audit"})
	f.Columns = nil
	f.Mark.Gaps = make([]checkpoint.Gap, 1, 4)
	p, err := preflight.Decide(w, f, preflight.Known{})
	if err != nil {
		t.Fatal(err)
	}
	if !p.SaveFirst || len(p.Mark.Gaps) != 2 || len(p.Warnings) != 1 {
		t.Fatalf("plan %+v", p)
	}
	g := p.Mark.Gaps[1]
	if g.Table != "public.audit" || g.From != 0 || g.To != atEnd || g.Reason == "" || !g.Found.Equal(f.Now) {
		t.Errorf("gap %+v", g)
	}
	if p.Mark.LSN != atMark {
		t.Errorf("a new table moves the mark: %+v", p.Mark)
	}
	if p.Mark.Epoch != 4 { // retention drops nothing that was detached before the gap
		t.Errorf("the gap is in the epoch of before: %+v", p.Mark)
	}
	if spare := f.Mark.Gaps[:2][1]; spare.Table != "" {
		t.Error("the mark that was read was written to")
	}
	again := f
	again.Mark = p.Mark
	if p, err = preflight.Decide(w, again, preflight.Known{}); err != nil || p.SaveFirst || len(p.Mark.Gaps) != 2 {
		t.Errorf("the gap is recorded again: %+v, %v", p, err)
	}
}

// A mark from when only logical messages were published names no table.
func TestDecide_FirstTableBesideMessagesLeavesAGap(t *testing.T) {
	w, f := wanted(), healthy()
	w.Messages = true
	f.Mark.Relations = nil
	p, err := preflight.Decide(w, f, preflight.Known{})
	if err != nil || !p.SaveFirst || len(p.Mark.Gaps) != len(w.Tables) || len(p.Mark.Relations) == 0 {
		t.Fatalf("plan %+v, %v", p, err)
	}
	w.Tables, w.Columns, f.Identities.Relations = nil, nil, nil
	if p, err = preflight.Decide(w, f, preflight.Known{}); err != nil || p.SaveFirst || len(p.Mark.Gaps) != 0 {
		t.Errorf("without a table: plan %+v, %v", p, err)
	}
}

func TestDecide_ClosesTheGapsThatABackfillCovered(t *testing.T) {
	gap := func(to pglogrepl.LSN, table string) checkpoint.Gap {
		return checkpoint.Gap{From: 1, To: to, Table: table, Reason: "adopted", Found: postmasterStart}
	}
	f := healthy()
	f.Mark.Gaps = []checkpoint.Gap{gap(0x50, ""), gap(0x60, ""), gap(0x50, "public.outbox")}
	later := gap(0x60, "")
	later.Found = later.Found.Add(time.Second) // found again: another gap
	f.Covered = []checkpoint.Gap{gap(0x50, ""), later, gap(0x70, "")}
	p, err := preflight.Decide(wanted(), f, preflight.Known{})
	if err != nil {
		t.Fatal(err)
	}
	if !p.SaveFirst || len(p.Mark.Gaps) != 2 || !p.Mark.Gaps[0].Same(f.Mark.Gaps[1]) || !p.Mark.Gaps[1].Same(f.Mark.Gaps[2]) {
		t.Errorf("plan %+v", p)
	}
	if p.Mark.Epoch != 3 || p.Mark.LSN != atMark || len(p.Warnings) != 1 || len(f.Mark.Gaps) != 3 {
		t.Errorf("closing a gap changes more than that: %+v", p)
	}
	f.Mark = p.Mark
	if p, err = preflight.Decide(wanted(), f, preflight.Known{}); err != nil || p.SaveFirst || len(p.Mark.Gaps) != 2 {
		t.Errorf("gaps are closed again: %+v, %v", p, err)
	}
}

func TestDecide_AllowsWhatIsWanted(t *testing.T) {
	for name, change := range map[string]func(*preflight.Want, *preflight.Facts){
		"nothing special":             func(*preflight.Want, *preflight.Facts) {},
		"slot equal to its mark":      func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Confirmed = atMark },
		"mark equal to the server":    func(_ *preflight.Want, f *preflight.Facts) { f.Server.CurrentLSN = atMark },
		"synchronous by another name": func(_ *preflight.Want, f *preflight.Facts) { f.Server.SynchronousStandbyNames = "standby1" },
		"synchronous and wanted": func(w *preflight.Want, f *preflight.Facts) {
			w.AllowSynchronous, f.Server.SynchronousStandbyNames = true, "*"
		},
		"PostgreSQL 13":                      func(_ *preflight.Want, f *preflight.Facts) { f.Server.VersionNum = 130000 },
		"slot that may lose WAL soon":        func(_ *preflight.Want, f *preflight.Facts) { f.Slot.WALStatus = "unreserved" },
		"failover slot on the same timeline": func(_ *preflight.Want, f *preflight.Facts) { f.Slot.Failover = true },
		"mark without identities": func(_ *preflight.Want, f *preflight.Facts) {
			f.Mark.Publication, f.Mark.Relations = checkpoint.Identity{}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, f := wanted(), healthy()
			change(&w, &f)
			p, err := preflight.Decide(w, f, preflight.Known{})
			if err != nil {
				t.Fatal(err)
			}
			if p.Start != f.Slot.Confirmed || p.SaveFirst || len(p.Warnings) > 0 {
				t.Errorf("plan %+v", p)
			}
		})
	}
}

func elsewhere() []checkpoint.Mark {
	return []checkpoint.Mark{{SystemID: "6999", Slot: "relay", Epoch: 1, Timeline: 1, LSN: 0x77, SavedAt: postmasterStart}}
}

func TestDisagrees_TellsTheTrouble(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*preflight.Facts)
		want   preflight.Trouble
	}{
		"dropped":           {func(f *preflight.Facts) { f.HasSlot, f.Slot = false, catalog.Slot{} }, preflight.Gone},
		"lost":              {func(f *preflight.Facts) { f.Slot.WALStatus = "lost" }, preflight.Invalid},
		"beyond the end":    {func(f *preflight.Facts) { f.Slot.Confirmed = 0x1000_00000000 }, preflight.Beyond},
		"ahead":             {func(f *preflight.Facts) { f.Slot.Confirmed = 0xB8 }, preflight.Ahead},
		"the server's end":  {func(f *preflight.Facts) { f.Server.CurrentLSN = 0xA8 }, preflight.WentBack},
		"old primary":       {func(f *preflight.Facts) { f.Mark.Timeline = 2 }, preflight.OlderTimeline},
		"promoted":          {func(f *preflight.Facts) { *f = onNewTimeline(false) }, preflight.NewerTimeline},
		"upgraded, no slot": {func(f *preflight.Facts) { f.HasSlot, f.HasMark, f.Elsewhere = false, false, elsewhere() }, preflight.OtherCluster},
		"upgraded":          {func(f *preflight.Facts) { f.HasMark, f.Elsewhere = false, elsewhere() }, preflight.OtherCluster},
		"a mark of its own": {func(f *preflight.Facts) { f.HasSlot, f.Elsewhere = false, elsewhere() }, preflight.Gone},
		"marks lost":        {func(f *preflight.Facts) { f.HasMark = false }, preflight.Unmarked},
	} {
		f := healthy()
		c.change(&f)
		err := preflight.Disagrees(wanted(), f)
		var d *preflight.Disagreement
		if !errors.As(err, &d) || d.Trouble != c.want {
			t.Errorf("%s: %v, want trouble %d", name, err, c.want)
		}
	}
	for _, failover := range []bool{false, true} {
		f := healthy()
		if failover {
			f = onNewTimeline(true)
		}
		f.HasPublication, f.Elsewhere = false, elsewhere() // not its business
		if err := preflight.Disagrees(wanted(), f); err != nil {
			t.Errorf("failover=%t: slot and mark agree: %v", failover, err)
		}
	}
}
