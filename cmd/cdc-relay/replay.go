package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/replay"
)

type replayFlags struct {
	from, to, topic       string
	aggregates, keys, ids []string
	rate                  float64
	dryRun                bool
	every                 time.Duration
	fromBound, toBound    replay.Bound
	configFile            string   // as it was given
	set                   []string // as they were given
}

func (a *app) replayCommand(o *options) *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay --from LSN|TIME",
		Short: "Publish again what was published in a range of the WAL, beside the running relay",
		Long: `Publish again the events of the transactions whose commit lies in a range, in
commit order, with their ids and a header ` + replay.HeaderName + `. It reads a temporary copy of
the history slot (history.max_bytes, history.max_age), and moves neither slot nor
mark: the running relay goes on undisturbed. cdc-relay status shows what can be
replayed; a range that begins before that is refused.

--from and --to take a position in the WAL, or a time with its zone, which stands
for the first transaction in WAL order that was committed at it or later. What is
committed at --to is not replayed. Without --to the range ends at what the relay has
published when the replay begins.

On a terminal a bar shows the progress, otherwise a line now and then. A replay that
is interrupted, or fails, ends with the command that goes on. After a crash, go on
from the position that the last line says is acked, or begin again: the ids are the
same, and a consumer drops the copies.

` + exitCodes,
		Example: `  cdc-relay replay --from 0/16B3748 --dry-run
  cdc-relay replay --from 2026-03-01T14:00:00Z --to 2026-03-01T15:00:00Z
  cdc-relay replay --from 0/16B3748 --topic 'again.{aggregatetype}' --rate 5000
  cdc-relay replay --from 0/16B3748 --aggregate-type order --key 4711`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			cfg, err := a.loadToConnect(o)
			if err != nil {
				return err
			}
			if f.topic != "" && f.topic == checkWant(cfg).MarkTopic {
				return usagef("--topic %s is checkpoint.topic, which holds the marks", f.topic)
			}
			f.configFile, f.set = fileFlag(o), o.set
			a.warn(cfg)
			a.limitMemory(cfg)
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			defer context.AfterFunc(ctx, stop)() // a second signal leaves at once
			return a.replay(ctx, cfg, f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.from, "from", "", "first position or time to replay (required)")
	fl.StringVar(&f.to, "to", "", "first position or time not to replay (default what is published when it begins)")
	fl.StringVar(&f.topic, "topic", "", "publish to this topic instead, a template such as 'again.{aggregatetype}'; it must exist")
	fl.StringArrayVar(&f.aggregates, "aggregate-type", nil, "only events of this aggregate type: the column that the topic is made of, else aggregatetype; may be repeated")
	fl.StringArrayVar(&f.keys, "key", nil, "only events with this key; may be repeated")
	fl.StringArrayVar(&f.ids, "id", nil, "only the event with this id; may be repeated")
	fl.Float64Var(&f.rate, "rate", 0, "publish at most so many events per second; 0 for no limit")
	fl.BoolVar(&f.dryRun, "dry-run", false, "read and count, show the first event and the last, and publish nothing")
	fl.DurationVar(&f.every, "progress", 5*time.Second, "how often a line is printed where there is no terminal")
	return cmd
}

func (f *replayFlags) parse() (err error) {
	if f.from == "" {
		return usagef("--from takes the position or the time to begin at; cdc-relay status shows what can be replayed")
	}
	if f.fromBound, err = replay.ParseBound(f.from); err != nil {
		return usagef("--from: %w", err)
	}
	if f.to != "" {
		if f.toBound, err = replay.ParseBound(f.to); err != nil {
			return usagef("--to: %w", err)
		}
	}
	a, b := f.fromBound, f.toBound
	switch {
	case a.LSN != 0 && b.LSN != 0 && a.LSN >= b.LSN, !a.Time.IsZero() && !b.Time.IsZero() && !a.Time.Before(b.Time):
		return usagef("the range is empty: --to %s is not behind --from %s", b, a)
	case f.rate < 0:
		return usagef("--rate must not be negative")
	case f.every <= 0:
		return usagef("--progress must be longer than 0")
	}
	return nil
}

