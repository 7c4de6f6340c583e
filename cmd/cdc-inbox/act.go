package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/progress"
)

// decision is what redrive and discard have in common.
type decision struct {
	actor, note string
	yes, dryRun bool
}

func (o *decision) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.actor, "actor", "", "who does it; recorded. The user of the operating system without it, but not root")
	cmd.Flags().StringVar(&o.note, "note", "", "why; recorded (also --reason)")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "tell what would be done, and do nothing")
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "reason" {
			name = "note"
		}
		return pflag.NormalizedName(name)
	})
}

func (o *decision) check(env func(string) string) error {
	if o.dryRun {
		return nil
	}
	if strings.TrimSpace(o.note) == "" {
		return usagef("--note is missing: say why; it is recorded")
	}
	if o.actor == "" {
		o.actor = env("SUDO_USER")
	}
	if u, err := user.Current(); o.actor == "" && err == nil && u.Uid != "0" {
		o.actor = u.Username
	}
	if o.actor == "" {
		return usagef("--actor is missing: say who does it; root is nobody")
	}
	return nil
}

func (a *app) redriveCommand() *cobra.Command {
	var o decision
	var by inbox.Redrive
	var owner string
	var all bool
	cmd := &cobra.Command{
		Use:   "redrive ID... | --owner X --all",
		Short: "Send dead letters to their owner again, with the same id",
		Long: `Send the records of dead letters to their owner's retry topic, with the same event id: what was handled after all
is skipped there. A letter is done when its owner has handled it, and open again when that failed. Mend the cause first.

A letter is refused when letters of its key are open before it, or when later records of its key were handled since: see
that the effect is still right after them, and give --anyway. Several are sent in the order of their records.
After a crash or an error run the same command again: a record that was sent twice is handled once.`,
		Example: `  cdc-inbox redrive 17 --note "order 42 was restored"
  cdc-inbox redrive 17 18 --anyway --note "billing compares versions"
  cdc-inbox redrive --owner billing --all --dry-run
  cdc-inbox redrive --owner billing --all --yes --note "release 7 is rolled back"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			numbers, err := ids(args)
			switch {
			case err != nil:
				return err
			case all && len(args) > 0, !all && len(args) == 0:
				return usagef("give ids, or --owner and --all; see cdc-inbox list")
			case all && owner == "", !all && owner != "":
				return usagef("--owner and --all belong together")
			}
			if err := o.check(a.getenv); err != nil {
				return err
			}
			d, closeAll, err := a.letters(cmd.Context(), true)
			if err != nil {
				return err
			}
			defer closeAll()
			if all {
				if numbers, err = openOf(cmd.Context(), d, owner); err != nil {
					return err
				}
			}
			if o.dryRun {
				return a.wouldRedrive(cmd.Context(), d, numbers)
			}
			if err := a.confirm("redrive", len(numbers), o.yes || len(numbers) < 2); err != nil {
				return err
			}
			by.Actor, by.Note = o.actor, o.note
			return a.each(cmd.Context(), "redrive", numbers, func(ctx context.Context, id int64) error { return d.Redrive(ctx, id, by) })
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&owner, "owner", "", "with --all: the consumer")
	cmd.Flags().BoolVar(&all, "all", false, "all open letters of --owner")
	cmd.Flags().BoolVar(&by.Anyway, "anyway", false, "also when later records of the key were handled, earlier letters are open, or it was redriven before")
	cmd.Flags().StringVar(&by.Topic, "topic", "", "the owner's retry topic, where the letter does not name it; never a topic that others read")
	return cmd
}

func (a *app) discardCommand() *cobra.Command {
	var o decision
	cmd := &cobra.Command{
		Use:   "discard ID...",
		Short: "Give dead letters up: their effects will not happen",
		Long: `Give dead letters up: their effects will not happen, and with policy Park their keys go on. Say in --note why the effect is
not needed, or how it was made good. The records stay in their topic. It needs the database alone.`,
		Example: `  cdc-inbox discard 18 --note "a test order"
  cdc-inbox discard 19 20 --yes --note "invoiced by hand, ticket 7"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			numbers, err := ids(args)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return usagef("give the ids of the letters; see cdc-inbox list")
			}
			if err := o.check(a.getenv); err != nil {
				return err
			}
			if o.dryRun {
				_, err := fmt.Fprintf(a.out, "%d letters would be discarded: %v\n", len(numbers), numbers)
				return err
			}
			if err := a.confirm("discard", len(numbers), o.yes || len(numbers) < 2); err != nil {
				return err
			}
			d, closeAll, err := a.letters(cmd.Context(), false)
			if err != nil {
				return err
			}
			defer closeAll()
			return a.each(cmd.Context(), "discard", numbers, func(ctx context.Context, id int64) error { return d.Discard(ctx, id, o.actor, o.note) })
		},
	}
	o.flags(cmd)
	return cmd
}

// openOf returns the open letters of an owner, in the order of their records.
func openOf(ctx context.Context, d *inbox.DeadLetters, owner string) ([]int64, error) {
	letters, err := d.List(ctx, inbox.Filter{Owner: owner, Limit: maxLimit})
	if err != nil {
		return nil, err
	}
	// A letter that failed again is younger than those behind it.
	slices.SortStableFunc(letters, func(a, b inbox.DeadLetter) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	numbers := make([]int64, len(letters))
	for i, l := range letters {
		numbers[i] = l.ID
	}
	return numbers, nil
}

// confirm returns nil when a person has agreed.
func (a *app) confirm(what string, n int, agreed bool) error {
	if agreed {
		return nil
	}
	_, _ = fmt.Fprintf(a.err, "%s %d letters? [yes/no] ", what, n)
	line, err := bufio.NewReader(a.in).ReadString('\n')
	switch answer := strings.ToLower(strings.TrimSpace(line)); {
	case answer == "yes" || answer == "y":
		return nil
	case err != nil && answer == "":
		return errors.New("nothing was done, since nobody answered: give --yes")
	}
	_, _ = fmt.Fprintln(a.err, "nothing was done")
	return errTold
}

// each does something about every letter. Those that wait for an earlier one of their
// key are tried again after the others, as long as that helps.
func (a *app) each(ctx context.Context, what string, numbers []int64, do func(context.Context, int64) error) error {
	show := progress.New(a.err)
	stage := show.Stage(what, int64(len(numbers)), "letters")
	var refused []error
	done := 0
	for waiting := numbers; len(waiting) > 0; {
		var again []int64
		refused = slices.DeleteFunc(refused, func(err error) bool { return errors.Is(err, inbox.ErrEarlier) })
		for _, id := range waiting {
			err := do(ctx, id)
			switch {
			case err == nil:
				done++
				stage.Add(1)
				continue
			case errors.Is(err, inbox.ErrEarlier):
				again = append(again, id)
			case !isRefusal(err): // the next would meet it as well
				stage.Close()
				return fmt.Errorf("%d of %d letters done: %w", done, len(numbers), errors.Join(append(refused, err)...))
			}
			refused = append(refused, err)
		}
		if len(again) == len(waiting) {
			break
		}
		waiting = again
	}
	stage.Close()
	_, _ = fmt.Fprintf(a.out, "%s: %d of %d letters\n", what, done, len(numbers))
	for _, err := range refused {
		hint := ""
		if errors.Is(err, inbox.ErrLater) || errors.Is(err, inbox.ErrEarlier) {
			hint = "; --anyway goes on"
		}
		_, _ = fmt.Fprintf(a.err, "%v%s\n", err, hint)
	}
	if len(refused) > 0 {
		return errTold
	}
	return nil
}

// isRefusal tells what is about one letter.
func isRefusal(err error) bool {
	for _, is := range []error{inbox.ErrNoLetter, inbox.ErrState, inbox.ErrGone, inbox.ErrNowhere, inbox.ErrTopic, inbox.ErrTooLarge, inbox.ErrEarlier, inbox.ErrLater} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// wouldRedrive tells what a redrive would meet, and reads every record for that.
func (a *app) wouldRedrive(ctx context.Context, d *inbox.DeadLetters, numbers []int64) error {
	var letters []inbox.DeadLetter
	failed := false
	stage := progress.New(a.err).Stage("read", int64(len(numbers)), "letters")
	for _, id := range numbers {
		l, _, _, err := d.Show(ctx, id)
		stage.Add(1)
		switch {
		case err == nil:
			letters = append(letters, l)
		case isRefusal(err):
			failed = true
			_, _ = fmt.Fprintln(a.err, err)
		default:
			stage.Close()
			return err
		}
	}
	stage.Close()
	if len(letters) > 0 {
		if err := a.print(letters, false); err != nil {
			return err
		}
	}
	_, _ = fmt.Fprintf(a.out, "%d letters would be looked at; with LATER above 0 a redrive refuses without --anyway\n", len(letters))
	if failed {
		return errTold
	}
	return nil
}
