package kafka

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/cdc-relay/cdc-relay/sink"
)

// The record batch, version 2 (KIP-98; "Record Batch" in the protocol guide of
// Apache Kafka). Offsets of its header fields, in bytes:
const (
	atBaseOffset   = 0  // int64; the broker assigns it
	atLength       = 8  // int32; bytes after this field
	atLeaderEpoch  = 12 // int32
	atMagic        = 16 // int8
	atCRC          = 17 // uint32; CRC-32C of all that follows it
	atAttributes   = 21 // int16; the low three bits are the codec
	atLastDelta    = 23 // int32; offset delta of the last record
	atBaseTime     = 27 // int64; milliseconds
	atMaxTime      = 35 // int64; milliseconds
	atProducerID   = 43 // int64
	atEpoch        = 51 // int16
	atBaseSequence = 53 // int32
	atCount        = 57 // int32
	headerSize     = 61
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encoder writes records straight into a batch. It never grows its buffer: the
// caller makes room first (recordSize), because memory is counted before it is
// taken.
type encoder struct {
	buf      []byte // header, then records; nil before reset
	count    int32
	baseTime int64 // of the first record; deltas may be negative
	maxTime  int64
}

// reset starts an empty batch in buf, whose capacity is the room there is.
func (e *encoder) reset(buf []byte) {
	*e = encoder{buf: buf[:headerSize]}
}

// move continues in a larger buffer and returns the old one.
func (e *encoder) move(buf []byte) []byte {
	old := e.buf
	buf = buf[:len(old)]
	copy(buf, old)
	e.buf = buf
	return old
}

// tailSize is the size of all of a record that does not depend on the batch it
// is in: key, value and headers, with their lengths.
func tailSize(rec *sink.Record) int {
	n := bytesSize(rec.Key) + bytesSize(rec.Value) + varintSize(int64(len(rec.Headers)))
	for i := range rec.Headers {
		h := &rec.Headers[i]
		n += varintSize(int64(len(h.Key))) + len(h.Key) + bytesSize(h.Value)
	}
	return n
}

// recordSize is the number of bytes that a record with this tail takes as the
// next one of the batch.
func (e *encoder) recordSize(timestamp int64, tail int) int {
	body := e.bodySize(timestamp, tail)
	return varintSize(int64(body)) + body
}

func (e *encoder) bodySize(timestamp int64, tail int) int {
	return 1 + varintSize(e.timeDelta(timestamp)) + varintSize(int64(e.count)) + tail
}

func (e *encoder) timeDelta(timestamp int64) int64 {
	if e.count == 0 {
		return 0
	}
	return timestamp - e.baseTime
}

// append writes rec. There must be room for recordSize(rec.Timestamp, tail)
// bytes, where tail is tailSize(rec).
func (e *encoder) append(rec *sink.Record, tail int) {
	b := e.begin(rec.Timestamp, tail)
	b = appendBytes(b, rec.Key)
	b = appendBytes(b, rec.Value)
	b = binary.AppendVarint(b, int64(len(rec.Headers)))
	for i := range rec.Headers {
		h := &rec.Headers[i]
		b = binary.AppendVarint(b, int64(len(h.Key)))
		b = append(b, h.Key...)
		b = appendBytes(b, h.Value)
	}
	e.buf = b
}

// appendTail writes a record that another batch held; tail is its encoded key,
// value and headers.
func (e *encoder) appendTail(timestamp int64, tail []byte) {
	e.buf = append(e.begin(timestamp, len(tail)), tail...)
}

// begin writes what comes before the tail, and counts the record.
func (e *encoder) begin(timestamp int64, tail int) []byte {
	body := e.bodySize(timestamp, tail)
	delta := e.timeDelta(timestamp)
	if e.count == 0 {
		e.baseTime, e.maxTime = timestamp, timestamp
	}
	e.maxTime = max(e.maxTime, timestamp)
	b := binary.AppendVarint(e.buf, int64(body))
	b = append(b, 0) // attributes of a record: none are defined
	b = binary.AppendVarint(b, delta)
	b = binary.AppendVarint(b, int64(e.count))
	e.count++
	return b
}

// seal fills in the header of an uncompressed batch. It may be called again,
// with another producer.
func (e *encoder) seal(p producer) {
	e.header(e.buf, 0, p)
}

// header fills in the header of b, which holds the records in the codec's form.
func (e *encoder) header(b []byte, codec int16, p producer) {
	be := binary.BigEndian
	be.PutUint64(b[atBaseOffset:], 0)
	be.PutUint32(b[atLength:], uint32(len(b)-atLeaderEpoch))
	be.PutUint32(b[atLeaderEpoch:], ^uint32(0))
	b[atMagic] = 2
	be.PutUint16(b[atAttributes:], uint16(codec))
	be.PutUint32(b[atLastDelta:], uint32(e.count-1))
	be.PutUint64(b[atBaseTime:], uint64(e.baseTime))
	be.PutUint64(b[atMaxTime:], uint64(e.maxTime))
	be.PutUint32(b[atCount:], uint32(e.count))
	stamp(b, p)
}

// stamp writes who sends the sealed batch b into its header, and its checksum.
func stamp(b []byte, p producer) {
	be := binary.BigEndian
	be.PutUint64(b[atProducerID:], uint64(p.id))
	be.PutUint16(b[atEpoch:], uint16(p.epoch))
	be.PutUint32(b[atBaseSequence:], uint32(p.sequence))
	be.PutUint32(b[atCRC:], crc32.Checksum(b[atAttributes:], castagnoli))
}

// appendBytes writes a nullable byte string: length -1 is null.
func appendBytes(b, v []byte) []byte {
	if v == nil {
		return append(b, 1) // zigzag of -1
	}
	b = binary.AppendVarint(b, int64(len(v)))
	return append(b, v...)
}

func bytesSize(v []byte) int {
	if v == nil {
		return 1
	}
	return varintSize(int64(len(v))) + len(v)
}

// varintSize is the length of v as a zigzag varint.
func varintSize(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	return (bits.Len64(u|1) + 6) / 7
}
