package replay

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
)

func slot(name string, confirmed uint64) catalog.Slot {
	return catalog.Slot{Name: name, Type: "logical", Plugin: "pgoutput", Database: "d", WALStatus: "reserved", Confirmed: lsn(confirmed), Restart: lsn(confirmed)}
}

func TestDecide_RefusesWhatIsNotRetainedAsAWhole(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	good := func() (Options, facts) {
		return Options{Slot: "s", History: "h", From: Bound{LSN: 100}}, facts{
			server: catalog.Server{Database: "d", CurrentLSN: 900, MaxReplicationSlots: 10, MaxWALSenders: 10},
			main:   slot("s", 800), hasMain: true, history: slot("h", 100), hasHistory: true,
		}
	}
	for _, c := range []struct {
		name string
		edit func(o *Options, f *facts)
		want plan
		err  []string
	}{
		{"from the beginning of the history", func(*Options, *facts) {}, plan{100, 800}, nil},
		{"a part of it", func(o *Options, _ *facts) { o.From.LSN, o.To.LSN = 200, 300 }, plan{200, 300}, nil},
		{"by time, from the beginning of the history", func(o *Options, _ *facts) { o.From = Bound{Time: noon} }, plan{100, 800}, nil},
		{"before the history", func(o *Options, _ *facts) { o.From.LSN = 99 }, plan{},
			[]string{"what was committed from 0/63 on is not retained as a whole", "from 0/64 up to 0/320 can be replayed"}},
		{"beyond what is published", func(o *Options, _ *facts) { o.To.LSN = 801 }, plan{}, []string{"0/321 is beyond what is published (0/320)"}},
		{"empty", func(o *Options, _ *facts) { o.From.LSN = 800 }, plan{}, []string{"is empty", "from 0/64 up to 0/320"}},
		{"empty by time is known later", func(o *Options, f *facts) { o.From = Bound{Time: noon}; f.history.Confirmed = 800 }, plan{800, 800}, nil},
		{"no history", func(_ *Options, f *facts) { f.hasHistory = false }, plan{}, []string{`"h" does not exist`, "cdc-relay setup"}},
		{"lost", func(_ *Options, f *facts) { f.history.WALStatus = "lost" }, plan{}, []string{"is lost"}},
		{"another database", func(_ *Options, f *facts) { f.history.Database = "e" }, plan{}, []string{"no history"}},
		{"another plugin", func(_ *Options, f *facts) { f.history.Plugin = "test_decoding" }, plan{}, []string{"no history"}},
		{"no free slot", func(_ *Options, f *facts) { f.server.ReplicationSlots = 10 }, plan{}, []string{"all 10 replication slots", "max_replication_slots"}},
		{"no free walsender", func(_ *Options, f *facts) { f.server.WALSenders = 10 }, plan{}, []string{"all 10 walsenders", "max_wal_senders"}},
		{"no main slot, no end", func(_ *Options, f *facts) { f.hasMain = false }, plan{}, []string{`"s" does not exist`, "--to, at most 0/384"}},
		{"no main slot", func(o *Options, f *facts) { f.hasMain = false; o.To.LSN = 900 }, plan{100, 900}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, f := good()
			c.edit(&o, &f)
			got, err := decide(o, f)
			if got != c.want || (err == nil) != (c.err == nil) {
				t.Fatalf("%+v, %v", got, err)
			}
			if err != nil && fault.ClassOf(err) != fault.Stop {
				t.Errorf("class %v", fault.ClassOf(err))
			}
			for _, w := range c.err {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("no %q in: %v", w, err)
				}
			}
		})
	}
}

func TestParseBound_ReadsPositionsAndTimes(t *testing.T) {
	two := time.Date(2026, 3, 1, 14, 0, 0, 0, time.UTC)
	for text, want := range map[string]Bound{
		"0/16B3748": {LSN: 0x16B3748}, "1A/0": {LSN: 0x1A00000000}, "ffffffff/FFFFFFFF": {LSN: 1<<64 - 1},
		"2026-03-01T14:00:00Z": {Time: two}, "2026-03-01 15:00:00+01:00": {Time: two}, "2026-03-01 14:00:00 Z": {Time: two},
		"2026-03-01T14:00Z": {Time: two}, "2026-03-01T14:00:00.5Z": {Time: two.Add(time.Second / 2)},
	} {
		got, err := ParseBound(text)
		if err != nil || got.LSN != want.LSN || !got.Time.Equal(want.Time) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
		if again, err := ParseBound(got.String()); err != nil || again.LSN != got.LSN || !again.Time.Equal(got.Time) {
			t.Errorf("%s: printed as %s: %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0/0", "1/", "x/y", "0/16B3748x", "0/16B3748 ", "0/16B374800", "0/+1", "-1/1", "0/1/2", "100000000/1", "000000001/1", "16B3748", "yesterday", "2026-03-01", "2026-03-01T14:00:00", "14:00"} {
		if got, err := ParseBound(text); err == nil {
			t.Errorf("%q is taken for %s", text, got)
		}
	}
}
