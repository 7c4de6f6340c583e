package replication

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/jackc/pgx/v5/pgproto3"
)

const noLimit = 1 << 30

// pieces hands out a stream in reads of the given sizes, the last one repeated.
type pieces struct {
	b     []byte
	sizes []int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := min(p.sizes[0], len(p.b), len(b))
	if len(p.sizes) > 1 {
		p.sizes = p.sizes[1:]
	}
	copy(b, p.b[:n])
	p.b = p.b[n:]
	return n, nil
}

func readAll(t *testing.T, f *frameReader, want [][]byte) {
	t.Helper()
	for i, w := range want {
		typ, body, err := f.next(noLimit)
		if err != nil || typ != w[0] || !bytes.Equal(body, w[5:]) {
			t.Fatalf("frame %d: type %q, %d bytes, %v; want %q, %d bytes", i, typ, len(body), err, w[0], len(w)-5)
		}
	}
	if _, _, err := f.next(noLimit); err != io.EOF {
		t.Fatalf("after the last frame: %v", err)
	}
}

// TestFrameReader_TakesOverWithoutLosingAByte lets pgconn's reader read the
// start of a stream and takes over behind CopyBothResponse, for each place at
// which the bytes can be cut.
func TestFrameReader_TakesOverWithoutLosingAByte(t *testing.T) {
	before := encode(&pgproto3.NoticeResponse{Message: "hello"}, &pgproto3.CopyBothResponse{})
	frames := [][]byte{xlog(1, []byte("first")), keepalive(2, 1), xlog(3, nil), encode(&pgproto3.CopyDone{}), xlog(4, []byte("last"))}
	all := append(bytes.Clone(before), bytes.Join(frames, nil)...)
	takeOver := func(sizes ...int) {
		f := newFrameReader(&pieces{b: all, sizes: sizes})
		front := pgproto3.NewFrontend(f, io.Discard)
		for {
			m, err := front.Receive()
			if err != nil {
				t.Fatalf("sizes %v: %v", sizes, err)
			}
			if _, ok := m.(*pgproto3.CopyBothResponse); ok {
				break
			}
		}
		if n := front.ReadBufferLen(); n != 0 {
			t.Fatalf("sizes %v: %d bytes are left in pgconn's buffer", sizes, n)
		}
		readAll(t, f, frames)
	}
	for cut := 1; cut <= len(all); cut++ {
		takeOver(cut, len(all))  // once, there
		takeOver(cut)            // every so many bytes
		takeOver(cut, 1)         // and then one by one
		takeOver(cut, 2, 5, 100) // and then in odd steps
	}
}

func TestFrameReader_ReadsFramesLargerThanItsBuffer(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 3*frameBuffer/16)
	frames := [][]byte{xlog(1, []byte("a")), xlog(2, big), xlog(3, []byte("b")), xlog(4, big[:2*frameBuffer]), xlog(5, big)}
	all := bytes.Join(frames, nil)
	for _, size := range []int{1000, frameBuffer - 1, frameBuffer, frameBuffer + 1, len(all)} {
		readAll(t, newFrameReader(&pieces{b: all, sizes: []int{size}}), frames)
	}
	readAll(t, newFrameReader(iotest.DataErrReader(bytes.NewReader(all))), frames)
}

func TestFrameReader_GivesALargeBufferBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var frames [][]byte
	frames = append(frames, xlog(1, make([]byte, 4<<20)))
	for i := range 4 * shrinkAfter {
		b := make([]byte, rng.IntN(8<<10))
		for j := range b {
			b[j] = byte(i + j)
		}
		frames = append(frames, xlog(2, b))
	}
	f := newFrameReader(bytes.NewReader(bytes.Join(frames, nil)))
	readAll(t, f, frames)
	if len(f.buf) != frameBuffer {
		t.Errorf("the buffer has %d bytes after %d small frames", len(f.buf), 4*shrinkAfter)
	}
}

