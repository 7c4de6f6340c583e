package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/sink"
)

// History is a range of the WAL of which every event is published. A range that is
// not retained as a whole is refused.
type History interface {
	// Read calls each for every event of the range, in the order of the WAL, and poison
	// for one that cannot be routed. What they are given is valid until they return.
	Read(ctx context.Context, each func(*sink.Record) error, poison func(id []byte, err error) error) (Range, error)
	// Publish publishes the wanted events of the range again, and returns when they
	// are acknowledged. What cannot be routed is passed over.
	Publish(ctx context.Context, r Range, wanted func(*sink.Record) (bool, error)) error
	// Command is what publishes the range again by hand.
	Command(Range) string
}

// Range of the WAL: the transactions whose commit lies at From or later, and before
// To. Both are zero when nothing lies in it.
type Range struct{ From, To pglogrepl.LSN }

// MarshalJSON writes the positions as PostgreSQL does.
func (r Range) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"from": "%s", "to": "%s"}`, r.From, r.To), nil
}

// has tells whether a record carries a position of the range.
func (r Range) has(rec record) bool { return rec.lsn >= r.From && rec.lsn < r.To }

// runHistory compares the events of the history. All of them are acknowledged, so
// that the topics can be read at once.
func (v *Verifier) runHistory(ctx context.Context) (err error) {
	v.namedTopics()
	if v.span, err = v.readHistory(ctx); err != nil {
		return err
	}
	v.report.History = &v.span
	err = v.session(ctx, func() error {
		server, err := v.db.Server(ctx)
		if err == nil {
			v.noteGaps(ctx, server.SystemID)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := v.readTopics(ctx, v.span.has); err != nil {
		return err
	}
	for _, t := range v.o.Tables {
		if !t.Position {
			v.report.note("records of table %s carry no header lsn, so that none of them is told to be extra", t)
		}
	}
	return v.compare(ctx)
}

func (v *Verifier) readHistory(ctx context.Context) (Range, error) {
	stage, n := v.o.Progress.Stage("reading the history", -1, "events"), int64(0)
	defer stage.End()
	span, err := v.o.History.Read(ctx, func(rec *sink.Record) error {
		if n++; n%progressEvery == 0 {
			stage.Add(progressEvery)
		}
		return v.add(v.topicOfRecord(rec), rec.Headers[0].Value, entry{origin: fromWAL, time: rec.Timestamp, lsn: uint64(rec.LSN)})
	}, func(id []byte, err error) error {
		v.report.Unroutable++
		return v.o.Found(Finding{Kind: Unroutable, ID: id, Rows: 1, Reason: err.Error()})
	})
	stage.Add(n % progressEvery)
	return span, err
}
