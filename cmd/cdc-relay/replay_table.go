package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/replay"
)

// replayTable publishes rows again that are still in the tables.
func (a *app) replayTable(ctx context.Context, cfg config.Config, f replayFlags) error {
	opts := replayOptions(cfg, f)
	closeSink, err := a.replaySink(ctx, cfg, &opts)
	if err != nil {
		return err
	}
	defer closeSink()
	show := progress.New(a.err).Every(f.every)
	t, err := replay.NewTable(opts, replay.TableOptions{
		Wait: f.wait, Halted: func(ctx context.Context) string { return haltedRelay(ctx, cfg) },
		Say: show.Say, Progress: &told{r: show},
	})
	if err != nil {
		return &usageError{err}
	}
	for _, t := range cfg.Tables() {
		by := t.Timestamp
		if by == "" {
			by = t.ID
		}
		show.Say("rows of table %s are published in the order of their column %q, not in that in which they were committed", t, by)
	}
	rep, err := t.Run(ctx)
	return a.toldTable(rep, f, err)
}

// toldTable prints what came of it.
func (a *app) toldTable(rep replay.TableReport, f replayFlags, err error) error {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	if err == nil || rep.Acked > 0 {
		did, n := "published again", rep.Acked
		if f.dryRun {
			did, n = "would be published again", rep.Events
		}
		say("%d rows %s, from the table; %d left out; in %s", n, did, rep.Filtered, rep.Took.Round(10*time.Millisecond))
	}
	if err == nil && f.dryRun && rep.Events > 0 {
		say("first  %s, topic %s, id %s", rep.First.Time.UTC().Format(time.RFC3339Nano), rep.First.Topic, rep.First.ID)
		say("last   %s, topic %s, id %s", rep.Last.Time.UTC().Format(time.RFC3339Nano), rep.Last.Topic, rep.Last.ID)
	}
	if errors.Is(err, replay.ErrInterrupted) {
		return errors.New("the replay was interrupted; run it again, which begins anew: rows that were published come again, with the same ids")
	}
	return err
}
