package main

import (
	"bufio"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/setup"
)

type setupFlags struct {
	dryRun, existingSlot, createTopics, createTable bool
	slotTimeout                                     time.Duration
	again                                           string // flags to repeat
}

func (a *app) setupCommand(o *options) *cobra.Command {
	var f setupFlags
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Make what the relay needs: publication, slot and first mark",
		Long: `Make what the relay needs, in this order: the outbox table public.outbox when it
is configured in the default shape and missing; the publication (inserts only);
the topic of the marks; the slot; its first mark; with history.max_bytes or max_age
the history slot; with --create-topics the topics of the events. What is there already is verified and left as it is, so that setup
may be repeated, and finishes what a broken one began.

The role needs LOGIN and REPLICATION, and for what setup makes more than run
does: CREATE on the database and ownership of the outbox tables. Either run it as
their owner, named by CDC_RELAY_SOURCE_URL; or give the SQL that --dry-run prints
to a DBA, and take the slot that it makes with --existing-slot.`,
		Example: `  cdc-relay setup
  cdc-relay setup --create-topics
  cdc-relay setup --dry-run > setup.sql
  cdc-relay setup --existing-slot`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			load := a.loadToConnect
			if f.dryRun {
				load = a.load
			}
			cfg, err := load(o)
			if err != nil {
				return err
			}
			a.warn(cfg)
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			f.again = fileFlag(o)
			return a.setup(ctx, cfg, f)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.dryRun, "dry-run", false, "print the SQL and do nothing")
	fl.BoolVar(&f.existingSlot, "existing-slot", false, "take the slot that somebody made for this relay")
	fl.BoolVar(&f.createTopics, "create-topics", false, "make the topics that are known by name, see kafka.topics")
	fl.BoolVar(&f.createTable, "create-table", true, "make public.outbox when it is configured in the default shape and missing")
	fl.DurationVar(&f.slotTimeout, "slot-timeout", setup.DefaultSlotTimeout,
		"how long to wait for open transactions of any database before the slot is given up")
	return cmd
}

func (a *app) setup(ctx context.Context, cfg config.Config, f setupFlags) error {
	if f.slotTimeout <= 0 {
		return usagef("--slot-timeout must be longer than 0")
	}
	so := a.setupOptions(cfg)
	so.DryRun, so.ExistingSlot, so.SlotTimeout = f.dryRun, f.existingSlot, f.slotTimeout
	so.CreateTable = f.createTable && wantsDefaultTable(cfg)
	if f.createTopics {
		so.Topics = a.topicsToMake(cfg)
	}
	if f.dryRun {
		so.MarkTopic = checkWant(cfg).MarkTopic
		so.Flags = f.again
		return setup.Setup(ctx, so)
	}
	cluster, err := openCluster(cfg)
	if err != nil {
		return err
	}
	if cluster != nil {
		defer func() { _ = cluster.Close() }()
		if err := reach(ctx, cfg, cluster); err != nil {
			return err
		}
		so.CreateTopic = func(ctx context.Context, t setup.Topic) (bool, int, error) {
			return createTopic(ctx, cluster, t)
		}
	}
	so.Store = openStore(cfg, cluster, zap.NewNop())
	defer func() { _ = so.Store.Close() }()
	ensure, cancel := context.WithTimeout(ctx, cfg.Kafka.RequestTimeout)
	defer cancel()
	if err := ensureStore(ensure, so.Store); err != nil {
		return err
	}
	return setup.Setup(ctx, so)
}

// topicsToMake are those that --create-topics makes.
func (a *app) topicsToMake(cfg config.Config) []setup.Topic {
	var topics []setup.Topic
	for _, name := range topicNames(cfg) {
		topics = append(topics, setup.Topic{Name: name, Partitions: cfg.Kafka.Topics.Partitions, Replication: cfg.Kafka.Topics.Replication})
	}
	if len(topics) == 0 {
		_, _ = fmt.Fprintln(a.err, "warning: --create-topics makes none: the topics' names come from the rows; name them in kafka.topics.names")
	}
	return topics
}

// createTopic makes a topic that does not exist. It tells whether it did, and how
// many partitions the topic has.
func createTopic(ctx context.Context, cluster *broker.Cluster, t setup.Topic) (made bool, partitions int, err error) {
	there, err := cluster.Metadata(ctx, t.Name)
	if err != nil {
		return false, 0, err
	}
	if topic := there[t.Name]; topic.Err == nil {
		return false, len(topic.Partitions), nil
	}
	err = cluster.CreateTopic(ctx, broker.TopicSpec{Name: t.Name, Partitions: t.Partitions, Replication: t.Replication})
	return err == nil, t.Partitions, err
}

// fileFlag is the flag --config as it was given, for a command line that is shown;
// "" without it.
func fileFlag(o *options) string {
	switch {
	case o.file == "":
		return ""
	case plainPath.MatchString(o.file):
		return " --config " + o.file
	}
	return fmt.Sprintf(" --config %q", o.file)
}

