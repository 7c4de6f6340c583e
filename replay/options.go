// Package replay publishes again what was published before: the transactions whose
// commit lies in a range of the WAL, in commit order, from a temporary copy of the
// history slot. It runs beside the relay and shares nothing with it but the
// server: it moves no slot and no mark.
package replay

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// HeaderName is the header of a record that was replayed. Its value is where the
// replay began: the LSN in the form of the header lsn.
const HeaderName = "replayed-from"

// Options of a Replay; sizes in bytes.
type Options struct {
	// Connect returns the settings of an ordinary connection to the database.
	Connect         func() (*pgx.ConnConfig, error)
	ApplicationName string
	Slot            string // of the relay: what it has not published yet is not replayed
	History         string // the history slot
	Publication     string
	Tables          []route.Table
	Messages        *route.Messages // logical messages that are published too; nil for none

	// From is where the range begins, To where it ends: the first that is not
	// replayed. A zero From is where the history begins, a zero To what the relay has
	// published when the replay begins.
	From, To Bound
	// KnownSince: all that was committed since then is retained, as the relay says
	// that keeps the history; zero when no relay was asked.
	KnownSince time.Time
	// Topic replaces the topics of all tables and of messages, by a template; "" publishes to the
	// original topics.
	Topic  string
	Filter Filter
	// Wanted chooses among the events that pass Filter; nil takes all.
	Wanted func(*sink.Record) (bool, error)
	// Poison hears of an event that cannot be routed, which is then left out; nil ends
	// the replay there.
	Poison func(id []byte, err error) error
	// Read is called by a dry run for each event; nil for none. The record is valid
	// until it returns.
	Read func(*sink.Record) error
	// Rate is how many events are published per second at most; 0 for no limit.
	Rate float64
	// DryRun reads and counts, and publishes nothing.
	DryRun bool

	// OpenSink opens where it is published to; not used by a dry run.
	OpenSink func(ctx context.Context, refused sink.Refused) (sink.Sink, error)

	StatusInterval time.Duration
	SilenceTimeout time.Duration
	// DrainTimeout bounds the wait for what is in flight when a replay is given up.
	DrainTimeout  time.Duration
	MaxRowBytes   int64
	CoalesceReads bool
	RuntimeParams map[string]string // see replication.Config
}

// Bound is an end of the range: a position in the WAL, or a time, which stands for
// the first transaction in WAL order that was committed at it or later.
type Bound struct {
	LSN  pglogrepl.LSN
	Time time.Time
}

// timeForms are the ways to write a time; each has a zone.
var timeForms = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999 Z07:00",
	"2006-01-02T15:04Z07:00", "2006-01-02 15:04Z07:00"}

// ParseBound reads an LSN such as 0/16B3748 or a time such as
// 2026-03-01T14:00:00Z.
func ParseBound(s string) (Bound, error) {
	if strings.Contains(s, "/") {
		lsn, err := catalog.ParseLSN(s)
		if err != nil || lsn == 0 {
			return Bound{}, fmt.Errorf("%q is no position in the WAL, such as 0/16B3748", s)
		}
		return Bound{LSN: lsn}, nil
	}
	for _, form := range timeForms {
		if t, err := time.Parse(form, s); err == nil {
			return Bound{Time: t}, nil
		}
	}
	return Bound{}, fmt.Errorf("%q is neither a position in the WAL, such as 0/16B3748, nor a time with its zone, such as 2026-03-01T14:00:00Z", s)
}

// IsZero tells that no bound was given.
func (b Bound) IsZero() bool { return b.LSN == 0 && b.Time.IsZero() }

// String is what ParseBound reads.
func (b Bound) String() string {
	if b.LSN != 0 {
		return b.LSN.String()
	}
	return b.Time.UTC().Format(time.RFC3339Nano)
}

// Event names an event to a person.
type Event struct {
	LSN   pglogrepl.LSN // of its transaction's commit
	Time  time.Time     // of the commit
	Seq   uint32
	Topic string
	ID    string
}

// Report is what came of a replay.
type Report struct {
	From, To     pglogrepl.LSN // From is zero when nothing in the range was found
	Transactions uint64        // read in the range
	Events       uint64        // that the filter let pass: published, or counted by a dry run
	Acked        uint64        // of those
	Filtered     uint64        // that it did not
	First, Last  Event         // of Events; zero without one
	// Next is where to go on: all before it is acked.
	Next Bound
	Took time.Duration
}
