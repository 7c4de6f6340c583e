package replication

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// A walsender sends each message by itself. While messages come faster than
	// busyRate for settleTime, reads are coalesced: the reader naps between two reads,
	// so that neither side pays for a wake-up per message.
	busyRate = 18_000 // messages per second
	// settleTime is how long the rate must have been above or below it.
	settleTime = 16 * time.Millisecond
	// rateWindow is the shortest time that a rate is measured over.
	rateWindow = 4 * time.Millisecond
	nap        = 5 * time.Millisecond
	// napWindow is the receive buffer of a coalesced connection. It is small, so that
	// it is full long before a nap ends: then the server's send only appends to its
	// own queue, and wakes nobody.
	napWindow = 48 << 10
	// more bytes in one read than this, and there are probably more.
	moreAbove = 8 << 10
	// maxRTT is the longest round-trip time of a connection whose reads are
	// coalesced. It is that of a server on this host. Over a network each filling of
	// the small window would cost a round trip, and a send wakes no reader anyway.
	maxRTT = 75 * time.Microsecond
)

// pacer decides when to nap. It is pure.
type pacer struct {
	hot   bool // busy: nap between reads
	again bool // the last read was large: read on at once

	windowAt  time.Time
	windowAtN uint64    // messages at that time
	agreedAt  time.Time // when the rate last agreed with hot
}

// tick measures the rate. It is called before each read, when everything that
// was read before is counted in messages.
func (p *pacer) tick(messages uint64, now time.Time) {
	elapsed := now.Sub(p.windowAt)
	if elapsed < rateWindow {
		return
	}
	busy := float64(messages-p.windowAtN) > busyRate*elapsed.Seconds()
	if busy != p.hot && now.Sub(p.agreedAt) >= settleTime {
		p.hot = busy
	}
	if busy == p.hot {
		p.agreedAt = now
	}
	p.windowAt, p.windowAtN = now, messages
}

// read notes that a read returned n of at most size bytes.
func (p *pacer) read(n, size int) { p.again = n >= moreAbove || n == size }

// coalescedConn is a TCP connection that reads in few large pieces while the
// stream is busy. Until coalesce is called it is the connection alone. Read
// belongs to one goroutine.
type coalescedConn struct {
	*net.TCPConn
	raw      syscall.RawConn
	messages *uint64 // taken from the stream so far; nil until coalesce
	pace     pacer
	lowat    bool // SO_RCVLOWAT is raised
	naps     *atomic.Uint64

	// ahead holds what was read and not handed out yet, for a caller that reads in
	// small pieces, as TLS does.
	ahead  []byte
	rp, wp int
}

// coalesce begins to watch the stream's rate, unless the server is too far away
// for it to help. It reports whether it does. messages is counted by the
// goroutine that reads; naps counts the naps.
func (c *coalescedConn) coalesce(messages *uint64, naps *atomic.Uint64) bool {
	rtt, ok := minRTT(c.raw)
	if !ok || rtt > maxRTT || c.TCPConn.SetReadBuffer(napWindow) != nil {
		return false
	}
	c.messages, c.naps = messages, naps
	return true
}

// Read implements net.Conn.
func (c *coalescedConn) Read(p []byte) (int, error) {
	switch {
	case c.messages == nil:
		return c.TCPConn.Read(p)
	case c.rp < c.wp:
		n := copy(p, c.ahead[c.rp:c.wp])
		c.rp += n
		return n, nil
	case len(p) >= napWindow:
		return c.receive(p)
	}
	if c.ahead == nil {
		c.ahead = make([]byte, 2*napWindow)
	}
	n, err := c.receive(c.ahead)
	c.rp, c.wp = copy(p, c.ahead[:n]), n
	return c.rp, err
}

// receive reads what is there, after a nap while the stream is busy and nothing
// more was to be expected. After a nap that brought nothing it waits.
func (c *coalescedConn) receive(p []byte) (int, error) {
	c.pace.tick(*c.messages, time.Now())
	c.wakeAbove(c.pace.hot)
	for napped := false; c.pace.hot && !napped; {
		if !c.pace.again {
			c.naps.Add(1)
			time.Sleep(nap)
			napped = true
		}
		c.pace.again = false
		n, err := readNow(c.raw, p)
		if n > 0 || err != nil {
			c.pace.read(n, len(p))
			return n, err
		}
	}
	c.wakeAbove(false)
	n, err := c.TCPConn.Read(p)
	c.pace.read(n, len(p))
	return n, err
}

// wakeAbove keeps the kernel from waking this process's poller, which nobody
// waits on during a nap, for each message that comes meanwhile. Before a read
// that waits it is undone.
func (c *coalescedConn) wakeAbove(much bool) {
	if much == c.lowat {
		return
	}
	bytes := 1
	if much {
		bytes = napWindow
	}
	if setLowWater(c.raw, bytes) == nil {
		c.lowat = much
	}
}
