package verify

import (
	"encoding/binary"
	"errors"
)

// origin is where an entry was found.
type origin byte

const (
	fromTable   origin = iota // a row of the snapshot
	fromWAL                   // an event of the history
	fromLater                 // a row that may have been committed after the snapshot
	fromTopic                 // a record that is extra when nothing belongs to it
	fromOutside               // a record from outside of what is compared, which never is
)

// unknownTime is the time of a row or record that has none.
const unknownTime int64 = -1

// entry is one row, event or record. Its key, the topic and the id, is what they
// are compared by.
type entry struct {
	origin    origin
	time      int64  // record time, milliseconds since the Unix epoch; unknownTime
	table     int    // of a row: index into the tables
	lsn       uint64 // of an event: its transaction's commit
	partition int32  // of a record
	offset    int64
}

func (e entry) isRecord() bool { return e.origin >= fromTopic }

// appendKey makes the key of an id in a topic. No two of them are alike: the
// number ends by itself.
func appendKey(dst []byte, topic int, id []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(topic))
	return append(dst, id...)
}

var errEntry = errors.New("an entry came back from the temporary file in another form; report this as a bug")

func cutKey(key []byte) (topic int, id []byte, err error) {
	t, n := binary.Uvarint(key)
	if n <= 0 {
		return 0, nil, errEntry
	}
	return int(t), key[n:], nil
}

func (e entry) append(dst []byte) []byte {
	dst = append(dst, byte(e.origin))
	dst = binary.AppendVarint(dst, e.time)
	switch {
	case e.origin == fromWAL:
		return binary.AppendUvarint(dst, e.lsn)
	case !e.isRecord():
		return binary.AppendUvarint(dst, uint64(e.table))
	}
	dst = binary.AppendUvarint(dst, uint64(uint32(e.partition)))
	return binary.AppendUvarint(dst, uint64(e.offset))
}

func parseEntry(b []byte) (e entry, err error) {
	if len(b) == 0 || b[0] > byte(fromOutside) {
		return entry{}, errEntry
	}
	e.origin, b = origin(b[0]), b[1:]
	t, n := binary.Varint(b)
	if n <= 0 {
		return entry{}, errEntry
	}
	e.time, b = t, b[n:]
	first, n := binary.Uvarint(b)
	if n <= 0 {
		return entry{}, errEntry
	}
	switch {
	case e.origin == fromWAL:
		e.lsn = first
		return e, nil
	case !e.isRecord():
		e.table = int(first)
		return e, nil
	}
	offset, n := binary.Uvarint(b[n:])
	if n <= 0 {
		return entry{}, errEntry
	}
	e.partition, e.offset = int32(uint32(first)), int64(offset)
	return e, nil
}