func TestFrameReader_NamesTheLSNOfATooLargeFrame(t *testing.T) {
	row := xlog(0xABC, make([]byte, 1000))
	next := xlog(0xDEF, []byte("x"))
	f := newFrameReader(iotest.OneByteReader(bytes.NewReader(append(bytes.Clone(row), next...))))
	for range 2 { // it stays where it is
		_, _, err := f.next(999)
		var big *FrameTooLargeError
		if !errors.As(err, &big) || big.LSN != 0xABC || big.Size != int64(len(row)-1) || big.Limit != 999 {
			t.Fatalf("%#v", err)
		}
		if len(f.buf) > frameBuffer {
			t.Fatal("it was read into memory")
		}
	}
	if _, err := f.discard(int64(len(row))); err != nil {
		t.Fatal(err)
	}
	readAll(t, f, [][]byte{next})

	// Shorter than the header of WAL data, and another type: no LSN, and nothing is
	// read of what follows.
	for _, b := range [][]byte{keepalive(1, 0), {'d', 0, 0, 0, 5, 'w'}, {'E', 0, 0, 0, 90}} {
		f := newFrameReader(bytes.NewReader(b))
		_, _, err := f.next(4)
		var big *FrameTooLargeError
		if !errors.As(err, &big) || big.LSN != 0 {
			t.Errorf("%q: %v", b[0], err)
		}
	}
}

func TestFrameReader_RefusesImpossibleLengths(t *testing.T) {
	for _, length := range []uint32{0, 1, 3, 0x80000000, 0xFFFFFFFF} {
		b := binary.BigEndian.AppendUint32([]byte{'d'}, length)
		b = append(b, make([]byte, 64)...)
		if _, _, err := newFrameReader(bytes.NewReader(b)).next(noLimit); err == nil || !strings.Contains(err.Error(), "impossible length") {
			t.Errorf("next, length %#x: %v", length, err)
		}
		if _, err := newFrameReader(bytes.NewReader(b)).Read(make([]byte, 10)); err == nil || !strings.Contains(err.Error(), "impossible length") {
			t.Errorf("Read, length %#x: %v", length, err)
		}
	}
	for cut := 1; cut < 20; cut++ {
		_, _, err := newFrameReader(bytes.NewReader(xlog(1, nil)[:cut])).next(noLimit)
		if err != io.ErrUnexpectedEOF {
			t.Errorf("a stream that ends within a frame: %v", err)
		}
	}
}

// TestFrameReader_GoesOnAfterADeadline fails every other read, as an interrupt
// does, and expects every byte.
func TestFrameReader_GoesOnAfterADeadline(t *testing.T) {
	frames := [][]byte{xlog(1, bytes.Repeat([]byte("ab"), 50)), keepalive(2, 0), xlog(3, bytes.Repeat([]byte("z"), 2*frameBuffer))}
	for _, size := range []int{1, 7, 5000} {
		fails := false
		f := newFrameReader(&pieces{b: bytes.Join(frames, nil), sizes: []int{size}})
		f.before = func() error {
			if fails = !fails; fails {
				return os.ErrDeadlineExceeded
			}
			return nil
		}
		for i, w := range frames {
			for {
				typ, body, err := f.next(noLimit)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					continue
				}
				if err != nil || typ != w[0] || !bytes.Equal(body, w[5:]) {
					t.Fatalf("size %d, frame %d: %q, %d bytes, %v", size, i, typ, len(body), err)
				}
				break
			}
		}
	}
}

// FuzzFrames reads any bytes in any pieces. It must not panic, must hand out
// exactly the bytes that came, and must not read on while a whole frame is there.
func FuzzFrames(f *testing.F) {
	f.Add(append(xlog(1, []byte("payload")), keepalive(2, 1)...), uint16(3), uint16(100))
	f.Add(encode(&pgproto3.ErrorResponse{Code: "57P01"}), uint16(1), uint16(8))
	f.Add([]byte{'d', 0, 0, 0, 3}, uint16(1), uint16(1000))
	f.Add([]byte{'d', 0, 0, 0, 6, 'w', 1}, uint16(1), uint16(5))
	f.Add([]byte{'d', 0x7F, 0xFF, 0xFF, 0xFF, 'w'}, uint16(2), uint16(1000))
	f.Fuzz(func(t *testing.T, b []byte, piece, limit uint16) {
		in := &pieces{b: b, sizes: []int{int(piece) + 1}}
		fr := newFrameReader(in)
		st := &Stream{}
		at := 0
		for {
			typ, body, err := fr.next(int64(limit))
			if err != nil {
				break
			}
			total := msgHeader + len(body)
			if typ != b[at] || !bytes.Equal(body, b[at+msgHeader:at+total]) {
				t.Fatalf("the frame at %d is not what came", at)
			}
			if len(body)+4 > int(limit) || cap(body) != len(body) {
				t.Fatalf("a frame of %d bytes, capacity %d, limit %d", len(body), cap(body), limit)
			}
			at += total
			_, _, _ = st.copyData(body)
			if typ == 'E' {
				_ = serverError(body)
			}
			st.notice(body)
		}
		if read := len(b) - len(in.b); read > at+frameBuffer {
			t.Fatalf("%d bytes were read for %d", read, at)
		}
	})
}
