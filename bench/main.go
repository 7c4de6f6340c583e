// Command bench measures the relay side by side with what it is compared to. `make bench` runs all of it, `make bench-quick` the
// part that takes a few minutes; see README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

func main() {
	// Load and consumer share the machine with what is measured, and their garbage is not its affair. The children do not see this.
	debug.SetGCPercent(800)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	cmd := command()
	cmd.SetArgs(longFlags(os.Args[1:]))
	err := cmd.ExecuteContext(ctx)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil:
	case interrupted:
		fmt.Fprintln(os.Stderr, "interrupted; the rounds that were finished are kept")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// longFlags lets a long flag have one hyphen, as the flags of Go's own tools.
func longFlags(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		if name := strings.TrimLeft(a, "-"); strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && len(name) > 1 {
			a = "--" + name
		}
		out[i] = a
	}
	return out
}

// options are the flags.
type options struct {
	run        string
	fresh      bool
	resume     bool
	out        string
	rows       int
	slowRows   int
	rounds     int
	slowRounds int
	txRows     []int
	sizes      []int
	seconds    int
	rates      []int
	pg         string
	relay      string
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "bench",
		Short:         "Measure cdc-relay side by side with what it is compared to",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand(), quickCommand(), reportCommand(), listCommand())
	return root
}

func (o *options) flags(cmd *cobra.Command, d options) {
	fl := cmd.Flags()
	fl.StringVar(&o.run, "run", os.Getenv("RUN"), "cells to run: names or globs, with commas, such as drain/kafka/300B/tx1 or steady (RUN)")
	fl.IntVar(&o.rows, "rows", d.rows, "rows of a backlog")
	fl.IntVar(&o.slowRows, "slow-rows", d.slowRows, "rows that slow systems drain")
	fl.IntVar(&o.rounds, "rounds", d.rounds, "rounds of each cell")
	fl.IntSliceVar(&o.txRows, "tx-rows", d.txRows, "rows of a transaction")
	fl.IntSliceVar(&o.sizes, "sizes", d.sizes, "bytes of a payload")
	fl.StringVar(&o.pg, "pg", or(os.Getenv("PG"), "15"), "major version of PostgreSQL (PG)")
	fl.StringVar(&o.relay, "relay", "", "the relay's binary; built when empty")
	fl.StringVar(&o.out, "out", resultsPath(d.out), "raw JSON; the report is written beside it")
}

// fullDefaults are those of make bench.
var fullDefaults = options{rows: 1_000_000, slowRows: 100_000, rounds: 5, slowRounds: 3, txRows: []int{1, 1000}, sizes: []int{300, 1024},
	seconds: 60, rates: []int{100, 1000, 5000, 20_000}, pg: "15", out: "bench/results.json"}

func runCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run all cells that are not in the raw JSON yet, write the report, print the RESULT lines",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.measure(cmd.Context(), fullGroups(o), fullResults)
		},
	}
	d := fullDefaults
	o.flags(cmd, d)
	fl := cmd.Flags()
	fl.BoolVar(&o.fresh, "fresh", false, "forget the rounds that are there")
	fl.IntVar(&o.slowRounds, "slow-rounds", d.slowRounds, "rounds of slow systems, and of what takes a minute each")
	fl.IntVar(&o.seconds, "seconds", d.seconds, "how long each steady rate is measured")
	fl.IntSliceVar(&o.rates, "rates", d.rates, "events per second of the steady cells")
	return cmd
}

func quickCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "quick",
		Short: "Drain a backlog by the relay and by pg_recvlogical, and print the RESULT lines",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.fresh = !o.resume
			o.slowRounds = min(2, o.rounds)
			return o.measure(cmd.Context(), quickGroups(o), quickResults)
		},
	}
	o.flags(cmd, options{rows: 1_000_000, slowRows: 1000, rounds: 5, txRows: []int{1, 1000}, sizes: []int{300}, out: ".cache/bench/quick.json"})
	cmd.Flags().BoolVar(&o.resume, "resume", false, "go on with an interrupted run")
	return cmd
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the cells of make bench",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			for _, g := range fullGroups(fullDefaults) {
				for _, s := range g.systems {
					fmt.Fprintf(cmd.OutOrStdout(), "%-36s rounds=%d %s\n", g.cell(s), g.roundsOf(s), g.params)
				}
			}
		},
	}
}

// resultsPath is a path below the module's root, wherever the command runs.
func resultsPath(path string) string {
	root, err := proc.ModuleRoot()
	if err != nil {
		return path
	}
	return filepath.Join(root, path)
}

func or(s, t string) string {
	if s == "" {
		return t
	}
	return s
}

var errBars = errors.New("not every bar was reached: see the lines with missed above. The bars hold for the default number of rows and rounds, on a machine that does nothing else")
