//go:build !linux

package replication

import (
	"syscall"
	"time"
)

// boundUnacknowledged does nothing: keepalives and the read deadline remain.
func boundUnacknowledged(syscall.RawConn, time.Duration) error { return nil }
