package decoder

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// reader takes fields off a message. After the first failure every read
// returns zero and err stays, so a caller checks once per group of fields.
// Invariant: 0 <= off <= len(buf).
type reader struct {
	buf []byte
	off int
	err error
}

// fail returns an *Error for the current place.
func (r *reader) fail(reason string) error {
	return &Error{Kind: r.buf[0], Offset: r.off, Reason: reason}
}

func (r *reader) left() int { return len(r.buf) - r.off }

// short records that n more bytes were needed and are not there.
func (r *reader) short(n uint32) {
	if r.err == nil {
		r.err = r.fail(fmt.Sprintf("the message ends %d bytes short of a field of %d bytes", int64(n)-int64(r.left()), n))
	}
}

// ok reports whether n more bytes can be read.
func (r *reader) ok(n int) bool {
	if r.err == nil && r.left() >= n {
		return true
	}
	r.short(uint32(n))
	return false
}

// end returns the failure so far, or one for bytes that are left over.
func (r *reader) end() error {
	if r.err == nil && r.left() != 0 {
		r.err = r.fail(fmt.Sprintf("%d bytes are left over at the end of the message", r.left()))
	}
	return r.err
}

func (r *reader) byte() byte {
	if !r.ok(1) {
		return 0
	}
	b := r.buf[r.off]
	r.off++
	return b
}

func (r *reader) uint16() uint16 {
	if !r.ok(2) {
		return 0
	}
	v := binary.BigEndian.Uint16(r.buf[r.off:])
	r.off += 2
	return v
}

func (r *reader) uint32() uint32 {
	if !r.ok(4) {
		return 0
	}
	v := binary.BigEndian.Uint32(r.buf[r.off:])
	r.off += 4
	return v
}

func (r *reader) uint64() uint64 {
	if !r.ok(8) {
		return 0
	}
	v := binary.BigEndian.Uint64(r.buf[r.off:])
	r.off += 8
	return v
}

// time reads PostgreSQL's microseconds and returns microseconds since the Unix
// epoch.
func (r *reader) time() int64 {
	t := int64(r.uint64())
	if t > maxTime && r.err == nil {
		r.off -= 8
		r.err = r.fail("the commit time is out of range")
	}
	if r.err != nil {
		return 0
	}
	return t + pgEpoch
}

// bytes returns the next n bytes; not nil when n is 0. The capacity is cut, so
// that appending cannot write into the frame.
func (r *reader) bytes(n uint32) []byte {
	if r.err != nil || int64(r.left()) < int64(n) {
		r.short(n)
		return nil
	}
	end := r.off + int(n)
	b := r.buf[r.off:end:end]
	r.off = end
	return b
}

// cstring returns the bytes before the next zero byte and skips that.
func (r *reader) cstring() []byte {
	if r.err != nil {
		return nil
	}
	n := bytes.IndexByte(r.buf[r.off:], 0)
	if n < 0 {
		r.err = r.fail("a name has no end")
		return nil
	}
	end := r.off + n
	b := r.buf[r.off:end:end]
	r.off = end + 1
	return b
}

// value reads one value of a row.
func (r *reader) value() Value {
	switch kind := ValueKind(r.byte()); kind {
	case Null, Unchanged:
		return Value{Kind: kind}
	case Text, Binary:
		return Value{Kind: kind, Data: r.bytes(r.uint32())}
	default:
		if r.err == nil {
			r.off--
			r.err = r.fail(fmt.Sprintf("unknown kind 0x%02x of a value", byte(kind)))
		}
		return Value{}
	}
}