var plainPath = regexp.MustCompile(`^[\w./+-]+$`)

// reach asks the brokers once, so that a person is not kept waiting by one that
// is away.
func reach(ctx context.Context, cfg config.Config, cluster *broker.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.Kafka.RequestTimeout)
	defer cancel()
	return cluster.Ping(ctx)
}

func (a *app) setupOptions(cfg config.Config) setup.Options {
	so := setup.Options{
		Connect: cfg.Source.Connect, ApplicationName: cfg.Source.ApplicationName,
		Slot: cfg.Source.Slot, Publication: cfg.Source.Publication, Tables: tableNames(cfg),
		Messages: cfg.Messages.Prefix, Failover: cfg.Source.Failover, Out: a.out,
	}
	if m := markSettings(cfg); m.On() {
		so.Marking = m.Of(cfg.Tables())
	}
	if cfg.History.On() {
		so.History = cfg.HistorySlot()
	}
	rc := relayConfig(cfg)
	so.Stream = &replication.Config{StatusInterval: rc.StatusInterval, SilenceTimeout: rc.SilenceTimeout,
		MaxMessageBytes: rc.MaxRowBytes, RuntimeParams: rc.RuntimeParams}
	return so
}

// wantsDefaultTable reports whether public.outbox is configured as the migrations
// make it.
func wantsDefaultTable(cfg config.Config) bool {
	deflt := config.Default().Outbox[0]
	return slices.ContainsFunc(cfg.Outbox, func(o config.Outbox) bool {
		t, err := o.Route()
		return err == nil && t.Schema == setup.DefaultTable.Schema && t.Name == setup.DefaultTable.Name &&
			o.Columns == deflt.Columns && len(o.Headers) == 0
	})
}

// topicNames returns the event topics that are known by name, once each.
func topicNames(cfg config.Config) []string {
	names := slices.Clone(cfg.Kafka.Topics.Names)
	for _, t := range cfg.Tables() {
		if name, ok := t.FixedTopic(); ok {
			names = append(names, name)
		}
	}
	if m := cfg.LogicalMessages(); m != nil {
		if name, ok := m.FixedTopic(); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *app) adoptCommand(o *options) *cobra.Command {
	var at string
	var yes bool
	cmd := &cobra.Command{
		Use:   "adopt --lsn LSN",
		Short: "Take over a slot that has no mark, or is ahead of it, and record the gap",
		Long: `Take over a slot where it and its mark disagree: a slot without a mark, or one
that is ahead of it because it was made anew or advanced by hand. Both positions
and what may be missing are shown, and after a yes the mark is set to LSN and the
gap is recorded. Nothing is deleted or published.

LSN is the slot's confirmed_flush_lsn, by which nothing is skipped; cdc-relay status
shows it as confirmed, and so does
  SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'cdc_relay'
Or it is a later one, up to SELECT pg_current_wal_lsn(): what lies between is then
skipped for good. The message that asks for adopt says which of the two it is.`,
		Example: `  cdc-relay adopt --lsn 0/16B3748
  cdc-relay adopt --lsn 0/16B3748 --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lsn, err := catalog.ParseLSN(at)
			if at == "" || err != nil || lsn == 0 {
				return usagef("--lsn takes a position in the WAL, such as 0/16B3748; the slot's is its confirmed_flush_lsn in pg_replication_slots")
			}
			cfg, err := a.loadToConnect(o)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return a.adopt(ctx, cfg, lsn, yes)
		},
	}
	cmd.Flags().StringVar(&at, "lsn", "", "position to go on from (required)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) adopt(ctx context.Context, cfg config.Config, lsn pglogrepl.LSN, yes bool) error {
	cluster, err := openCluster(cfg)
	if err != nil {
		return err
	}
	if cluster != nil {
		defer func() { _ = cluster.Close() }()
		if err := reach(ctx, cfg, cluster); err != nil {
			return err
		}
	}
	so := a.setupOptions(cfg)
	so.Store = openStore(cfg, cluster, zap.NewNop())
	defer func() { _ = so.Store.Close() }()
	ensure, cancel := context.WithTimeout(ctx, cfg.Kafka.RequestTimeout)
	defer cancel()
	if err := ensureStore(ensure, so.Store); err != nil {
		return err
	}
	so.LSN, so.Yes, so.Confirm = lsn, yes, a.confirm
	return setup.Adopt(ctx, so)
}

// confirm asks a person; anything but yes is a no, and so is the end of input.
func (a *app) confirm(question string) (bool, error) {
	if _, err := fmt.Fprintf(a.out, "%s [yes/no] ", question); err != nil {
		return false, err
	}
	line, _ := bufio.NewReader(a.in).ReadString('\n')
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "yes" || answer == "y", nil
}
