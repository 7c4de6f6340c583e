package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/replay"
	"github.com/cdc-relay/cdc-relay/verify"
)

// verifyFlags are the flags of verify.
type verifyFlags struct {
	source              string // table or history
	since, until        string // of rows
	from, to            string // of the history
	out, tempDir        string
	asJSON              bool
	list                int
	wait                time.Duration
	repair, dryRun, yes bool
	fromBound, toBound  replay.Bound
	configFile          string   // as it was given
	set                 []string // as they were given
}

func (a *app) verifyCommand(o *options) *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the ids in the outbox with those in the topics",
		Long: `Compare the ids in the outbox tables with those in the topics: which rows are in no
topic (missing), in it more than once (duplicate), and which records have no row
(extra). It reads the tables in one snapshot, waits until the running relay has
published and confirmed all of it, then reads the topics to their end. Without
--repair nothing is changed, and no payload is read from the tables.

--since and --until take a time (2026-01-31, 2026-01-31T18:00:00Z, in UTC without a
zone) or how long ago (36h), and need a column mapped as timestamp. Without them the
whole table is compared.

With --source history it compares what was committed in a range of the WAL instead:
for rows that are deleted at once, and for logical messages. It needs the history
(history.max_bytes, history.max_age); --from and --to take a position in the WAL or a
time with its zone, as those of replay do, and without them the range is all that is
retained.

--repair publishes what is missing again, from where it was found, with the same id,
key and payload and a header backfilled, or replayed-from out of the history; then it
looks for those in the topics. It asks before it publishes, unless with --yes.

A row whose record may have been removed from the topic since, by retention or
compaction, is counted apart, and not repaired. The exit code is 1 when something is
missing at the end, and when the comparison could not be made; duplicates and extra
records alone give 0.`,
		Example: `  cdc-relay verify
  cdc-relay verify --source history --from 2026-01-31T18:00:00Z
  cdc-relay verify --since 24h --repair --dry-run
  cdc-relay verify --since 24h --out findings.jsonl
  cdc-relay verify --since 2026-01-31T18:00:00Z --until 2026-01-31T19:00:00Z --json | jq .counts`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.configFile, f.set = fileFlag(o), o.set
			vo, cfg, err := a.verifyOptions(o, &f, time.Now())
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return a.verify(ctx, cfg, vo, f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.source, "source", sourceTable, "what is compared with the topics: table (the rows that are there) or history (what was committed in the WAL that is retained)")
	fl.StringVar(&f.from, "from", "", "with --source history: compare what was committed at this position or time and later (default where the history begins)")
	fl.StringVar(&f.to, "to", "", "with --source history: and before this one (default what is published when it begins)")
	fl.BoolVar(&f.repair, "repair", false, "publish what is missing again, and look for it in the topics")
	fl.BoolVar(&f.dryRun, "dry-run", false, "with --repair: say what would be published, and publish nothing")
	fl.BoolVar(&f.yes, "yes", false, "with --repair: do not ask")
	fl.StringVar(&f.since, "since", "", "compare rows of this time and later: a time, or how long ago")
	fl.StringVar(&f.until, "until", "", "compare rows of before this time: a time, or how long ago")
	fl.StringVar(&f.out, "out", "", "write every finding to this file, one JSON object a line; an existing one is replaced")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON")
	fl.IntVar(&f.list, "list", 20, "how many findings of each kind to print")
	fl.DurationVar(&f.wait, "wait", 5*time.Minute, "how long the running relay may take to publish what the snapshot holds")
	fl.StringVar(&f.tempDir, "temp-dir", "", "directory for temporary files, about 100 bytes for each row and record (default the system's)")
	return cmd
}

// check reports what cannot be meant.
func (f *verifyFlags) check(now time.Time) (err error) {
	history := f.source == sourceHistory
	switch {
	case !history && f.source != sourceTable:
		return usagef("--source is %s or %s", sourceTable, sourceHistory)
	case f.wait <= 0 || f.list < 0:
		return usagef("--wait must be longer than 0, and --list not negative")
	case history && (f.since != "" || f.until != ""):
		return usagef("--since and --until are held against the rows of a table; of the history take --from and --to")
	case !history && (f.from != "" || f.to != ""):
		return usagef("--from and --to are a range of the WAL, and go with --source history; rows of a table are chosen by --since and --until")
	case (f.dryRun || f.yes) && !f.repair:
		return usagef("--dry-run and --yes go with --repair; verify alone changes nothing")
	case f.asJSON && f.repair && !f.dryRun && !f.yes:
		return usagef("--repair --json cannot ask: give --yes, or --dry-run")
	}
	f.fromBound, f.toBound, err = bounds(f.from, f.to, now)
	return err
}

