package main

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// shown is a letter as JSON. Key, value and the values of headers are there with
// --payload alone.
type shown struct {
	inbox.DeadLetter
	Actions []inbox.Action `json:"actions"`
	Gone    bool           `json:"gone,omitempty"` // the topic has lost the record
	Bytes   int            `json:"value_bytes"`
	Record  *payload       `json:"record,omitempty"`
}

// payload is in base64, as JSON has no bytes.
type payload struct {
	Key     []byte            `json:"key"`
	Value   []byte            `json:"value"`
	Headers map[string][]byte `json:"headers"`
}

func (a *app) showCommand() *cobra.Command {
	var withPayload, asJSON bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a dead letter, and what was done about it",
		Long: `Show a dead letter, what was done about it, and whether its record can still be read. Key, value and headers of the
record are shown with --payload alone: they are what a customer wrote. Do not copy them into a ticket.`,
		Example: `  cdc-inbox show 17
  cdc-inbox show 17 --payload
  cdc-inbox show 17 --json`,
		Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, _ := strconv.ParseInt(args[0], 10, 64)
			d, closeAll, err := a.letters(cmd.Context(), true)
			if err != nil {
				return err
			}
			defer closeAll()
			l, actions, r, err := d.Show(cmd.Context(), id)
			gone := errors.Is(err, inbox.ErrGone)
			if err != nil && !gone {
				return err
			}
			s := shown{DeadLetter: l, Actions: actions, Gone: gone, Bytes: len(r.Value)}
			if withPayload && !gone {
				s.Record = &payload{Key: r.Key, Value: r.Value, Headers: map[string][]byte{}}
				for _, h := range r.Headers {
					s.Record.Headers[h.Key] = h.Value
				}
			}
			if asJSON {
				if err := a.json(s); err != nil {
					return err
				}
			} else {
				a.show(s)
			}
			return err // that it is gone
		},
	}
	cmd.Flags().BoolVar(&withPayload, "payload", false, "show key, value and headers of the record")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON, with key, value and headers in base64")
	return cmd
}

func (a *app) show(s shown) {
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(a.out, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("letter", "%d, %s since %s", s.ID, s.State, utc(s.ChangedAt))
	line("owner", "%s", printable(s.Owner))
	line("event", "%s", printable(s.EventID))
	line("record", "%s/%d/%d", printable(s.Topic), s.Partition, s.Offset)
	line("failed", "%s, %s ago, after %d attempts", utc(s.FailedAt), age(s.FailedAt), s.Attempts)
	line("reason", "%s", printable(s.Reason))
	line("dead letter", "%s/%d/%d", printable(s.LetterTopic), s.LetterPartition, s.LetterOffset)
	if s.RedriveTopic == "" {
		line("redrive to", "nowhere: the consumer had no RetryTopic; configure one, and name it by --topic")
	} else {
		line("redrive to", "%s", printable(s.RedriveTopic))
	}
	if s.Earlier > 0 {
		line("earlier", "%d letters of its key are open: redrive or discard them first", s.Earlier)
	}
	if s.Later > 0 {
		line("later", "%d records of its key were handled since: see that the effect is still right after them", s.Later)
	}
	for _, x := range s.Actions {
		line("action", "%s %s by %s: %s", utc(x.At), x.Action, printable(x.Actor), printable(x.Note))
	}
	switch {
	case s.Gone:
		line("payload", "gone")
	case s.Record == nil:
		line("payload", "%d bytes; shown with --payload", s.Bytes)
	default:
		line("key", "%s", readable(s.Record.Key))
		for name, v := range s.Record.Headers {
			line("header", "%s: %s", printable(name), readable(v))
		}
		line("value", "%s", readable(s.Record.Value))
	}
}

// readable quotes what a terminal would not show as it is.
func readable(b []byte) string {
	if b == nil {
		return "(none)"
	}
	if utf8.Valid(b) && printable(string(b)) == string(b) {
		return string(b)
	}
	return strconv.Quote(string(b))
}

func oneID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s takes the id of one letter; see cdc-inbox list", cmd.CommandPath())
	}
	_, err := ids(args)
	return err
}

func ids(args []string) ([]int64, error) {
	var all []int64
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, usagef("%q is not the id of a letter; see cdc-inbox list", arg)
		}
		all = append(all, id)
	}
	return all, nil
}
