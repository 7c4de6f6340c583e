package kafka

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/sink"
)

// run is a stretch of consecutive records of a batch that belong to one
// transaction: one entry, one call of Done.
type run struct {
	to  sink.Acker
	tx  uint64
	lsn pglogrepl.LSN
	n   int32
}

const (
	runSize = int(unsafe.Sizeof(run{}))
	// batchOverhead is what a batch takes beside its slices.
	batchOverhead = int64(unsafe.Sizeof(batch{}))
)

// batch is a record batch on its way, with what the relay must hear about its
// records. Beside the encoded records it keeps, per record, a few bytes of
// notes by which a record can be named to a person. It is owned by the sink's
// mutex, except while its lane is in flight: then its sender owns it.
type batch struct {
	enc    encoder
	notes  []byte // per record: see note
	runs   []run
	packed []byte // compressed form; nil when it is sent plain
	// sealed: header and checksum are written, in the name of who, and the bytes
	// change only when the lane takes another identity.
	sealed bool
	who    producer
	// unsure: a request with this batch, in the name of who, ended without proof
	// that the broker has not written it, and will not.
	unsure bool

	counted int64 // bytes counted against the budget
	// dropped is set by Abort while the batch is in flight: if it fails it is
	// forgotten, not sent again.
	dropped bool
}

// records is the number of records in b.
func (b *batch) records() int { return int(b.enc.count) }

// wire returns the bytes to send.
func (b *batch) wire() []byte {
	if b.packed != nil {
		return b.packed
	}
	return b.enc.buf
}

// size is the length of the batch before compression.
func (b *batch) size() int { return len(b.enc.buf) }

// cost is what b's slices take, by capacity; factor is 2 when room for a
// compressed copy must be kept.
func (b *batch) cost(factor int64) int64 {
	return batchOverhead + factor*int64(cap(b.enc.buf)) + int64(cap(b.notes)) + int64(cap(b.runs)*runSize)
}

// note is what is kept of a record beside its bytes: its ordinal, where its id
// is, and its partition when that was given.
type note struct {
	seq       uint32
	header    int    // index of the header that holds the id; -1: id holds it
	id        []byte // points into the batch's notes
	partition int32  // PartitionByKey, or the one that was given
}

// The first byte of an encoded note: a flag, and the index of the header that
// holds the id plus one, or zero when the id follows.
const (
	noteGiven     = 0x80
	noteMaxHeader = 0x7e
)

// noteOf makes the note of rec. Its id is not copied.
func noteOf(rec *sink.Record) note {
	n := note{seq: rec.Seq, header: -1, id: rec.ID, partition: rec.Partition}
	for i := range rec.Headers {
		if i == noteMaxHeader {
			break
		}
		if v := rec.Headers[i].Value; len(v) == len(rec.ID) && bytes.Equal(v, rec.ID) {
			n.header, n.id = i, nil
			break
		}
	}
	return n
}

// noteSize bounds the encoded size of n.
func (n *note) size() int { return 1 + 2*binary.MaxVarintLen32 + binary.MaxVarintLen32 + len(n.id) }

func (n *note) append(b []byte) []byte {
	first := byte(n.header + 1)
	if n.partition != sink.PartitionByKey {
		first |= noteGiven
	}
	b = append(b, first)
	b = binary.AppendUvarint(b, uint64(n.seq))
	if n.partition != sink.PartitionByKey {
		b = binary.AppendVarint(b, int64(n.partition))
	}
	if n.header < 0 {
		b = binary.AppendUvarint(b, uint64(len(n.id)))
		b = append(b, n.id...)
	}
	return b
}

// cutNote cuts the first note off b.
func cutNote(b []byte) (n note, rest []byte, err error) {
	if len(b) == 0 {
		return n, nil, errBrokenBatch
	}
	first := b[0]
	n.header = int(first&^noteGiven) - 1
	n.partition = sink.PartitionByKey
	seq, l := binary.Uvarint(b[1:])
	if l <= 0 {
		return n, nil, errBrokenBatch
	}
	n.seq, b = uint32(seq), b[1+l:]
	if first&noteGiven != 0 {
		p, l := binary.Varint(b)
		if l <= 0 {
			return n, nil, errBrokenBatch
		}
		n.partition, b = int32(p), b[l:]
	}
	if n.header >= 0 {
		return n, b, nil
	}
	size, l := binary.Uvarint(b)
	if l <= 0 || size > uint64(len(b)-l) {
		return n, nil, errBrokenBatch
	}
	n.id = b[l : l+int(size)]
	return n, b[l+int(size):], nil
}

// addRun counts one record for the transaction.
func (b *batch) addRun(r run) {
	if k := len(b.runs) - 1; k >= 0 && b.runs[k].same(r) {
		b.runs[k].n++
		return
	}
	r.n = 1
	b.runs = append(b.runs, r)
}

func (r *run) same(o run) bool { return r.tx == o.tx && r.to == o.to && r.lsn == o.lsn }

// entry is one record of a batch, with its note and the transaction it is of.
type entry struct {
	raw  rawRecord
	note note
	run  run // n is 1
}

// cursor walks the entries of an uncompressed batch, in order.
type cursor struct {
	b       *batch
	records []byte
	notes   []byte
	run     int
	used    int32 // records of the run that have been passed
}

func (b *batch) entries() cursor {
	return cursor{b: b, records: b.enc.records(), notes: b.notes}
}

// next returns the next entry; ok is false after the last.
func (c *cursor) next() (e entry, ok bool, err error) {
	if len(c.records) == 0 {
		return e, false, nil
	}
	if e.raw, c.records, err = c.b.enc.next(c.records); err != nil {
		return e, false, err
	}
	if e.note, c.notes, err = cutNote(c.notes); err != nil {
		return e, false, err
	}
	if c.run >= len(c.b.runs) {
		return e, false, errBrokenBatch
	}
	e.run = c.b.runs[c.run]
	e.run.n = 1
	if c.used++; c.used == c.b.runs[c.run].n {
		c.run, c.used = c.run+1, 0
	}
	return e, true, nil
}

// record fills in rec, which points into the batch.
func (e *entry) record(topic string, rec *sink.Record) error {
	if err := e.raw.decode(rec); err != nil {
		return err
	}
	rec.Topic, rec.Partition = topic, e.note.partition
	rec.LSN, rec.Seq, rec.ID = e.run.lsn, e.note.seq, e.note.id
	if e.note.header >= 0 {
		if e.note.header >= len(rec.Headers) {
			return errBrokenBatch
		}
		rec.ID = rec.Headers[e.note.header].Value
	}
	return nil
}