// verifyOptions reads configuration and flags; its errors are the caller's.
func (a *app) verifyOptions(o *options, f *verifyFlags, now time.Time) (verify.Options, config.Config, error) {
	fail := func(err error) (verify.Options, config.Config, error) { return verify.Options{}, config.Config{}, err }
	if err := f.check(now); err != nil {
		return fail(err)
	}
	since, err := when("--since", f.since, now)
	if err != nil {
		return fail(err)
	}
	until, err := when("--until", f.until, now)
	if err != nil {
		return fail(err)
	}
	cfg, err := a.loadToConnect(o)
	if err != nil {
		return fail(err)
	}
	if cfg.Sink != "kafka" {
		return fail(usagef("sink is %s: nothing is published that could be verified", cfg.Sink))
	}
	vo := verify.Options{
		Tables: cfg.Tables(), Topics: cfg.Kafka.Topics.Names, Slot: cfg.Source.Slot, Publication: cfg.Source.Publication,
		Since: since, Until: until, Wait: f.wait, TempDir: f.tempDir, Repair: f.repair,
		ApplicationName: cfg.Source.ApplicationName, Connect: cfg.Source.Connect,
		Halted: func(ctx context.Context) string { return haltedRelay(ctx, cfg) },
	}
	if f.source == sourceHistory {
		vo.History = &wal{a: a, cfg: cfg, f: *f}
	}
	if err := vo.Validate(); err != nil {
		return fail(&usageError{err})
	}
	return vo, cfg, nil
}

// when reads a time, or how long ago; a zero time for "".
func when(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(s); err == nil && ago >= 0 {
		return now.Add(-ago).UTC(), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.UTC); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, usagef("%s takes a time, as 2026-01-31T18:00:00Z or 2026-01-31, or how long ago, as 36h; not %q", flag, s)
}

// haltedRelay is why the relay that answers at admin.listen will not go on.
func haltedRelay(ctx context.Context, cfg config.Config) string {
	s := askRelay(ctx, cfg)
	if s == nil || s.Slot != cfg.Source.Slot || len(s.Halts) == 0 {
		return ""
	}
	h := s.Halts[0]
	return fmt.Sprintf("topic %s, partition %d, id %s, at %s: %s", known(h.Topic), h.Partition, h.ID, h.LSN, h.Reason)
}

func (a *app) verify(ctx context.Context, cfg config.Config, vo verify.Options, f verifyFlags) (err error) {
	cluster, err := openCluster(cfg)
	if err != nil {
		return err
	}
	defer closeCluster(cluster)
	vo.Cluster, vo.Progress = cluster, progress.New(a.err)
	vo.Gaps = func(ctx context.Context, systemID string) ([]checkpoint.Gap, error) {
		return openGaps(ctx, cfg, cluster, systemID)
	}
	list := &verify.List{Limit: f.list}
	vo.Found = func(found verify.Finding) error { list.Add(found); return nil }
	if f.out != "" {
		file, err := newFindings(f.out)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.close()) }()
		vo.Found = func(found verify.Finding) error { list.Add(found); return file.write(found) }
	}
	if f.repair {
		a.limitMemory(cfg)
		if err := a.repairs(cfg, cluster, &vo); err != nil {
			return err
		}
	}
	v := verify.New(vo)
	defer v.Close()
	report, err := v.Run(ctx)
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted; nothing was changed")
	}
	if err != nil {
		return err
	}
	return a.toldVerify(ctx, v, report, list, f)
}

// toldVerify prints the report, repairs where that is asked for, and prints what came
// of it. JSON is printed once, at the end.
func (a *app) toldVerify(ctx context.Context, v *verify.Verifier, report *verify.Report, list *verify.List, f verifyFlags) error {
	if !f.asJSON {
		if err := verify.WriteText(a.out, report, list); err != nil {
			return err
		}
	}
	before := list.Len()
	repairErr := a.repair(ctx, v, report, f)
	switch {
	case f.asJSON:
		if err := verify.WriteJSON(a.out, report, list); err != nil {
			return err
		}
	case report.Repair != nil:
		if err := list.WriteText(a.out, before); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(a.out, report.Repair.Text()); err != nil {
			return err
		}
	}
	switch {
	case repairErr != nil && ctx.Err() != nil:
		return errors.New("the repair was interrupted; run it again: what was published already is not missing any more")
	case repairErr != nil:
		return repairErr
	case !report.OK:
		return errFailed
	}
	return nil
}

// openGaps reads the open gaps from the mark.
func openGaps(ctx context.Context, cfg config.Config, cluster *broker.Cluster, systemID string) ([]checkpoint.Gap, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Kafka.RequestTimeout)
	defer cancel()
	st := openStore(cfg, cluster, zap.NewNop())
	defer func() { _ = st.Close() }()
	m, _, err := st.Load(ctx, systemID, cfg.Source.Slot)
	return m.Gaps, err
}

// findings is the file with every finding. Ids may be nobody else's business.
type findings struct {
	f   *os.File
	w   *bufio.Writer
	enc *json.Encoder
}

func newFindings(path string) (*findings, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write findings: %w", err)
	}
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return &findings{f, w, enc}, nil
}

func (o *findings) write(f verify.Finding) error {
	if err := o.enc.Encode(f); err != nil {
		return fmt.Errorf("write findings: %w", err)
	}
	return nil
}

func (o *findings) close() error {
	if err := errors.Join(o.w.Flush(), o.f.Close()); err != nil {
		return fmt.Errorf("write findings: %w", err)
	}
	return nil
}
