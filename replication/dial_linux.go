package replication

import (
	"errors"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// boundUnacknowledged sets TCP_USER_TIMEOUT, tcp(7).
func boundUnacknowledged(rc syscall.RawConn, d time.Duration) error {
	var serr error
	err := rc.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
	return errors.Join(err, serr)
}

// minRTT is the shortest round-trip time that the kernel has seen on the
// connection lately, tcp_min_rtt_wlen in ip-sysctl.
func minRTT(rc syscall.RawConn) (time.Duration, bool) {
	var info *unix.TCPInfo
	var serr error
	err := rc.Control(func(fd uintptr) { info, serr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err != nil || serr != nil {
		return 0, false
	}
	return time.Duration(info.Min_rtt) * time.Microsecond, true
}

// setLowWater sets SO_RCVLOWAT, socket(7). Reads that do not wait ignore it.
func setLowWater(rc syscall.RawConn, bytes int) error {
	var serr error
	err := rc.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes) })
	return errors.Join(err, serr)
}

// readNow reads what is there, without waiting; 0 and no error when that is
// nothing. The connection's deadline holds.
func readNow(rc syscall.RawConn, p []byte) (n int, err error) {
	var serr error
	err = rc.Read(func(fd uintptr) bool {
		n, serr = syscall.Read(int(fd), p)
		return true
	})
	switch {
	case err != nil:
		return 0, err // deadline, or closed
	case serr == syscall.EAGAIN || serr == syscall.EINTR:
		return 0, nil
	case serr != nil:
		return 0, serr
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
