//go:build !linux

package replication

import (
	"errors"
	"syscall"
	"time"
)

// boundUnacknowledged does nothing: keepalives and the read deadline remain.
func boundUnacknowledged(syscall.RawConn, time.Duration) error { return nil }

// minRTT is not known: reads are not coalesced.
func minRTT(syscall.RawConn) (time.Duration, bool) { return 0, false }

func setLowWater(syscall.RawConn, int) error { return errors.ErrUnsupported }

func readNow(syscall.RawConn, []byte) (int, error) { return 0, errors.ErrUnsupported }
