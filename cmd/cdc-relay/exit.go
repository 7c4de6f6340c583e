package main

import (
	"errors"
	"fmt"

	"github.com/cdc-relay/cdc-relay/config"
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
	if err != nil && !errors.Is(err, errFailed) {
		_, _ = fmt.Fprintf(a.err, "cdc-relay: %v\n", err)
	}
	return exitCode(err)
}
