package replication

import (
	"context"
	"net"
	"strings"
	"syscall"
	"time"
)

// dial returns a pgconn.DialFunc. It makes the kernel find a dead peer also while
// nothing is read: keepalives for an idle connection, and a bound on
// unacknowledged data. A TCP connection can coalesce its reads later.
func dial(silence time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 3, Interval: silence / 3, Count: 2},
		Control: func(network, _ string, rc syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			return boundUnacknowledged(rc, silence)
		},
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return conn, nil
		}
		raw, err := tcp.SyscallConn()
		if err != nil {
			_ = tcp.Close()
			return nil, err
		}
		return &coalescedConn{TCPConn: tcp, raw: raw}, nil
	}
}

// coalesced finds the connection below TLS, nil when it has none that can
// coalesce reads.
func coalesced(conn net.Conn) *coalescedConn {
	for {
		if c, ok := conn.(*coalescedConn); ok {
			return c
		}
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = below.NetConn()
	}
}
