package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/backfill"
	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/setup"
	"github.com/cdc-relay/cdc-relay/sink"
)

type backfillFlags struct {
	where, orderBy                                         string
	tables                                                 []string
	all, closesGaps, dryRun, giveUp, createTopics, whereOK bool
	slotTimeout                                            time.Duration
}

func (a *app) backfillCommand(o *options) *cobra.Command {
	var f backfillFlags
	cmd := &cobra.Command{
		Use:   "backfill --all | --where PREDICATE | --give-up",
		Short: "Publish rows that are in the outbox already",
		Long: `Publish rows that are in the outbox tables already, through a snapshot, and let the
stream go on exactly where the snapshot ends.

Where there is no slot yet, run it instead of setup: it makes the slot with a
snapshot of its beginning, publishes what the snapshot shows, and saves the first
mark. With writers going on, each row is then published once: by this, or by run.
Until it has finished, run refuses. When it was interrupted, run it again: it drops
the slot that it made and starts over, and rows that were published come twice; or
give it up, which keeps the slot and records the gap.

Where the slot exists, it publishes beside the stream, also while the relay runs:
rows that were streamed already come again, with the same id. Open gaps of which all
rows were read are closed at the next start of the relay.

--where is an SQL expression as in a WHERE clause, on the columns of the table. It
is evaluated with the rights of the relay's role, in a read-only transaction. The
role needs SELECT on the tables, which run does not. --order-by names the column by
which the rows are published, since commit order is not known of them; without it,
it is the column that is mapped as timestamp.`,
		Example: `  cdc-relay backfill --all --order-by created_at --dry-run
  cdc-relay backfill --all --order-by created_at --create-topics
  cdc-relay backfill --where "status = 'pending'" --order-by created_at
  cdc-relay backfill --give-up`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.whereOK = cmd.Flags().Changed("where")
			if err := f.check(); err != nil {
				return err
			}
			cfg, err := a.loadToConnect(o)
			if err != nil {
				return err
			}
			a.warn(cfg)
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return a.backfill(ctx, cfg, f)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.all, "all", false, "publish every row")
	fl.StringVar(&f.where, "where", "", "publish the rows for which this SQL expression is true")
	fl.StringVar(&f.orderBy, "order-by", "", "column by which the rows are published (default: the one mapped as timestamp)")
	fl.StringArrayVar(&f.tables, "table", nil, "outbox table to read, as schema.table; may be repeated (default: all that are configured)")
	fl.BoolVar(&f.closesGaps, "closes-gaps", false, "with --where: the rows that it leaves out were published, or need not be, so that it closes gaps as --all does")
	fl.BoolVar(&f.dryRun, "dry-run", false, "count the rows and do nothing")
	fl.BoolVar(&f.giveUp, "give-up", false, "end a backfill that has not finished, and record the gap")
	fl.BoolVar(&f.createTopics, "create-topics", false, "make the topics that are known by name, see kafka.topics")
	fl.DurationVar(&f.slotTimeout, "slot-timeout", setup.DefaultSlotTimeout,
		"how long to wait for open transactions of any database before the snapshot is given up")
	return cmd
}

func (f backfillFlags) check() error {
	chosen := 0
	for _, is := range []bool{f.all, f.whereOK, f.giveUp} {
		if is {
			chosen++
		}
	}
	switch {
	case chosen != 1:
		return usagef("give one of --all, --where and --give-up")
	case f.whereOK && strings.TrimSpace(f.where) == "":
		return usagef("--where is empty; --all publishes every row")
	case f.closesGaps && !f.whereOK:
		return usagef("--closes-gaps goes with --where; --all closes gaps without it")
	case f.giveUp && f.dryRun:
		return usagef("--give-up has no dry run")
	case f.slotTimeout <= 0:
		return usagef("--slot-timeout must be longer than 0")
	}
	return nil
}

func (a *app) backfill(ctx context.Context, cfg config.Config, f backfillFlags) error {
	if len(cfg.Tables()) == 0 && !f.giveUp {
		return usagef("no outbox table is configured, so that there are no rows to publish; the logical messages that are published can be published again from the history, by cdc-relay replay")
	}
	tables, err := chosenTables(cfg, f.tables)
	if err != nil {
		return err
	}
	w, err := a.forRows(cfg)
	if err != nil {
		return err
	}
	defer w.Close()
	rows, err := a.rows(cfg, f, tables, w.openSink)
	if err != nil {
		return err
	}
	so, err := w.options(ctx, f)
	if err != nil {
		return err
	}
	bo := setup.BackfillOptions{Where: f.where, ClosesGaps: f.closesGaps, GiveUp: f.giveUp, Alone: cfg.Checkpoint.Store == "file"}
	for _, t := range tables {
		bo.Tables = append(bo.Tables, catalog.TableName{Schema: t.Schema, Name: t.Name})
	}
	if rows != nil { // not to give up
		defer rows.Close(ctx)
		bo.Rows = rows
	}
	return setup.Backfill(ctx, so, bo)
}

// rows are those to publish; nil to give up.
func (a *app) rows(cfg config.Config, f backfillFlags, tables []route.Table, open func(context.Context, sink.Refused) (sink.Sink, error)) (*backfill.Rows, error) {
	if f.giveUp {
		return nil, nil
	}
	a.limitMemory(cfg)
	p := progress.New(a.err)
	rows, err := backfill.New(backfill.Config{
		Marking:      markSettings(cfg),
		MarkingFails: func(err error) { p.Say("published rows were not marked; trying again: %v", err) },
		Connect:      cfg.Source.Connect, ApplicationName: cfg.Source.ApplicationName, Tables: tables, Where: f.where, OrderBy: f.orderBy,
		MaxRowBytes: int64(cfg.Relay.MaxRowBytes), OpenSink: open, Progress: &told{r: p},
	})
	if err != nil {
		return nil, &usageError{err}
	}
	return rows, nil
}

// chosenTables are those of the configuration that were named; all without a name.
func chosenTables(cfg config.Config, names []string) ([]route.Table, error) {
	all := cfg.Tables()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []route.Table
	for _, t := range all {
		if slices.Contains(names, t.String()) || t.Schema == "public" && slices.Contains(names, t.Name) {
			chosen = append(chosen, t)
		}
	}
	if len(chosen) != len(names) {
		var known []string
		for _, t := range all {
			known = append(known, t.String())
		}
		return nil, usagef("--table %s: the configuration has the tables %s", strings.Join(names, ", "), strings.Join(known, ", "))
	}
	return chosen, nil
}

// replicate opens replication connections.
func replicate(cfg config.Config) func(context.Context, *pgx.ConnConfig) (setup.Exporter, error) {
	return func(ctx context.Context, pc *pgx.ConnConfig) (setup.Exporter, error) {
		return replication.Connect(ctx, replication.Config{
			Postgres: &pc.Config, ApplicationName: cfg.Source.ApplicationName + " (snapshot)",
			SilenceTimeout: cfg.Source.SilenceTimeout, StatusInterval: cfg.Source.StatusInterval,
		})
	}
}

// told is the progress of a backfill, for a person.
type told struct {
	r     *progress.Reporter
	stage *progress.Stage
}

func (t *told) Counted(table string, rows int64) { t.r.Say("table %s: %d rows", table, rows) }
func (t *told) Begin(rows int64)                 { t.stage = t.r.Stage("publish", rows, "rows") }
func (t *told) Add(rows int64)                   { t.stage.Add(rows) }
func (t *told) End()                             { t.stage.End() }

var (
	_ setup.Rows     = (*backfill.Rows)(nil)
	_ setup.Exporter = (*replication.Conn)(nil)
)
