package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/replay"
)

func TestReplay_CommandThatGoesOn(t *testing.T) {
	at := replay.Bound{Time: time.Date(2026, 3, 1, 14, 0, 0, 0, time.UTC)}
	for _, c := range []struct {
		f    replayFlags
		next replay.Bound
		want string
	}{
		{replayFlags{from: "0/10"}, replay.Bound{LSN: 0x20}, "cdc-relay replay --from 0/20 --to 0/300"},
		{replayFlags{from: "0/10", to: "2026-03-01T15:00Z", toBound: at}, at, "cdc-relay replay --from 2026-03-01T14:00:00Z --to 2026-03-01T15:00Z"},
		{replayFlags{from: "0/10", topic: "again.{aggregatetype}", keys: []string{"it's", "b"}, ids: []string{"1"}, aggregates: []string{"order"},
			rate: 1500.5, configFile: " --config x.yaml", set: []string{"source.slot=s", "source.password=hunter2", "source.url=postgres://u:hunter2@h/d"}},
			replay.Bound{LSN: 0x20},
			`cdc-relay replay --config x.yaml --set source.slot=s --set source.password=... --set source.url=... --from 0/20 --to 0/300 ` +
				`--topic 'again.{aggregatetype}' --aggregate-type order --key 'it'\''s' --key b --id 1 --rate 1500.5`},
		{replayFlags{from: "0/10", dryRun: true}, replay.Bound{LSN: 0x20}, "cdc-relay replay --from 0/20 --to 0/300 --dry-run"},
	} {
		if got := c.f.again(replay.Report{Next: c.next, To: 0x300}); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}

func TestReplay_LinesShowRatePositionAndWhatIsLeft(t *testing.T) {
	var out strings.Builder
	steps := []replay.Progress{
		{},
		{To: 0x500, Read: 0x80},
		{From: 0x100, To: 0x500, Acked: 0x200, EventsAcked: 3000, Elapsed: 2 * time.Second},
		{From: 0x100, To: 0x500, Acked: 0x300, EventsAcked: 4000, Elapsed: 4 * time.Second, Trouble: "topic t cannot be written"},
	}
	p := progressOf(nil, progress.New(&out))
	for _, s := range steps {
		p.show(s)
	}
	want := `looking for the first transaction of the range; the server has read up to 0/80
3000 events, 1500/s, acked up to 0/200 of 0/500, 6s left
4000 events, 500/s, acked up to 0/300 of 0/500, 4s left; topic t cannot be written
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestReplay_SaysHowToGoOnOnlyWhereThatHelps: a command that was refused would be
// refused again.
func TestReplay_SaysHowToGoOnOnlyWhereThatHelps(t *testing.T) {
	for name, c := range map[string]struct {
		rep  replay.Report
		err  error
		want string
		not  string
	}{
		"refused before the range began": {replay.Report{To: 0x300, Next: replay.Bound{LSN: 0x10}}, fault.Stopped("choose", "not retained"), "", "e"},
		"a person has to mend something": {replay.Report{From: 0x10, To: 0x300, Next: replay.Bound{LSN: 0x20}}, fault.Stopped("mend", "poison"),
			"Once what is told below is mended, go on by:\n  cdc-relay replay --from 0/20 --to 0/300", "To go on"},
		"interrupted":      {replay.Report{From: 0x10, To: 0x300, Next: replay.Bound{LSN: 0x20}}, replay.ErrInterrupted, "To go on:\n  cdc-relay replay --from 0/20", ""},
		"connection lost":  {replay.Report{From: 0x10, To: 0x300, Next: replay.Bound{LSN: 0x20}}, errors.New("EOF"), "To go on:\n  cdc-relay replay --from 0/20", ""},
		"still looking":    {replay.Report{To: 0x300, Next: replay.Bound{LSN: 0x10}}, replay.ErrInterrupted, "To go on:\n  cdc-relay replay --from 0/10", ""},
		"came to its end":  {replay.Report{From: 0x10, To: 0x300}, nil, "0 events", "go on"},
		"nothing was done": {replay.Report{}, errors.New("no connection"), "", "events"},
	} {
		var out strings.Builder
		a := &app{out: &out}
		err := a.told(c.rep, replayFlags{from: "0/10"}, c.err)
		if (err == nil) != (c.err == nil) || !strings.Contains(out.String(), c.want) || c.not != "" && strings.Contains(out.String(), c.not) {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}
