package backfill

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/marking"
)

// ackPoll is how often it is looked whether more is acknowledged, where that has to
// be waited for.
const ackPoll = 10 * time.Millisecond

// marks marks rows once they are acknowledged. To its tracker each fetch is a
// transaction, and its number is the position.
type marks struct {
	queue   *marking.Queue
	marker  *marking.Marker
	tracker *checkpoint.Tracker
	fetch   uint64 // the tracker's number of the one in hand
	fetches uint64
	fails   func(error)
}

// newMarks returns nil where no row is marked.
func newMarks(cfg Config) *marks {
	if !cfg.Marking.On() {
		return nil
	}
	m := &marks{queue: marking.NewQueue(cfg.Marking.MaxBytes), tracker: checkpoint.NewTracker(0), fails: cfg.MarkingFails}
	m.marker = marking.NewMarker(marking.Config{Settings: cfg.Marking, Tables: cfg.Tables, Connect: cfg.Connect, ApplicationName: cfg.ApplicationName})
	return m
}

func (m *marks) begin() {
	if m != nil {
		m.fetch = m.tracker.Begin(0)
	}
}

// add remembers a row of the fetch in hand that is about to be published.
func (m *marks) add(rel *decoder.Relation, id []byte) (fetch uint64) {
	if m == nil {
		return 0
	}
	m.tracker.Add(m.fetch, 1)
	m.queue.Add(int(rel.OID)-1, id)
	return m.fetch
}

// end ends the fetch in hand, and marks what is acknowledged by now.
func (m *marks) end(ctx context.Context) error {
	if m == nil {
		return nil
	}
	m.fetches++
	m.queue.Commit(pglogrepl.LSN(m.fetches))
	m.tracker.Commit(pglogrepl.LSN(m.fetches))
	return m.mark(ctx, false)
}

// mark marks whole batches of what is acknowledged; with all, or when no more rows
// can be remembered, it waits for the acknowledgements and marks every row. What may
// pass is told and tried again.
func (m *marks) mark(ctx context.Context, all bool) error {
	if m == nil {
		return nil
	}
	again := backoff.NewExponentialBackOff()
	again.InitialInterval, again.MaxInterval = 100*time.Millisecond, 5*time.Second
	again.Reset()
	for {
		wait := time.Duration(0)
		batch := m.marker.Batch()
		rows := m.queue.Due(m.tracker.Watermark(), m.tracker.Settled, batch)
		held, _ := m.queue.Held()
		must := all && held > 0 || m.queue.Full()
		switch {
		case !must && len(rows) < batch:
			return nil
		case len(rows) == 0:
			wait = ackPoll
		default:
			done, _, err := m.marker.Mark(ctx, rows)
			switch {
			case err == nil:
				m.queue.Marked(done)
				again.Reset()
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case fault.ClassOf(err) == fault.Stop:
				return &fault.Error{Class: fault.Stop, Err: catalog.Explain(err), What: fmt.Sprintf("%d rows are published, or on their way, and not marked", held)}
			default:
				m.fails(err)
				wait = again.NextBackOff()
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}
