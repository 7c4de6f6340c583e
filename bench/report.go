package main

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/bench/record"
)

//go:embed results.md.tmpl
var reportTemplate string

func reportCommand() *cobra.Command {
	o := fullDefaults
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Write results.md again from results.json, and print the RESULT lines",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := record.Open(o.out, false)
			if err != nil {
				return err
			}
			file := store.File()
			if err := writeReport(file, o.out, fullGroups(o), fullResults(file)); err != nil {
				return err
			}
			if !printResults(cmd.OutOrStdout(), fullResults(file)) {
				return errBars
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&o.out, "out", resultsPath(o.out), "raw JSON; the report is written beside it")
	return cmd
}

// table is one of the report, as Markdown.
type table struct {
	Group, Params, Note string
	Head                []string
	Rows                [][]string
}

type page struct {
	Machines []record.Machine
	Builds   []string // what was measured, with the groups if there are several
	First    string
	Last     string
	MaxLoad  float64
	Results  []string
	Drains   []table
	Steady   []table
	Others   []table
	NotRun   []string
}

func writeReport(all record.File, out string, groups []*group, results []result) error {
	f := all.Newest()
	p := page{NotRun: notRun(f, groups)}
	for _, key := range slices.Sorted(maps.Keys(f.Machines)) {
		if slices.ContainsFunc(f.Rounds, func(r record.Round) bool { return r.Machine == key }) {
			p.Machines = append(p.Machines, f.Machines[key])
		}
	}
	p.Builds, p.First, p.Last, p.MaxLoad = provenance(f)
	for _, r := range results {
		p.Results = append(p.Results, r.line())
	}
	for _, g := range groups {
		t := tableOf(f, g)
		switch {
		case len(t.Rows) == 0:
		case g.scenario == "drain":
			p.Drains = append(p.Drains, t)
		case g.scenario == "steady":
			p.Steady = append(p.Steady, t)
		default:
			p.Others = append(p.Others, t)
		}
	}
	tmpl, err := template.New("results.md").Funcs(template.FuncMap{"markdown": table.markdown}).Parse(reportTemplate)
	if err != nil {
		return err
	}
	var b strings.Builder
	if err := tmpl.Execute(&b, p); err != nil {
		return err
	}
	return os.WriteFile(strings.TrimSuffix(out, ".json")+".md", []byte(b.String()), 0o644)
}

// provenance says which commits were measured, when, and how busy the machine was before.
func provenance(f record.File) (builds []string, first, last string, load float64) {
	groups := map[string][]string{}
	var from, to time.Time
	for _, r := range f.Rounds {
		name := fmt.Sprintf("commit %s (binary %s)", r.Commit, r.Build)
		if !slices.Contains(groups[name], r.Group) {
			groups[name] = append(groups[name], r.Group)
		}
		if from.IsZero() || r.Time.Before(from) {
			from = r.Time
		}
		if r.Time.After(to) {
			to = r.Time
		}
		load = max(load, r.LoadBefore)
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		if len(groups) > 1 {
			name += ": " + strings.Join(groups[name], ", ")
		}
		builds = append(builds, name)
	}
	return builds, from.Format(time.DateOnly), to.Format(time.DateOnly), load
}

// notRun names what has no round, or not all, and why.
func notRun(f record.File, groups []*group) []string {
	var lines []string
	for _, g := range groups {
		for _, s := range g.systems {
			n := f.Count(g.name(), s.name)
			why := ""
			for _, k := range f.Skipped {
				if k.Group == g.name() && k.System == s.name {
					why = ": " + strings.ReplaceAll(k.Why, "\n", " ")
				}
			}
			switch {
			case n == 0:
				lines = append(lines, fmt.Sprintf("`%s`%s", g.cell(s), why))
			case n < g.roundsOf(s) || why != "":
				lines = append(lines, fmt.Sprintf("`%s`: only %d of %d rounds%s", g.cell(s), n, g.roundsOf(s), why))
			}
		}
	}
	return lines
}

// column is a figure of a table.
type column struct {
	head, figure, format string
	of                   string // a ratio to this system
}

