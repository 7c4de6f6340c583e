package main

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/setup"
)

type recoverFlags struct {
	backfillFlags
	yes      bool
	systemID string
	from     string
	fromLSN  pglogrepl.LSN
}

func (a *app) recoverCommand(o *options) *cobra.Command {
	var f recoverFlags
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Find the way back when the slot is gone, lost or cannot be trusted",
		Long: `Find the way back when the slot is gone, lost or cannot be trusted: it was dropped,
invalidated, or moved past its mark; the server was failed over without it, restored
from a backup, or upgraded. It shows what is known, what may be missing and what it
would do, asks, and does it: a new slot with a snapshot of its beginning, every row
that is still in the outbox tables published again, and the mark from which
cdc-relay run goes on. A slot that can still be read is kept where it stands.

Rows that were published already come twice, with the same id. Rows that were deleted
before they were published cannot come back. A slot and a mark that agree need no
recovery: it says so, and exits with 0. It works on a stopped relay only.

When it is interrupted, run refuses until it is run again, which starts over, or is
given up, which records what may be missing as a gap.

Where slot and mark agree it looks, on a stopped relay, for what the server can never
decode: a text that has no form in UTF-8, a value that is too large, a publication that
did not exist. It names that, skips no more, and publishes the rows from the tables;
those that cannot be read there either it names too, and leaves out.

With --from it replaces the slot by a copy of the history slot, so that everything
from that position on is published again, and the stream goes on behind it.

--where, --order-by, --table and --closes-gaps are those of cdc-relay backfill: what
they leave out is recorded as a gap. The role needs SELECT on the tables.`,
		Example: `  cdc-relay recover --dry-run
  cdc-relay recover --order-by created_at
  cdc-relay recover --where "created_at > '2026-01-31'" --order-by created_at --yes
  cdc-relay recover --from 0/16B3748
  cdc-relay recover --give-up`,
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
			return a.recover(ctx, cfg, f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.from, "from", "", "replace the slot by a copy of the history slot, and publish everything from this position on again")
	fl.BoolVar(&f.yes, "yes", false, "do not ask")
	fl.BoolVar(&f.dryRun, "dry-run", false, "show what is known and what would be done, and do nothing")
	fl.StringVar(&f.where, "where", "", "publish only the rows for which this SQL expression is true")
	fl.StringVar(&f.orderBy, "order-by", "", "column by which the rows are published (default: the one mapped as timestamp)")
	fl.StringArrayVar(&f.tables, "table", nil, "outbox table to read, as schema.table; may be repeated (default: all that are configured)")
	fl.BoolVar(&f.closesGaps, "closes-gaps", false, "what --where leaves out, and what is in no table, was published, or need not be: record no gap")
	fl.BoolVar(&f.giveUp, "give-up", false, "end a recovery that has not finished, and record the gap")
	fl.BoolVar(&f.createTopics, "create-topics", false, "make the topics that are known by name, see kafka.topics")
	fl.StringVar(&f.systemID, "system-id", "", "of a server that was upgraded or restored: system identifier of the cluster that it was, where the store holds the marks of several")
	fl.DurationVar(&f.slotTimeout, "slot-timeout", setup.DefaultSlotTimeout,
		"how long to wait for open transactions of any database before the snapshot is given up")
	return cmd
}

func (f *recoverFlags) check() error {
	if f.from != "" {
		var err error
		if f.fromLSN, err = catalog.ParseLSN(f.from); err != nil || f.fromLSN == 0 {
			return usagef("--from takes a position in the WAL, such as 0/16B3748; cdc-relay status shows which are retained")
		}
	}
	switch {
	case f.from != "" && (f.giveUp || f.whereOK || f.closesGaps || len(f.tables) > 0 || f.systemID != ""):
		return usagef("--from publishes what is in the WAL: --where, --table, --closes-gaps, --system-id and --give-up do not go with it")
	case f.whereOK && strings.TrimSpace(f.where) == "":
		return usagef("--where is empty; without it every row is published")
	case f.giveUp && (f.dryRun || f.whereOK):
		return usagef("--give-up publishes nothing, and has no dry run")
	case f.slotTimeout <= 0:
		return usagef("--slot-timeout must be longer than 0")
	}
	return nil
}

func (a *app) recover(ctx context.Context, cfg config.Config, f recoverFlags) error {
	tables, err := chosenTables(cfg, f.tables)
	if err != nil {
		return err
	}
	w, err := a.forRows(cfg)
	if err != nil {
		return err
	}
	defer w.Close()
	so, err := w.options(ctx, f.backfillFlags)
	if err != nil {
		return err
	}
	so.Yes, so.Confirm = f.yes, a.confirm
	ro := setup.RecoverOptions{Where: f.where, ClosesGaps: f.closesGaps, GiveUp: f.giveUp, SystemID: f.systemID, Times: timeColumns(cfg)}
	for _, t := range tables {
		ro.Tables = append(ro.Tables, catalog.TableName{Schema: t.Schema, Name: t.Name})
	}
	ro.From = f.fromLSN
	ro.OpenReadable = func(where string) (setup.ReadableRows, func(context.Context), error) {
		bf := f.backfillFlags
		bf.where = where
		rows, err := a.rows(cfg, bf, tables, w.openSink)
		if err != nil {
			return nil, nil, err
		}
		return rows, rows.Close, nil
	}
	// Whether rows can be read matters only once there is something to recover.
	ro.OpenRows = func() (setup.Rows, func(context.Context), error) {
		rows, err := a.rows(cfg, f.backfillFlags, tables, w.openSink)
		var usage *usageError
		if errors.As(err, &usage) {
			err = usage.err // the server was connected to
		}
		if err != nil {
			return nil, nil, err
		}
		return rows, rows.Close, nil
	}
	return setup.Recover(ctx, so, ro)
}

// timeColumns are the columns that are mapped as timestamp.
func timeColumns(cfg config.Config) map[catalog.TableName]string {
	columns := map[catalog.TableName]string{}
	for _, t := range cfg.Tables() {
		if t.Timestamp != "" {
			columns[tableName(t)] = t.Timestamp
		}
	}
	return columns
}

func tableName(t route.Table) catalog.TableName {
	return catalog.TableName{Schema: t.Schema, Name: t.Name}
}
