package replication

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// endless repeats a stream for ever.
type endless struct {
	b   []byte
	off int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.off == len(e.b) {
		e.off = 0
	}
	n := copy(p, e.b[e.off:])
	e.off += n
	return n, nil
}

var _ io.Reader = (*endless)(nil)

// frameStream is a stream of messages like those of rows of 300 bytes, without a
// connection: what Next does for each message that is there.
func frameStream() (next func() error, size int) {
	frame := xlog(startLSN, bytes.Repeat([]byte("x"), 400))
	s := &Stream{frames: newFrameReader(&endless{b: bytes.Repeat(frame, 1000)})}
	s.cfg.MaxMessageBytes = noLimit
	return func() error {
		m, err := s.Next()
		if err == nil && (m.WALStart != startLSN || len(m.Data) != 400) {
			err = errors.New("another message came out than went in")
		}
		return err
	}, len(frame)
}

func TestStream_MessagesAllocateNothing(t *testing.T) {
	next, _ := frameStream()
	if n := testing.AllocsPerRun(10_000, func() {
		if err := next(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations per message, want 0", n)
	}
}

// BenchmarkNext cuts messages out of bytes that are there; a system call and its
// share of a row come on top.
func BenchmarkNext(b *testing.B) {
	next, size := frameStream()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if err := next(); err != nil {
			b.Fatal(err)
		}
	}
}
