package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pglogrepl"
)

const (
	// frameBuffer is the size of the read buffer: large enough that a busy stream
	// is read in few system calls.
	frameBuffer = 256 << 10
	// shrinkAfter frames that would have fitted into frameBuffer, a buffer that a
	// large row made grow is given back.
	shrinkAfter = 256

	msgHeader  = 5  // type byte and length, PostgreSQL's "Message Formats"
	xlogHeader = 25 // 'w', WAL start, WAL end, send time
)

// errInterrupted is returned by the frame reader after interrupt. The reader
// keeps what it has read, so reading can go on.
var errInterrupted = errors.New("reading was interrupted")

// FrameTooLargeError says that the server is about to send a message that is
// larger than the limit. Nothing of the row was read into memory.
type FrameTooLargeError struct {
	Size  int64 // bytes, of the whole message
	Limit int64 // bytes
	LSN   pglogrepl.LSN
}

func (e *FrameTooLargeError) Error() string {
	return fmt.Sprintf("the message at %s has %d bytes, more than the limit of %d", e.LSN, e.Size, e.Limit)
}

// frameReader cuts the server's byte stream into messages. It reads ahead into
// one buffer that is reused, and hands out messages in place.
//
// While pgconn still owns the connection it is the io.Reader below pgconn's own
// buffer; Read then never hands out bytes past the message in hand, so nothing
// is left in pgconn's buffer when the stream begins and next takes over.
type frameReader struct {
	r      io.Reader
	before func() error // called before each read that may block
	buf    []byte
	rp, wp int
	left   int // Read: bytes of the message in hand that are not handed out yet
	// messages counts those that next returned.
	messages uint64
	small    int // frames in a row that would have fitted into frameBuffer
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: r, buf: make([]byte, frameBuffer)}
}

// Read implements io.Reader for pgconn.
func (f *frameReader) Read(p []byte) (int, error) {
	if f.left == 0 {
		if err := f.fill(msgHeader); err != nil {
			return 0, err
		}
		n := int(int32(binary.BigEndian.Uint32(f.buf[f.rp+1:])))
		if n < 4 {
			return 0, fmt.Errorf("the server sent a message of type %q with the impossible length %d", f.buf[f.rp], n)
		}
		f.left = n + 1
	}
	if f.rp == f.wp {
		if err := f.fill(1); err != nil {
			return 0, err
		}
	}
	n := copy(p[:min(len(p), f.left)], f.buf[f.rp:f.wp])
	f.rp += n
	f.left -= n
	return n, nil
}

// next returns the next message's type and body. The body is valid until the
// next call. After an error of the connection's deadline the call can be
// repeated.
func (f *frameReader) next(limit int64) (byte, []byte, error) {
	if err := f.fill(msgHeader); err != nil {
		return 0, nil, err
	}
	typ := f.buf[f.rp]
	size := int(int32(binary.BigEndian.Uint32(f.buf[f.rp+1:])))
	if size < 4 {
		return 0, nil, fmt.Errorf("the server sent a message of type %q with the impossible length %d", typ, size)
	}
	if int64(size) > limit {
		return 0, nil, f.tooLarge(typ, int64(size), limit)
	}
	total := size + 1
	f.shrink(total)
	if err := f.fill(total); err != nil {
		return 0, nil, err
	}
	body := f.buf[f.rp+msgHeader : f.rp+total : f.rp+total]
	f.rp += total
	f.messages++
	return typ, body, nil
}

func (f *frameReader) tooLarge(typ byte, size, limit int64) error {
	e := &FrameTooLargeError{Size: size, Limit: limit}
	if typ != 'd' || size < 4+xlogHeader {
		return e
	}
	if err := f.fill(msgHeader + xlogHeader); err != nil {
		return err
	}
	if b := f.buf[f.rp+msgHeader:]; b[0] == 'w' {
		e.LSN = pglogrepl.LSN(binary.BigEndian.Uint64(b[1:]))
	}
	return e
}

// peek returns the next n bytes, which stay to be read.
func (f *frameReader) peek(n int) ([]byte, error) {
	if err := f.fill(n); err != nil {
		return nil, err
	}
	return f.buf[f.rp : f.rp+n], nil
}

// discard drops the next n bytes without reading them into memory all at once. It
// returns how many are left after an error.
func (f *frameReader) discard(n int64) (left int64, err error) {
	for n > 0 {
		if err := f.fill(1); err != nil {
			return n, err
		}
		k := min(n, int64(f.wp-f.rp))
		f.rp += int(k)
		n -= k
	}
	return 0, nil
}

// shrink gives a grown buffer back when it has not been needed for a while.
func (f *frameReader) shrink(total int) {
	if total > frameBuffer {
		f.small = 0
		return
	}
	f.small++
	if len(f.buf) == frameBuffer || f.small < shrinkAfter || f.wp-f.rp > frameBuffer {
		return
	}
	b := make([]byte, frameBuffer)
	f.wp = copy(b, f.buf[f.rp:f.wp])
	f.rp = 0
	f.buf = b
}

// fill reads until n bytes are buffered from rp on.
func (f *frameReader) fill(n int) error {
	if f.wp-f.rp >= n {
		return nil
	}
	if f.rp == f.wp {
		f.rp, f.wp = 0, 0
	}
	switch {
	case n > len(f.buf):
		b := make([]byte, n)
		f.wp = copy(b, f.buf[f.rp:f.wp])
		f.rp = 0
		f.buf = b
	case f.rp+n > len(f.buf):
		f.wp = copy(f.buf, f.buf[f.rp:f.wp])
		f.rp = 0
	}
	for f.wp-f.rp < n {
		if f.before != nil {
			if err := f.before(); err != nil {
				return err
			}
		}
		m, err := f.r.Read(f.buf[f.wp:])
		f.wp += m
		if err != nil && f.wp-f.rp < n {
			if err == io.EOF && f.wp != f.rp {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}
