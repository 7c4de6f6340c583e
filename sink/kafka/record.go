package kafka

import (
	"encoding/binary"
	"errors"

	"github.com/cdc-relay/cdc-relay/sink"
)

var errBrokenBatch = errors.New("a record batch of our own cannot be read back: a bug")

// rawRecord is a record inside a batch. It points into the batch's buffer.
type rawRecord struct {
	timestamp int64
	tail      []byte // key, value and headers, encoded
}

// next cuts the first record off b, the records of an uncompressed batch.
func (e *encoder) next(b []byte) (r rawRecord, rest []byte, err error) {
	body, n := binary.Varint(b)
	if n <= 0 || body < 1 || body > int64(len(b)-n) {
		return r, nil, errBrokenBatch
	}
	rest = b[n+int(body):]
	b = b[n+1 : n+int(body)]
	delta, n := binary.Varint(b)
	if n <= 0 {
		return r, nil, errBrokenBatch
	}
	b = b[n:]
	if _, n = binary.Varint(b); n <= 0 {
		return r, nil, errBrokenBatch
	}
	return rawRecord{timestamp: e.baseTime + delta, tail: b[n:]}, rest, nil
}

// records returns the encoded records.
func (e *encoder) records() []byte { return e.buf[headerSize:] }

// key returns the record's key, nil when it is null.
func (r rawRecord) key() ([]byte, error) {
	k, _, err := cutBytes(r.tail)
	return k, err
}

// decode fills in key, value, headers and timestamp of rec, which then points
// into the batch.
func (r rawRecord) decode(rec *sink.Record) (err error) {
	b := r.tail
	rec.Timestamp = r.timestamp
	if rec.Key, b, err = cutBytes(b); err != nil {
		return err
	}
	if rec.Value, b, err = cutBytes(b); err != nil {
		return err
	}
	count, n := binary.Varint(b)
	if n <= 0 || count < 0 || count > int64(len(b)) {
		return errBrokenBatch
	}
	b = b[n:]
	rec.Headers = make([]sink.Header, count)
	for i := range rec.Headers {
		var key []byte
		if key, b, err = cutBytes(b); err != nil {
			return err
		}
		rec.Headers[i].Key = string(key)
		if rec.Headers[i].Value, b, err = cutBytes(b); err != nil {
			return err
		}
	}
	if len(b) != 0 {
		return errBrokenBatch
	}
	return nil
}

// cutBytes cuts a nullable byte string off b.
func cutBytes(b []byte) (v, rest []byte, err error) {
	l, n := binary.Varint(b)
	if n <= 0 || l < -1 || l > int64(len(b)-n) {
		return nil, nil, errBrokenBatch
	}
	if l < 0 {
		return nil, b[n:], nil
	}
	end := n + int(l)
	return b[n:end:end], b[end:], nil
}
