package replication

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// play lets a stream go by that has a message each gap, read as it comes, for d.
func (p *pacer) play(now *time.Time, messages *uint64, gap, d time.Duration) (hot time.Duration) {
	for end := now.Add(d); now.Before(end); {
		*now = now.Add(gap)
		*messages++
		p.tick(*messages, *now)
		if p.hot {
			hot += gap
		}
	}
	return hot
}

func TestPacer_NapsOnlyWhileTheStreamIsBusy(t *testing.T) {
	now, messages := time.Unix(1, 0), uint64(0)
	var p pacer
	// 1,000 events a second, each a transaction of its own, are 3,000 messages.
	if hot := p.play(&now, &messages, time.Second/3000, 2*time.Second); hot != 0 {
		t.Errorf("it napped for %s at 3,000 messages a second", hot)
	}
	if hot := p.play(&now, &messages, time.Second/17_000, 2*time.Second); hot != 0 {
		t.Errorf("it napped for %s at 17,000 messages a second", hot)
	}
	// A stall of 100 ms at that rate, and all that gathered at once.
	now = now.Add(100 * time.Millisecond)
	if hot := p.play(&now, &messages, time.Second/300_000, time.Second/1000); hot != 0 {
		t.Errorf("it napped for %s after a stall", hot)
	}
	now = now.Add(100 * time.Millisecond)
	if hot := p.play(&now, &messages, time.Second/100_000, time.Second); hot < 950*time.Millisecond || hot > time.Second-settleTime {
		t.Errorf("it was busy for %s of a busy second", hot)
	}
	if hot := p.play(&now, &messages, time.Second/3000, time.Second); hot == 0 || hot > 2*settleTime {
		t.Errorf("it was busy for another %s when the stream had become slow", hot)
	}
	p.play(&now, &messages, time.Second/100_000, time.Second)
	now = now.Add(time.Minute)
	messages++
	if p.tick(messages, now); p.hot {
		t.Error("it is busy after a minute of silence")
	}
}

// A server that stands still for a moment does not end the busy time: it would
// pay for single reads until the rate is known again.
func TestPacer_StaysBusyOverAShortPause(t *testing.T) {
	now, messages := time.Unix(1, 0), uint64(0)
	var p pacer
	p.play(&now, &messages, time.Second/100_000, 100*time.Millisecond)
	now = now.Add(8 * time.Millisecond)
	if p.tick(messages, now); !p.hot {
		t.Error("8 ms without a message ended the busy time")
	}
}

// coalescedPair is a connection that coalesces reads, as if below a stream that
// takes a message per 100 bytes, and its other end.
func coalescedPair(t *testing.T) (c *coalescedConn, messages *uint64, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := dial(15*time.Second)(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	c, messages = coalesced(conn), new(uint64)
	if _, ok := minRTT(c.raw); !ok {
		t.Skip("this system does not tell the round-trip time")
	}
	// As coalesce does, but for the round-trip time, which a busy machine stretches.
	if err := c.SetReadBuffer(napWindow); err != nil {
		t.Fatal(err)
	}
	c.messages, c.naps = messages, new(atomic.Uint64)
	return c, messages, server
}

// A walsender sends each message by itself.
func writeNumbers(w io.Writer, n int) error {
	var b [100]byte
	for i := range n {
		binary.BigEndian.PutUint64(b[:], uint64(i))
		if _, err := w.Write(b[:]); err != nil {
			return err
		}
	}
	return nil
}

func TestCoalescedConn_DeliversEveryByteInOrder(t *testing.T) {
	for name, size := range map[string]int{"as the frame reader": frameBuffer, "as TLS": 700} {
		t.Run(name, func(t *testing.T) {
			c, messages, server := coalescedPair(t)
			const n = 300_000
			failed := make(chan error, 1)
			go func() {
				err := writeNumbers(server, n)
				server.Close()
				failed <- err
			}()
			buf := make([]byte, size)
			got, have, hot := 0, 0, false
			for {
				m, err := c.Read(buf[have:])
				hot = hot || c.pace.hot // a slow reader need not nap then
				have += m
				at := 0
				for ; have-at >= 100; at += 100 {
					if i := binary.BigEndian.Uint64(buf[at:]); i != uint64(got) {
						t.Fatalf("message %d came as number %d", i, got)
					}
					got++
					*messages++
				}
				have = copy(buf, buf[at:have])
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := <-failed; err != nil || got != n || have != 0 {
				t.Fatalf("%d messages and %d bytes of %d messages; %v", got, have, n, err)
			}
			if !hot {
				t.Error("reads were never coalesced, although the stream was busy")
			}
		})
	}
}

// An interrupt moves the deadline into the past; a busy stream must hear it too,
// and go on afterwards.
func TestCoalescedConn_DeadlineEndsTheNaps(t *testing.T) {
	c, _, server := coalescedPair(t)
	c.pace = pacer{hot: true, windowAt: time.Now(), agreedAt: time.Now()}
	if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, frameBuffer)
	if _, err := c.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a read after its deadline returned %v", err)
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := writeNumbers(server, 1); err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadAtLeast(c, buf, 100); n != 100 || err != nil {
		t.Fatalf("read %d bytes after the deadline was moved: %v", n, err)
	}
}

// Less than what wakes the reader during a nap must still wake it afterwards.
func TestCoalescedConn_WaitsForTheLastFewBytes(t *testing.T) {
	c, _, server := coalescedPair(t)
	buf := make([]byte, frameBuffer)
	for range 3 {
		c.pace = pacer{hot: true, windowAt: time.Now(), agreedAt: time.Now()}
		written := make(chan error, 1)
		time.AfterFunc(5*nap, func() { written <- writeNumbers(server, 1) }) // when it has napped, and waits
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(buf); n != 100 || err != nil {
			t.Fatalf("read %d bytes: %v", n, err)
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}
}

func TestCoalesced_NotOnAUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := dial(time.Second)(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if coalesced(conn) != nil {
		t.Error("the reads from a Unix socket are coalesced")
	}
}
