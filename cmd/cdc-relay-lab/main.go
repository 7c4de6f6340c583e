// Command cdc-relay-lab measures every window between two commits of the whole path on real PostgreSQL and Kafka, with
// processes that it really kills, and prints each outcome beside what was expected. `make lab` runs it; docs/lab.md is its
// page.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/cdc-relay/cdc-relay/lab"
	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// Exit codes.
const (
	exitFailed = 1 // a row differs, or the lab could not run
	exitUsage  = 2
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // lives as long as the process
		<-signals
		cancel()
		<-signals
		os.Exit(exitFailed) // children end with us
	}()
	if len(os.Args) == 3 && os.Args[1] == "role" { // a process of a scene
		os.Exit(lab.Role(ctx, os.Args[2]))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o lab.Options
	flags := flag.NewFlagSet("cdc-relay-lab", flag.ContinueOnError)
	flags.SetOutput(stderr)
	scenes := flags.String("scene", "", "run only these scenes, by name, with commas between them")
	list := flags.Bool("list", false, "list the scenes")
	asJSON := flags.Bool("json", false, "print JSON")
	asMarkdown := flags.Bool("markdown", false, "print docs/lab.md")
	flags.IntVar(&o.Kills, "kills", 100, "kills in the scene whole_path")
	flags.StringVar(&o.Stage.PostgresVersion, "pg", "", "major version of PostgreSQL; the newest that is installed")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || o.Kills < 1 || *asJSON && *asMarkdown {
		fmt.Fprintln(stderr, "usage: cdc-relay-lab [--scene NAME,...] [--kills N] [--pg VERSION] [--json | --markdown | --list]")
		return exitUsage
	}
	if *list {
		for _, s := range lab.Scenes(o.Kills) {
			fmt.Fprintf(stdout, "%-24s %s\n", s.Name, s.Window)
		}
		return 0
	}
	if *scenes != "" {
		o.Scenes = strings.Split(*scenes, ",")
	}
	o.Stage.RelayBinary, o.Stage.OrdersBinary, o.Polling = stage.Beside("cdc-relay"), stage.Beside("orders"), stage.Beside("polling-relay")
	o.Progress = progress(stderr)
	rows, versions, err := lab.Run(ctx, o)
	o.Progress("", nil)
	switch {
	case *asJSON:
		err = cmpErr(err, lab.WriteJSON(stdout, rows, versions, err))
	case *asMarkdown:
		err = cmpErr(err, lab.WriteMarkdown(stdout, rows, versions))
	default:
		err = cmpErr(err, lab.WriteText(stdout, rows))
	}
	if err != nil {
		fmt.Fprintln(stderr, "the lab could not run:", err)
		return exitFailed
	}
	result := stdout
	if *asJSON || *asMarkdown {
		result = stderr // standard output is the document
	}
	fmt.Fprintf(result, "RESULT lab scenes=%d failed=%d\n", len(rows), lab.Failed(rows))
	if lab.Failed(rows) > 0 {
		return exitFailed
	}
	return 0
}

func cmpErr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// progress is one line that is written over on a terminal, and elsewhere a line per scene.
func progress(w io.Writer) func(string, *lab.Row) {
	f, ok := w.(*os.File)
	terminal := false
	if ok {
		st, err := f.Stat()
		terminal = err == nil && st.Mode()&os.ModeCharDevice != 0
	}
	return func(what string, row *lab.Row) {
		switch {
		case terminal:
			fmt.Fprintf(w, "\r\x1b[K%s", what)
		case row != nil && row.OK:
			fmt.Fprintf(w, "%s: as expected, %.1f s\n", row.Scene, row.Seconds)
		case row != nil:
			fmt.Fprintf(w, "%s: DIFFERS, %.1f s\n", row.Scene, row.Seconds)
		}
	}
}
