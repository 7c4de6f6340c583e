package replication

import (
	"net"
	"strings"
	"syscall"
	"time"
)

// dialer makes the kernel find a dead peer also while nothing is read:
// keepalives for an idle connection, and a bound on unacknowledged data.
func dialer(silence time.Duration) *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 3, Interval: silence / 3, Count: 2},
		Control: func(network, _ string, rc syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			return boundUnacknowledged(rc, silence)
		},
	}
}
