package verify

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/jackc/pglogrepl"
)

// Kind is what was found of an id.
type Kind string

const (
	// Missing: a row without a record.
	Missing Kind = "missing"
	// Unroutable: a row that can never be published as it is.
	Unroutable Kind = "unroutable"
	// Expired: a row without a record, which retention may have removed.
	Expired Kind = "expired"
	// Compacted: a row without a record, which compaction may have removed.
	Compacted Kind = "compacted"
	// Duplicate: more records than rows.
	Duplicate Kind = "duplicate"
	// Extra: records without a row.
	Extra Kind = "extra"
	// Gone: a row that was missing, and is not there any more to be published.
	Gone Kind = "gone"
)

// kinds in the order in which they are told.
var kinds = []Kind{Missing, Unroutable, Gone, Expired, Compacted, Duplicate, Extra}

// maxPlaces bounds how many records of one id are named.
const maxPlaces = 3

// Place is where a record is.
type Place struct {
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
}

// Finding is an id of which rows and records do not agree.
type Finding struct {
	Kind    Kind
	Topic   string
	Table   string // schema.name; "" when no row is known
	LSN     string // of an event of the history: its transaction's commit
	ID      []byte
	Rows    int64 // in the table, or events in the history
	Records int64 // in the topic
	Time    time.Time
	Places  []Place // of a few of the records
	Reason  string
}

// IDText is the id for a person: as it is, or as PostgreSQL prints bytea when it
// is no text.
func (f Finding) IDText() string {
	if utf8.Valid(f.ID) {
		return string(f.ID)
	}
	return `\x` + hex.EncodeToString(f.ID)
}

// MarshalJSON implements json.Marshaler.
func (f Finding) MarshalJSON() ([]byte, error) {
	v := struct {
		Kind    Kind       `json:"kind"`
		Topic   string     `json:"topic,omitempty"`
		Table   string     `json:"table,omitempty"`
		LSN     string     `json:"lsn,omitempty"`
		ID      string     `json:"id"`
		Hex     bool       `json:"id_is_hex,omitempty"`
		Rows    int64      `json:"rows"`
		Records int64      `json:"records"`
		Time    *time.Time `json:"time,omitempty"`
		Places  []Place    `json:"places,omitempty"`
		Reason  string     `json:"reason,omitempty"`
	}{f.Kind, f.Topic, f.Table, f.LSN, f.IDText(), !utf8.Valid(f.ID), f.Rows, f.Records, nil, f.Places, f.Reason}
	if !f.Time.IsZero() {
		v.Time = &f.Time
	}
	return json.Marshal(v)
}

// Counts is the outcome in numbers. Expected is Seen + Missing + Expired +
// Compacted.
type Counts struct {
	Expected   int64 `json:"expected"` // rows, or events, that have a record to have
	Seen       int64 `json:"seen"`     // of them, with a record
	Missing    int64 `json:"missing"`
	Unroutable int64 `json:"unroutable"`
	Expired    int64 `json:"expired"`
	Compacted  int64 `json:"compacted"`
	Duplicate  int64 `json:"duplicate"` // records beyond the first of each row
	Extra      int64 `json:"extra"`     // records without a row
	Newer      int64 `json:"newer"`     // records of rows that were committed after the snapshot; not judged
	WithoutID  int64 `json:"without_id"`
	Records    int64 `json:"records"` // that were read
}

// iterator gives entries by key.
type iterator interface {
	Next() bool
	Key() []byte
	Value() []byte
	Err() error
}

// comparer holds rows against records.
type comparer struct {
	topics []*Topic
	tables []string
	now    time.Time
	counts *Counts
	found  func(Finding) error
	// lost hears of each id that is missing, with the table and the time of its row;
	// nil when nobody asks.
	lost func(topic, table int, at int64, id []byte) error
}

// group is all that was found of one id in one topic.
type group struct {
	rows, later, records int64
	inRange              int64 // of records
	table                int
	lsn                  uint64 // of the last event
	time                 int64  // the latest of the rows, as far as known
	places               []Place
}

func (g *group) add(e entry) {
	switch e.origin {
	case fromTable, fromWAL:
		g.rows++
		g.table, g.lsn = e.table, max(g.lsn, e.lsn)
		g.time = max(g.time, e.time)
	case fromLater:
		g.later++
	case fromTopic, fromOutside:
		g.records++
		if e.origin == fromTopic {
			g.inRange++
		}
		if len(g.places) < maxPlaces {
			g.places = append(g.places, Place{e.partition, e.offset})
		}
	}
}

// checkEvery entries the comparison looks whether it is to stop.
const checkEvery = 1 << 14

// compare reads every entry and tells each finding.
func (c *comparer) compare(ctx context.Context, it iterator, progress func(n int64)) error {
	var key []byte
	g := group{time: unknownTime}
	n := 0
	for ; it.Next(); n++ {
		if n%checkEvery == 0 {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			progress(min(int64(n), checkEvery)) // of the stretch before this one
		}
		if n > 0 && !bytes.Equal(key, it.Key()) {
			if err := c.judge(key, g); err != nil {
				return err
			}
			g = group{time: unknownTime, places: g.places[:0]}
		}
		key = append(key[:0], it.Key()...)
		e, err := parseEntry(it.Value())
		if err != nil {
			return err
		}
		g.add(e)
	}
	if err := it.Err(); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	progress(int64((n-1)%checkEvery) + 1)
	return c.judge(key, g)
}

// judge counts a group and tells what is wrong with it.
func (c *comparer) judge(key []byte, g group) error {
	t, id, err := cutKey(key)
	if err != nil || t >= len(c.topics) {
		return errEntry
	}
	n := c.counts
	n.Expected += g.rows
	n.Seen += min(g.rows, g.records)
	f := Finding{Topic: c.topics[t].Name, ID: id, Rows: g.rows, Records: g.records, Places: g.places}
	switch {
	case g.lsn > 0:
		f.LSN = pglogrepl.LSN(g.lsn).String()
	case g.rows > 0:
		f.Table = c.tables[g.table]
	}
	if g.time != unknownTime {
		f.Time = time.UnixMilli(g.time).UTC()
	}
	switch short, surplus := g.rows-g.records, g.records-max(g.rows, g.later); {
	case short > 0:
		f.Kind, f.Reason = c.topics[t].absent(g.time, c.now)
		switch f.Kind {
		case Expired:
			n.Expired += short
		case Compacted:
			n.Compacted += short
		default:
			n.Missing += short
			if c.lost != nil {
				if err := c.lost(t, g.table, g.time, id); err != nil {
					return err
				}
			}
		}
	case g.rows == 0 && g.later > 0:
		n.Newer += g.records
		return nil
	case g.rows == 0 && g.inRange > 0:
		f.Kind = Extra
		n.Extra += g.inRange
	case g.rows > 0 && surplus > 0:
		f.Kind = Duplicate
		n.Duplicate += surplus
	default:
		return nil
	}
	return c.found(f)
}
