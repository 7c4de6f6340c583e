package main

import (
	"context"
	"fmt"

	"github.com/cdc-relay/cdc-relay/backfill"
	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/replay"
	"github.com/cdc-relay/cdc-relay/sink"
	"github.com/cdc-relay/cdc-relay/verify"
)

// repairs says in the options how what is missing in the tables is published.
func (a *app) repairs(cfg config.Config, cluster *broker.Cluster, vo *verify.Options) (err error) {
	if vo.History != nil {
		return nil // it publishes by itself
	}
	log, err := newLogger(config.Log{Level: "warn", Format: cfg.Log.Format}, a.err)
	if err != nil {
		return err
	}
	p := progress.New(a.err)
	vo.Rows, err = backfill.New(backfill.Config{
		Marking:      markSettings(cfg),
		MarkingFails: func(err error) { p.Say("published rows were not marked; trying again: %v", err) },
		Connect:      cfg.Source.Connect, ApplicationName: cfg.Source.ApplicationName, Tables: cfg.Tables(), AnyOrder: true,
		MaxRowBytes: int64(cfg.Relay.MaxRowBytes), OpenSink: openSink(cfg, cluster, log), Progress: &told{r: p},
		Correct: "correct the mapping", Leave: "publish the others by cdc-relay backfill --where",
	})
	if err != nil {
		return &usageError{err}
	}
	return nil
}

// repair publishes what is missing again, once a person has agreed; the outcome is
// in the report.
func (a *app) repair(ctx context.Context, v *verify.Verifier, report *verify.Report, f verifyFlags) (err error) {
	if !f.repair || report.Missing == 0 {
		return nil
	}
	if f.dryRun {
		if !f.asJSON {
			_, err = fmt.Fprintf(a.out, "with --repair and without --dry-run, %d records would be published again\n", report.Missing)
		}
		return err
	}
	if !f.yes {
		yes, err := a.confirm(fmt.Sprintf("Publish %d records again?", report.Missing))
		if err != nil {
			return err
		}
		if !yes {
			_, err = fmt.Fprintln(a.out, "nothing was published; --yes does not ask")
			return err
		}
	}
	return v.Repair(ctx)
}

// wal is the history of the relay, as verify reads it.
type wal struct {
	a   *app
	cfg config.Config
	f   verifyFlags
}

// Read implements verify.History.
func (w *wal) Read(ctx context.Context, each func(*sink.Record) error, poison func([]byte, error) error) (verify.Range, error) {
	opts := replayOptions(w.cfg, replayFlags{fromBound: w.f.fromBound, toBound: w.f.toBound, dryRun: true})
	opts.Read, opts.Poison, opts.KnownSince = each, poison, knownSince(ctx, w.cfg)
	r, err := replay.New(opts)
	if err != nil {
		return verify.Range{}, &usageError{err}
	}
	rep, err := r.Run(ctx)
	if err != nil || rep.From == 0 {
		return verify.Range{}, err
	}
	return verify.Range{From: rep.From, To: rep.To}, nil
}

// Publish implements verify.History.
func (w *wal) Publish(ctx context.Context, span verify.Range, wanted func(*sink.Record) (bool, error)) error {
	opts := replayOptions(w.cfg, replayFlags{fromBound: replay.Bound{LSN: span.From}, toBound: replay.Bound{LSN: span.To}})
	opts.Wanted, opts.Poison = wanted, func([]byte, error) error { return nil } // the comparison has told it
	closeSink, err := w.a.replaySink(ctx, w.cfg, &opts)
	if err != nil {
		return err
	}
	defer closeSink()
	r, err := replay.New(opts)
	if err != nil {
		return err
	}
	_, err = r.Run(ctx)
	return err
}

// Command implements verify.History.
func (w *wal) Command(span verify.Range) string {
	f := replayFlags{configFile: w.f.configFile, set: w.f.set}
	return f.again(replay.Report{Next: replay.Bound{LSN: span.From}, To: span.To})
}
