package undecodable

import (
	"encoding/binary"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/replication"
)

// Frames as in "Logical Replication Message Formats" of the PostgreSQL manual.

func begin(at lsn) replication.Message {
	b := binary.BigEndian.AppendUint64([]byte{'B'}, uint64(at))
	b = binary.BigEndian.AppendUint64(b, 0)
	return replication.Message{Data: binary.BigEndian.AppendUint32(b, 7)}
}

func commit(at, end lsn) replication.Message {
	b := binary.BigEndian.AppendUint64([]byte{'C', 0}, uint64(at))
	b = binary.BigEndian.AppendUint64(b, uint64(end))
	return replication.Message{Data: binary.BigEndian.AppendUint64(b, 0)}
}

func relation() replication.Message {
	b := binary.BigEndian.AppendUint32([]byte{'R'}, 1)
	b = append(b, "public\x00outbox\x00d\x00\x01\x00id\x00\x00\x00\x00\x19\xff\xff\xff\xff"...)
	return replication.Message{Data: b}
}

func row() replication.Message {
	b := binary.BigEndian.AppendUint32([]byte{'I'}, 1)
	return replication.Message{Data: append(b, "N\x00\x01t\x00\x00\x00\x01x"...)}
}

func keepalive(at lsn) replication.Message { return replication.Message{WALEnd: at} }

// reads plays messages, and nil for the server's notice, until the reading is done.
func reads(t *testing.T, s Search, all ...any) (*reading, bool) {
	t.Helper()
	r := &reading{search: s, end: s.From}
	dec := decoder.New()
	for _, m := range all {
		if m == nil {
			r.notice(&pgconn.Notice{Code: "55000", SeverityUnlocalized: "WARNING"})
			continue
		}
		done, err := r.take(dec, m.(replication.Message))
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return r, true
		}
	}
	return r, false
}

func TestReading_CountsWhatIsNotPublishedBefore(t *testing.T) {
	s := Search{From: 0x100, Until: 0x900, Published: 0x250}
	r, done := reads(t, s, begin(0x200), relation(), row(), commit(0x200, 0x240), // published
		begin(0x300), commit(0x300, 0x340), // empty
		begin(0x400), row(), commit(0x400, 0x440), begin(0x500), row(), row(), commit(0x500, 0x540), keepalive(0x600))
	if done || r.unpublished != 2 || r.firstUnpublished != 0x400 || r.end != 0x600 {
		t.Errorf("%+v", r)
	}
	if _, done := reads(t, s, begin(0x800), relation(), keepalive(0x900)); done {
		t.Error("a keepalive within a transaction ends it")
	}
	if _, done := reads(t, s, keepalive(0x900)); !done {
		t.Error("the end of what is to be read does not end it")
	}
}

// PostgreSQL 18 drops rows in silence until the publication is there. A transaction
// that was in hand then may have lost some: only what begins behind it is whole.
func TestReading_GoesPastTheTransactionInHandAtTheLastNotice(t *testing.T) {
	s := Search{From: 0x100, Until: 0x900, Published: 0x100}
	for name, c := range map[string]struct {
		messages   []any
		from, past lsn
		done       bool
	}{
		"before it":       {[]any{keepalive(0x180), nil, begin(0x300), relation(), row(), commit(0x300, 0x340), begin(0x400)}, 0x180, 0x301, true},
		"within":          {[]any{begin(0x300), relation(), row(), nil, commit(0x300, 0x340), begin(0x400), row(), commit(0x400, 0x440)}, 0x100, 0x401, true},
		"twice":           {[]any{nil, begin(0x300), relation(), row(), nil, commit(0x300, 0x340), begin(0x400), row(), commit(0x400, 0x440)}, 0x100, 0x401, true},
		"empty ones":      {[]any{nil, begin(0x300), commit(0x300, 0x340), begin(0x400), relation(), row(), commit(0x400, 0x440)}, 0x100, 0x401, true},
		"nothing behind":  {[]any{nil, keepalive(0x500), keepalive(0x910)}, 0x100, 0x910, true},
		"not yet the end": {[]any{nil, keepalive(0x500)}, 0x100, 0, false},
	} {
		r, done := reads(t, s, c.messages...)
		if !r.noticed || done != c.done || r.endBeforeNotice != c.from || done && r.pastNotice != c.past {
			t.Errorf("%s: done %t, from %s past %s, want %s %s", name, done, r.endBeforeNotice, r.pastNotice, c.from, c.past)
		}
	}
}
