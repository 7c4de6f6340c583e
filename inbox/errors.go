package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Permanent marks an error of a handler that another attempt would meet again: the
// record is a dead letter at once. reason is written to the dead letter; it must hold
// nothing of the payload.
func Permanent(reason string, err error) error {
	return &failure{reason: reason, permanent: true, err: err}
}

// WithReason gives an error of a handler the text that a dead letter will show. It
// must hold nothing of the payload. Without it a dead letter shows the SQLSTATE and what it is about,
// or the type of the error, since a text may quote what a customer wrote.
func WithReason(reason string, err error) error { return &failure{reason: reason, err: err} }

type failure struct {
	reason    string
	permanent bool
	err       error
}

func (f *failure) Error() string {
	if f.err == nil {
		return f.reason
	}
	return f.reason + ": " + f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

func permanent(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.permanent
}

// passes tells errors of the server that are not the fault of what was handled: it
// rolled back for another transaction's sake, waits for a lock, takes no writes, is short of something, stops or
// has lost the connection. statement_timeout (57014) is not among them: the handler may be the slow one.
func passes(err error) bool {
	var e interface{ SQLState() string }
	if !errors.As(err, &e) || len(e.SQLState()) != 5 {
		return false
	}
	switch state := e.SQLState(); state {
	case "57014":
		return false
	case "25006", "55P03":
		return true
	default:
		switch state[:2] {
		case "08", "40", "53", "57", "58":
			return true
		}
	}
	return false
}

const maxReason = 500 // bytes of the header

// reasonOf says why, and nothing of the payload.
func reasonOf(err error) string {
	var reason string
	var f *failure
	var state interface{ SQLState() string }
	switch {
	case errors.As(err, &f) && f.reason != "":
		reason = f.reason
	case errors.As(err, &state):
		reason = "PostgreSQL refused with SQLSTATE " + state.SQLState()
	case errors.Is(err, context.DeadlineExceeded):
		reason = "the handler took longer than AttemptTime"
	default:
		for { // the innermost says most, and %T shows no content
			inner := errors.Unwrap(err)
			if inner == nil {
				break
			}
			err = inner
		}
		reason = fmt.Sprintf("the handler failed with an error of type %T; give it a text by inbox.WithReason", err)
	}
	reason = strings.ReplaceAll(reason, "\x00", "")
	return strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
}

// errParked stands for a record that must wait behind a dead letter of its key.
var errParked = &failure{reason: "parked behind an unresolved dead letter of its key", permanent: true}

// errGone stands for a handler that called runtime.Goexit, as t.FailNow does.
var errGone = &failure{reason: "the handler ended its goroutine, and returned nothing"}

// panicked is a panic of a handler. Its value may hold anything, so only its type is
// told.
type panicked struct{ value any }

func (p panicked) Error() string { return fmt.Sprintf("the handler panicked with a %T", p.value) }
