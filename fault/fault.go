// Package fault owns the four classes of error by which the relay acts, and
// the error type that a person reads. It is pure: no I/O, no clock.
package fault

import (
	"errors"
	"fmt"
)

// Class says what an error asks for.
type Class uint8

const (
	// Retry: try the same thing again, for ever, jittered and capped. Everything
	// that is not proven to be another class is Retry.
	Retry Class = iota
	// Refresh: Retry after dropping cached leaders and connections.
	Refresh
	// Poison: this one record can never be written, whatever time passes.
	Poison
	// Stop: a person has to change something; trying again cannot help.
	Stop
)

// String returns the class as it appears in metrics and logs.
func (c Class) String() string {
	switch c {
	case Retry:
		return "retry"
	case Refresh:
		return "refresh"
	case Poison:
		return "poison"
	case Stop:
		return "stop"
	default:
		return fmt.Sprintf("class(%d)", uint8(c))
	}
}

// Error is an error with its class and, where a person must act, the way out.
type Error struct {
	Class Class
	// What happened and to what, with what it endangers: one sentence, no final
	// period.
	What string
	// Fix is what to do: one sentence, no final period. It may be empty.
	Fix string
	// Err is the cause; may be nil.
	Err error
}

// Error joins what happened, the cause and the way out.
func (e *Error) Error() string {
	s := e.What
	if e.Err != nil {
		if s != "" {
			s += ": "
		}
		s += e.Err.Error()
	}
	if e.Fix != "" {
		s += ". To fix it: " + e.Fix
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Stopped returns a Stop error: what happened and what to do about it.
func Stopped(fix, format string, args ...any) *Error {
	return &Error{Class: Stop, What: fmt.Sprintf(format, args...), Fix: fix}
}

// ClassOf returns the class of the outermost *Error in err's chain, and Retry
// when there is none: what is not proven fatal is tried again.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Retry
}