var drainColumns = []column{
	{"rows/s", "rows_per_s", "%.0f", ""}, {"to pg_recvlogical", "rows_per_s", "%.2f", "pg_recvlogical"}, {"CPU s/M", "cpu_per_million", "%.2f", ""},
	{"peak RSS MiB", "rss_mb", "%.0f", ""}, {"walsender CPU s/M", "walsender_cpu_per_million", "%.1f", ""},
	{"broker CPU s/M", "broker_cpu_per_million", "%.1f", ""}, {"records/request", "records_per_request", "%.0f", ""}, {"naps", "naps", "%.0f", ""},
	{"second half rows/s", "second_half_per_s", "%.0f", ""},
}

var steadyColumns = []column{
	{"events/s", "achieved_per_s", "%.0f", ""}, {"p50 ms", "p50_ms", "%.2f", ""}, {"p99 ms", "p99_ms", "%.2f", ""}, {"p99.9 ms", "p999_ms", "%.1f", ""},
	{"p99 to control", "p99_ms", "%.2f", "control"}, {"CPU %", "cpu_percent", "%.1f", ""}, {"CPU s/M", "cpu_per_million", "%.1f", ""},
	{"peak RSS MiB", "rss_mb", "%.0f", ""}, {"its backend CPU s/M", "backend_cpu_per_million", "%.1f", ""},
	{"broker CPU s/M", "broker_cpu_per_million", "%.1f", ""}, {"load and consumer CPU %", "load_cpu_percent", "%.0f", ""}, {"naps", "naps", "%.0f", ""}, {"behind at the end", "behind_at_end", "%.0f", ""},
	{"never came", "missing", "%.0f", ""},
}

var costColumns = []column{
	{"WAL MB/M", "wal_mb_per_million", "%.0f", ""}, {"table and indexes MB/M", "table_mb_per_million", "%.0f", ""}, {"dead rows/M", "dead_per_million", "%.0f", ""},
	{"its backend CPU s/M", "backend_cpu_per_million", "%.1f", ""}, {"its own CPU s/M", "cpu_per_million", "%.1f", ""},
}

// tableOf leaves out columns and systems for which nothing was measured.
func tableOf(f record.File, g *group) table {
	columns := steadyColumns
	switch g.scenario {
	case "drain":
		columns = drainColumns
	case "cost":
		columns = costColumns
	}
	t := table{Group: g.name(), Head: []string{"system", "rounds"}}
	for _, r := range f.Rounds {
		if r.Group == g.name() {
			t.Params = r.Params
		}
	}
	var kept []column
	for _, c := range columns {
		if slices.ContainsFunc(g.systems, func(s *system) bool { return c.spread(f, g, s).N > 0 }) {
			kept = append(kept, c)
			t.Head = append(t.Head, c.head)
		}
	}
	for _, s := range g.systems {
		n := f.Count(g.name(), s.name)
		if n == 0 {
			continue
		}
		row := []string{s.name, fmt.Sprint(n)}
		for _, c := range kept {
			row = append(row, c.text(c.spread(f, g, s)))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func (c column) spread(f record.File, g *group, s *system) record.Spread {
	if c.of != "" {
		if c.of == s.name {
			return record.SpreadOf(nil)
		}
		return f.Ratio(g.name(), s.name, c.of, c.figure)
	}
	return f.Figure(g.name(), s.name, c.figure)
}

// text is the median, and the spread where there is any.
func (c column) text(s record.Spread) string {
	if s.N == 0 {
		return ""
	}
	low, mid, high := fmt.Sprintf(c.format, s.Min), fmt.Sprintf(c.format, s.Median), fmt.Sprintf(c.format, s.Max)
	if low == high {
		return mid
	}
	return fmt.Sprintf("%s (%s–%s)", mid, low, high)
}

func (t table) markdown() string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.Head)
	rule := make([]string, len(t.Head))
	for i := range rule {
		rule[i] = "--:"
	}
	rule[0] = "---"
	line(rule)
	for _, row := range t.Rows {
		line(row)
	}
	return b.String()
}
