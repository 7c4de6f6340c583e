package decoder_test

import (
	"encoding/binary"
	"time"
)

// The encoder below is written from the protocol's description, not from the
// decoder, and shares no code with it.

var be = binary.BigEndian

func pgTime(t time.Time) uint64 {
	return uint64(t.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds())
}

func encBegin(lsn uint64, at time.Time, xid uint32) []byte {
	b := be.AppendUint64([]byte{'B'}, lsn)
	b = be.AppendUint64(b, pgTime(at))
	return be.AppendUint32(b, xid)
}

func encCommit(lsn, end uint64, at time.Time) []byte {
	b := be.AppendUint64([]byte{'C', 0}, lsn)
	b = be.AppendUint64(b, end)
	return be.AppendUint64(b, pgTime(at))
}

type encColumn struct {
	name string
	oid  uint32
	mod  int32
	key  bool
}

func encRelation(oid uint32, schema, name string, columns ...encColumn) []byte {
	b := be.AppendUint32([]byte{'R'}, oid)
	b = append(b, schema...)
	b = append(b, 0)
	b = append(b, name...)
	b = append(b, 0, 'd')
	b = be.AppendUint16(b, uint16(len(columns)))
	for _, c := range columns {
		if c.key {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
		b = append(b, c.name...)
		b = append(b, 0)
		b = be.AppendUint32(b, c.oid)
		b = be.AppendUint32(b, uint32(c.mod))
	}
	return b
}

// encInsert takes a string for a text, []byte for a binary value, nil for NULL
// and 'u' for an unchanged TOAST value.
func encInsert(oid uint32, values ...any) []byte {
	b := be.AppendUint32([]byte{'I'}, oid)
	b = append(b, 'N')
	b = be.AppendUint16(b, uint16(len(values)))
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			b = append(b, 'n')
		case rune:
			b = append(b, byte(v))
		case string:
			b = be.AppendUint32(append(b, 't'), uint32(len(v)))
			b = append(b, v...)
		case []byte:
			b = be.AppendUint32(append(b, 'b'), uint32(len(v)))
			b = append(b, v...)
		}
	}
	return b
}

func encMessage(transactional bool, lsn uint64, prefix, content string) []byte {
	b := []byte{'M', 0}
	if transactional {
		b[1] = 1
	}
	b = be.AppendUint64(b, lsn)
	b = append(b, prefix...)
	b = append(b, 0)
	b = be.AppendUint32(b, uint32(len(content)))
	return append(b, content...)
}

func encType(oid uint32, schema, name string) []byte {
	b := be.AppendUint32([]byte{'Y'}, oid)
	b = append(b, schema...)
	b = append(b, 0)
	b = append(b, name...)
	return append(b, 0)
}