func (a *app) replay(ctx context.Context, cfg config.Config, f replayFlags) error {
	opts := replayOptions(cfg, f)
	if running := askRelay(ctx, cfg); running != nil && running.Slot == cfg.Source.Slot && running.History != nil && running.History.Since != nil {
		opts.KnownSince = *running.History.Since
	}
	log, err := newLogger(config.Log{Level: "warn", Format: cfg.Log.Format}, a.err)
	if err != nil {
		return err
	}
	if !f.dryRun {
		cluster, err := openCluster(cfg)
		if err != nil {
			return err
		}
		defer closeCluster(cluster)
		if cfg.Sink == "kafka" {
			if err := reach(ctx, cfg, cluster); err != nil {
				return err
			}
			if err := topicsExist(ctx, cluster, opts); err != nil {
				return err
			}
		}
		opts.OpenSink = openSink(cfg, cluster, log)
	}
	r, err := replay.New(opts)
	if err != nil {
		return &usageError{err}
	}
	show := a.progressOf(r, f)
	shown, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { show.loop(shown) })
	rep, err := r.Run(ctx)
	end()
	wg.Wait()
	show.close(err == nil)
	if log.Core().Enabled(zap.WarnLevel) {
		_ = log.Sync()
	}
	return a.told(rep, f, err)
}

func replayOptions(cfg config.Config, f replayFlags) replay.Options {
	rc := relayConfig(cfg)
	return replay.Options{
		Connect: rc.Connect, ApplicationName: rc.ApplicationName, Slot: rc.Slot, History: cfg.HistorySlot(), Publication: rc.Publication,
		Tables: rc.Tables, Messages: rc.Messages, From: f.fromBound, To: f.toBound, Topic: f.topic, Rate: f.rate, DryRun: f.dryRun,
		Filter:         replay.Filter{AggregateTypes: f.aggregates, Keys: f.keys, IDs: f.ids},
		StatusInterval: rc.StatusInterval, SilenceTimeout: rc.SilenceTimeout, DrainTimeout: rc.ShutdownTimeout,
		MaxRowBytes: rc.MaxRowBytes, CoalesceReads: rc.CoalesceReads, RuntimeParams: rc.RuntimeParams,
	}
}

// topicsExist refuses a topic that is missing, where its name is known: the sink
// would wait for it for ever.
func topicsExist(ctx context.Context, cluster *broker.Cluster, o replay.Options) error {
	for _, name := range fixedTopics(o) {
		md, err := cluster.Metadata(ctx, name)
		if err != nil {
			return err
		}
		if err := md[name].Err; err != nil {
			return fmt.Errorf("topic %q cannot be published to: %w", name, err)
		}
	}
	return nil
}

// fixedTopics are those whose names are known before anything is read.
func fixedTopics(o replay.Options) (names []string) {
	for _, t := range o.Tables {
		if o.Topic != "" {
			t.Topic, t.TopicCol = o.Topic, ""
		}
		if name, ok := t.FixedTopic(); ok {
			names = append(names, name)
		}
	}
	if m := o.Messages; m != nil && o.Topic == "" {
		if name, ok := m.FixedTopic(); ok {
			names = append(names, name)
		}
	}
	return names
}

// told prints what came of a replay, and how to go on when it did not come to its
// end.
func (a *app) told(rep replay.Report, f replayFlags, err error) error {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	if rep.To == 0 {
		return err // nothing was begun
	}
	span := fmt.Sprintf("from %s to %s", rep.From, rep.To)
	if rep.From == 0 {
		span = fmt.Sprintf("from %s to %s", f.fromBound, rep.To)
	}
	did, n := "published again", rep.Acked
	if f.dryRun {
		did, n = "would be published again", rep.Events
	}
	say("%d events of %d transactions %s, %s; %d left out; in %s", n, rep.Transactions, did, span, rep.Filtered, rep.Took.Round(10*time.Millisecond))
	if f.dryRun && rep.Events > 0 {
		for _, e := range []struct {
			name string
			replay.Event
		}{{"first", rep.First}, {"last", rep.Last}} {
			say("%-5s  %s (insert %d), committed %s, topic %s, id %s", e.name, e.LSN, e.Seq, e.Time.UTC().Format(time.RFC3339Nano), e.Topic, e.ID)
		}
	}
	if err == nil {
		return nil
	}
	say("it did not come to its end; of the range everything before %s is done. To go on:\n  %s", rep.Next, f.again(rep))
	if errors.Is(err, replay.ErrInterrupted) {
		return errors.New("the replay was interrupted")
	}
	return err
}
