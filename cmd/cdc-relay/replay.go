package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/replay"
)

type replayFlags struct {
	source                string // history or table
	from, to, topic       string
	aggregates, keys, ids []string
	rate                  float64
	dryRun                bool
	every, wait           time.Duration
	fromBound, toBound    replay.Bound
	configFile            string   // as it was given
	set                   []string // as they were given
}

func (a *app) replayCommand(o *options) *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay --from LSN|TIME | --source table",
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

With --source table it reads rows that are still in the tables, where the WAL of
their transactions is gone: in the order of the mapped timestamp, which is not that
of the WAL. --from and --to then are times, held against that column, and may be left
out; the role needs SELECT on the tables. It waits until the relay has published what
is in the tables. One that was interrupted begins again.`,
		Example: `  cdc-relay replay --from 0/16B3748 --dry-run
  cdc-relay replay --from 2026-03-01T14:00:00Z --to 2026-03-01T15:00:00Z
  cdc-relay replay --from 0/16B3748 --topic 'again.{aggregatetype}' --rate 5000
  cdc-relay replay --from 0/16B3748 --aggregate-type order --key 4711
  cdc-relay replay --source table --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z --dry-run
  cdc-relay replay --source table --id 0195c3a2-5a0e-7c11-9f0e-2b7c1f4c9a11`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(time.Now()); err != nil {
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
			if f.source == sourceTable {
				return a.replayTable(ctx, cfg, f)
			}
			return a.replay(ctx, cfg, f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.source, "source", sourceHistory, "where the events are read: history (the WAL that is retained) or table (rows that are still there)")
	fl.StringVar(&f.from, "from", "", "first position or time to replay (required, unless with --source table)")
	fl.StringVar(&f.to, "to", "", "first position or time not to replay (default what is published when it begins)")
	fl.StringVar(&f.topic, "topic", "", "publish to this topic instead, a template such as 'again.{aggregatetype}'; it must exist")
	fl.StringArrayVar(&f.aggregates, "aggregate-type", nil, "only events of this aggregate type: the column that the topic is made of, else aggregatetype; may be repeated")
	fl.StringArrayVar(&f.keys, "key", nil, "only events with this key; may be repeated")
	fl.StringArrayVar(&f.ids, "id", nil, "only the event with this id; may be repeated")
	fl.Float64Var(&f.rate, "rate", 0, "publish at most so many events per second; 0 for no limit")
	fl.BoolVar(&f.dryRun, "dry-run", false, "read and count, show the first event and the last, and publish nothing")
	fl.DurationVar(&f.wait, "wait", 5*time.Minute, "with --source table: how long the running relay may take to publish what is in the tables")
	fl.DurationVar(&f.every, "progress", 5*time.Second, "how often a line is printed where there is no terminal")
	return cmd
}

// Sources of what is replayed, or compared.
const (
	sourceHistory = "history"
	sourceTable   = "table"
)

// clockSlack is by how much the server's clock may be ahead of this one.
const clockSlack = time.Minute

func (f *replayFlags) parse(now time.Time) (err error) {
	if f.fromBound, f.toBound, err = bounds(f.from, f.to, now); err != nil {
		return err
	}
	switch table := f.source == sourceTable; {
	case !table && f.source != sourceHistory:
		return usagef("--source is %s or %s", sourceHistory, sourceTable)
	case !table && f.from == "":
		return usagef("--from takes the position or the time to begin at; cdc-relay status shows what can be replayed")
	case f.rate < 0:
		return usagef("--rate must not be negative")
	case f.every <= 0 || f.wait <= 0:
		return usagef("--progress and --wait must be longer than 0")
	}
	return nil
}

// bounds reads a range of the WAL; what is "" is no bound.
func bounds(from, to string, now time.Time) (a, b replay.Bound, err error) {
	for _, x := range []struct {
		flag, text string
		bound      *replay.Bound
	}{{"--from", from, &a}, {"--to", to, &b}} {
		if x.text == "" {
			continue
		}
		if *x.bound, err = replay.ParseBound(x.text); err != nil {
			return a, b, usagef("%s: %w", x.flag, err)
		}
		if x.bound.Time.After(now.Add(clockSlack)) {
			return a, b, usagef("%s %s is in the future (it is %s): nothing was committed then that could be published again", x.flag, x.text, now.UTC().Format(time.RFC3339))
		}
	}
	if a.LSN != 0 && b.LSN != 0 && a.LSN >= b.LSN || !a.Time.IsZero() && !b.Time.IsZero() && !a.Time.Before(b.Time) {
		return a, b, usagef("the range is empty: --to %s is not behind --from %s", b, a)
	}
	return a, b, nil
}

func (a *app) replay(ctx context.Context, cfg config.Config, f replayFlags) error {
	opts := replayOptions(cfg, f)
	opts.KnownSince = knownSince(ctx, cfg)
	closeSink, err := a.replaySink(ctx, cfg, &opts)
	if err != nil {
		return err
	}
	defer closeSink()
	r, err := replay.New(opts)
	if err != nil {
		return &usageError{err}
	}
	show := progressOf(r.Progress, progress.New(a.err).Every(f.every))
	shown, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { show.loop(shown) })
	rep, err := r.Run(ctx)
	end()
	wg.Wait()
	show.stage.Close()
	return a.told(rep, f, err)
}

// knownSince is since when the running relay knows everything to be retained; zero
// when it cannot be asked.
func knownSince(ctx context.Context, cfg config.Config) time.Time {
	running := askRelay(ctx, cfg)
	if running == nil || running.Slot != cfg.Source.Slot || running.History == nil || running.History.Since == nil {
		return time.Time{}
	}
	return *running.History.Since
}

// replaySink says in the options where to publish to, unless it is a dry run, once
// the brokers have answered. The caller calls close.
func (a *app) replaySink(ctx context.Context, cfg config.Config, opts *replay.Options) (close func(), err error) {
	if opts.DryRun {
		return func() {}, nil
	}
	log, err := newLogger(config.Log{Level: "warn", Format: cfg.Log.Format}, a.err)
	if err != nil {
		return nil, err
	}
	cluster, err := openCluster(cfg)
	if err != nil {
		return nil, err
	}
	close = func() {
		closeCluster(cluster)
		_ = log.Sync()
	}
	if cfg.Sink == "kafka" {
		if err = reach(ctx, cfg, cluster); err == nil {
			err = topicsExist(ctx, cluster, *opts)
		}
	}
	if err != nil {
		close()
		return nil, err
	}
	opts.OpenSink = openSink(cfg, cluster, log)
	return close, nil
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
	if rep.To == 0 || rep.From == 0 && fault.ClassOf(err) == fault.Stop && !errors.Is(err, replay.ErrInterrupted) {
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
	interrupted := errors.Is(err, replay.ErrInterrupted)
	switch {
	case err == nil:
		return nil
	case fault.ClassOf(err) != fault.Stop || interrupted:
		say("it did not come to its end; of the range everything before %s is done. To go on:\n  %s", rep.Next, f.again(rep))
	case rep.From != 0: // the same command would be refused again
		say("it did not come to its end; of the range everything before %s is done. Once what is told below is mended, go on by:\n  %s", rep.Next, f.again(rep))
	}
	if interrupted {
		return errors.New("the replay was interrupted")
	}
	return err
}
