package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/fault"
)

// Exit codes.
const (
	exitOK      = 0 // done, or stopped cleanly
	exitFailure = 1
	exitUsage   = 2 // usage or configuration
)

const exitCodes = `Exit codes:
  0  done, or stopped cleanly
  1  failure
  2  wrong usage or configuration; nothing was connected to`

// usageError is the caller's mistake on the command line or in the
// configuration.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errFailed ends a command that has said everything itself.
var errFailed = errors.New("failed")

// loggedError is an error that the log has told, as its last line.
type loggedError struct{ err error }

func (e *loggedError) Error() string { return e.err.Error() }
func (e *loggedError) Unwrap() error { return e.err }

// logged tells err as one line of a JSON log, so that a pipeline can parse every
// line of run's. A log for a person ends with the line that every command ends
// with.
func logged(err error, cfg config.Log, log *zap.Logger) error {
	if err == nil || cfg.Format != "json" {
		return err
	}
	fields := []zap.Field{zap.String("error", err.Error())}
	var f *fault.Error
	if errors.As(err, &f) && f.Fix != "" {
		what := strings.Replace(err.Error(), ". To fix it: "+f.Fix, "", 1)
		fields = []zap.Field{zap.String("error", what), zap.String("fix", f.Fix)}
	}
	log.Error("stopped by an error", fields...)
	return &loggedError{err}
}

func exitCode(err error) int {
	var usage *usageError
	var problems config.Problems
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage), errors.As(err, &problems):
		return exitUsage
	}
	return exitFailure
}

// main runs the command line and returns the exit code. An error is printed once.
func (a *app) main(args []string) int {
	root := a.root()
	root.SetArgs(args)
	err := root.Execute()
	var told *loggedError
	if err != nil && !errors.Is(err, errFailed) && !errors.As(err, &told) {
		if err.Error() == context.Canceled.Error() { // of a wait that a signal ended, and that says no more
			err = errors.New("interrupted before it was done; cdc-relay check tells what there is, and the same command begins again")
		}
		_, _ = fmt.Fprintf(a.err, "cdc-relay: %v\n", err)
	}
	return exitCode(err)
}
