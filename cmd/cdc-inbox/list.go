package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/inbox"
)

const maxLimit = 1 << 30

func (a *app) listCommand() *cobra.Command {
	var f inbox.Filter
	var state string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the oldest first",
		Long: `List dead letters, the oldest first: by default those that are open. LATER is how many records of
its key were handled since, EARLIER how many letters of its key are open before it, 100 at most. It reads the database alone.`,
		Example: `  cdc-inbox list
  cdc-inbox list --owner billing --older-than 1h
  cdc-inbox list --state any --json | jq .reason`,
		Args: a.noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.State = inbox.State(state)
			if !slices.Contains([]inbox.State{inbox.Open, inbox.Redriven, inbox.Done, inbox.Discarded, inbox.AnyState}, f.State) {
				return usagef("--state is open, redriven, done, discarded or any, not %q", state)
			}
			if f.Limit < 1 || f.Limit > maxLimit || f.OlderThan < 0 {
				return usagef("--limit must be from 1 to %d, and --older-than not negative", maxLimit)
			}
			d, closeAll, err := a.letters(cmd.Context(), false)
			if err != nil {
				return err
			}
			defer closeAll()
			limit := f.Limit
			f.Limit++ // one more tells that there are more
			letters, err := d.List(cmd.Context(), f)
			if err != nil {
				return err
			}
			more := len(letters) > limit
			letters = letters[:min(limit, len(letters))]
			if err := a.print(letters, asJSON); err != nil {
				return err
			}
			if more {
				_, _ = fmt.Fprintf(a.err, "there are more than %d; raise --limit\n", limit)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&f.Owner, "owner", "", "the consumer; all of them without it")
	cmd.Flags().StringVar(&state, "state", string(inbox.Open), "open, redriven, done, discarded or any")
	cmd.Flags().DurationVar(&f.OlderThan, "older-than", 0, "only what failed at least this long ago, such as 1h")
	cmd.Flags().IntVar(&f.Limit, "limit", 100, "how many at most")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line")
	return cmd
}

func (a *app) print(letters []inbox.DeadLetter, asJSON bool) error {
	if asJSON {
		for _, l := range letters {
			if err := a.json(l); err != nil {
				return err
			}
		}
		return nil
	}
	if len(letters) == 0 {
		_, err := fmt.Fprintln(a.out, "no dead letters")
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "ID\tOWNER\tSTATE\tAGE\tATTEMPTS\tLATER\tEARLIER\tEVENT\tRECORD\tREASON")
	for _, l := range letters {
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s/%d/%d\t%s\n", l.ID, printable(l.Owner), l.State, age(l.FailedAt), l.Attempts, l.Later, l.Earlier,
			printable(l.EventID), printable(l.Topic), l.Partition, l.Offset, printable(l.Reason))
	}
	return w.Flush()
}

// printable keeps what somebody else wrote from moving the cursor or the columns.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '�'
		}
		return r
	}, s)
}

// json writes a line. JSON escapes only what is below a space; the rest of what printable
// replaces would reach a terminal as it is.
func (a *app) json(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	line := make([]byte, 0, len(b)+1)
	for _, r := range string(b) {
		switch {
		case strconv.IsPrint(r):
			line = utf8.AppendRune(line, r)
		default: // in a string, as nothing else is not printable
			for _, unit := range utf16.AppendRune(nil, r) {
				line = fmt.Appendf(line, `\u%04x`, unit)
			}
		}
	}
	_, err = a.out.Write(append(line, '\n'))
	return err
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }
