// Command cdc-inbox lists the dead letters of services that use package inbox, shows
// them, sends them again, and discards them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv}
	os.Exit(a.main(os.Args[1:]))
}

// app is what the commands use of the process, so that tests can stand in.
type app struct {
	in     io.Reader
	out    io.Writer
	err    io.Writer
	getenv func(string) string
	conn   connection
}

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

const exitCodes = `Exit codes:
  0  done
  1  failure, or a letter was refused
  2  wrong usage or configuration; nothing was connected to`

// usageError is the caller's mistake on the command line or in the environment.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errTold ends a command that has said everything itself.
var errTold = errors.New("told")

// main runs the command line and returns the exit code. An error is printed once.
func (a *app) main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errTold):
		return exitFailure
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(a.err, "cdc-inbox: %v\n", err)
		return exitUsage
	case ctx.Err() != nil:
		_, _ = fmt.Fprintf(a.err, "cdc-inbox: interrupted; cdc-inbox list tells what was done, and the same command goes on: %v\n", err)
	default:
		_, _ = fmt.Fprintf(a.err, "cdc-inbox: %v\n", err)
	}
	return exitFailure
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "cdc-inbox",
		Short: "Dead letters of consumers: list, show, redrive, discard",
		Long: `cdc-inbox works on the dead letters of services that use the Go package inbox: records
that a consumer gave up. They are listed in the tables of inbox.DeadLetterSchema, and their
records are in the dead-letter topic. docs/inbox.md has the procedure.

` + connectionHelp + `

` + exitCodes,
		Example: `  cdc-inbox list --owner billing
  cdc-inbox show 17
  cdc-inbox redrive 17 --note "order 42 was restored"
  cdc-inbox discard 18 --note "a test order"`,
		Args:          a.noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usagef("%w; see %s --help", err, cmd.CommandPath()) })
	a.conn.flags(root.PersistentFlags(), a.getenv)
	root.AddCommand(a.listCommand(), a.showCommand(), a.redriveCommand(), a.discardCommand())
	for _, c := range root.Commands() {
		c.Long += "\n\n" + exitCodes
	}
	return root
}

func (a *app) noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return usagef("unknown command %q; see %s --help", args[0], cmd.CommandPath())
	}
	return usagef("%s takes no argument, but got %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
}

func age(since time.Time) string { return time.Since(since).Round(time.Second).String() }
