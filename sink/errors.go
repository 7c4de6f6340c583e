package sink

import "errors"

// ErrHalted is returned by Drain when all that is left waits behind a record
// that was refused.
var ErrHalted = errors.New("a lane is halted at a record that can never be written")

// ErrClosed is returned by calls on a closed sink.
var ErrClosed = errors.New("the sink is closed")
