package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/record"
	"github.com/cdc-relay/cdc-relay/bench/rig"
)

// runner runs groups of cells and keeps their rounds.
type runner struct {
	env    *rig.Env
	store  *record.Store
	run    string
	failed []string
}

// measure runs the cells that are chosen and not there yet, writes the report, and prints what came out.
func (o options) measure(ctx context.Context, groups []*group, results func(record.File) []result) error {
	store, err := record.Open(o.out, o.fresh)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(groups, func(g *group) bool {
		return slices.ContainsFunc(g.systems, func(s *system) bool { return chosen(g.cell(s), o.run) })
	}) {
		return fmt.Errorf("no cell matches %q: `go run ./bench list` lists them", o.run)
	}
	env, err := rig.Open(ctx, o.relay)
	if err != nil {
		return err
	}
	defer env.Close()
	if env.NoBroker != nil {
		fmt.Fprintf(os.Stderr, "WARNING: NO KAFKA, all that needs it is left out: %v\n", env.NoBroker)
	}
	r := &runner{env: env, store: store, run: o.run}
	fmt.Printf("commit %s, relay %s, %d cores, load %.2f; rounds go to %s\n", env.Commit, env.Build, env.Machine.Cores, record.Load(), o.out)
	for _, g := range groups {
		if err := r.group(ctx, g); err != nil {
			return err
		}
	}
	file := store.File()
	lines := results(file)
	if err := writeReport(file, o.out, groups, lines); err != nil {
		return err
	}
	ok := printResults(os.Stdout, lines)
	switch {
	case len(r.failed) > 0:
		return fmt.Errorf("these cells failed: %s", strings.Join(r.failed, ", "))
	case !ok:
		return errBars
	}
	return nil
}

// pending is one round of one system that is still to be run.
type pending struct {
	s *system
	n int
}

// plan lists what is to be run, round by round. Every other round has the systems in the opposite order, so that none always
// comes first or after the same one.
func (r *runner) plan(g *group) [][]pending {
	var rounds [][]pending
	for n := 1; n <= max(g.rounds, g.slowRounds); n++ {
		var round []pending
		for _, s := range g.systems {
			if n <= g.roundsOf(s) && chosen(g.cell(s), r.run) && !r.store.Has(r.round(g, s, n)) {
				round = append(round, pending{s, n})
			}
		}
		if n%2 == 0 {
			slices.Reverse(round)
		}
		if len(round) > 0 {
			rounds = append(rounds, round)
		}
	}
	return rounds
}

func (r *runner) round(g *group, s *system, n int) record.Round {
	return record.Round{Group: g.name(), System: s.name, Params: g.params, Round: n, Time: time.Now().UTC(),
		Commit: r.env.Commit, Build: r.env.Build, LoadBefore: record.Load(), Machine: r.env.Machine.Key()}
}

func (r *runner) group(ctx context.Context, g *group) error {
	if len(r.plan(g)) == 0 {
		return nil
	}
	fmt.Printf("== %s (%s)\n", g.name(), g.params)
	began := time.Now()
	closing, err := g.open(ctx, r.env)
	if err != nil {
		return fmt.Errorf("%s: %w", g.name(), err)
	}
	defer closing()
	fmt.Printf("   ready after %.0f s\n", time.Since(began).Seconds())
	missing, err := r.leaveOut(ctx, g)
	if err != nil {
		return err
	}
	for _, round := range r.plan(g) {
		for _, p := range round {
			if missing[p.s.name] {
				continue
			}
			if err := r.one(ctx, g, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// leaveOut says loudly, and writes down, which systems cannot be run.
func (r *runner) leaveOut(ctx context.Context, g *group) (map[string]bool, error) {
	missing := map[string]bool{}
	for _, s := range g.systems {
		if s.missing == nil || !chosen(g.cell(s), r.run) {
			continue
		}
		why := s.missing(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if why == "" {
			continue
		}
		missing[s.name] = true
		fmt.Fprintf(os.Stderr, "WARNING: NOT RUN: %s: %s\n", g.cell(s), why)
		if err := r.store.Skip(record.Skipped{Group: g.name(), System: s.name, Why: why, Time: time.Now().UTC()}); err != nil {
			return nil, err
		}
	}
	return missing, nil
}

func (r *runner) one(ctx context.Context, g *group, p pending) error {
	entry := r.round(g, p.s, p.n)
	out, err := p.s.run(ctx, p.n)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		var fatal fatalError
		if errors.As(err, &fatal) {
			return err
		}
		// The others are worth having.
		r.failed = append(r.failed, fmt.Sprintf("%s round %d", g.cell(p.s), p.n))
		fmt.Fprintf(os.Stderr, "FAILED: %s round %d: %v\n", g.cell(p.s), p.n, err)
		return r.store.Skip(record.Skipped{Group: g.name(), System: p.s.name, Why: fmt.Sprintf("round %d failed: %.300s", p.n, err.Error()), Time: time.Now().UTC()})
	}
	entry.Figures, entry.Notes, entry.Machine = out.figures, out.notes, r.env.Machine.Key()
	fmt.Printf("   round %d of %d  %-18s %s\n", p.n, g.roundsOf(p.s), p.s.name, summary(out.figures))
	return r.store.Add(entry, r.env.Machine)
}

// fatalError ends the run: what a group shares is broken.
type fatalError struct{ error }

func (e fatalError) Unwrap() error { return e.error }

// shown are the figures of a progress line, in order.
var shown = []struct{ key, format string }{
	{"seconds", "%.1f s"}, {"rows_per_s", "%.0f rows/s"}, {"second_half_per_s", "second half %.0f rows/s"}, {"achieved_per_s", "%.0f events/s"}, {"p50_ms", "p50 %.2f ms"}, {"p99_ms", "p99 %.2f ms"},
	{"p999_ms", "p99.9 %.1f ms"}, {"cpu_per_million", "%.2f CPU s/M"}, {"rss_mb", "%.0f MiB"}, {"records_per_request", "%.0f records/request"},
	{"walsender_cpu_per_million", "walsender %.1f CPU s/M"}, {"backend_cpu_per_million", "backend %.1f CPU s/M"}, {"broker_cpu_per_million", "broker %.1f CPU s/M"}, {"load_cpu_percent", "load %.0f%% CPU"}, {"naps", "%.0f naps"},
	{"wal_mb_per_million", "WAL %.0f MB/M"}, {"table_mb_per_million", "table %.0f MB/M"}, {"dead_per_million", "%.0f dead/M"},
}

func summary(figures map[string]float64) string {
	var parts []string
	for _, s := range shown {
		if v, ok := figures[s.key]; ok {
			parts = append(parts, fmt.Sprintf(s.format, v))
		}
	}
	return strings.Join(parts, ", ")
}
