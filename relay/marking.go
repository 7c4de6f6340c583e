package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/marking"
	"github.com/cdc-relay/cdc-relay/route"
)

// roomPoll is how often a full queue is looked at.
const roomPoll = 10 * time.Millisecond

// MarkingStatus is how far published rows are marked. Counters count since the
// process started.
type MarkingStatus struct {
	Column string `json:"column"`
	Marked uint64 `json:"marked"` // rows, those that were marked already not counted
	// Held are rows that are published, or on their way, and not marked yet.
	Held      int   `json:"held"`
	HeldBytes int64 `json:"held_bytes"`
	// Failing tells why rows cannot be marked now, and nothing behind them is
	// confirmed; "" when nothing stands in the way.
	Failing string    `json:"failing,omitempty"`
	Since   time.Time `json:"since"` // of Failing
}

// marks are the rows of a session that are to be marked.
type marks struct {
	queue  *marking.Queue
	marker *marking.Marker // of markRows, later finish
	nudge  chan struct{}   // capacity 1: rows may be due
	tables map[catalog.TableName]int

	last      *decoder.Relation // of receive's goroutine: the table of the row before
	lastTable int
}

// newMarks returns nil where no row is marked.
func (s *session) newMarks() *marks {
	cfg := s.r.cfg
	if !cfg.Marking.On() || len(cfg.Tables) == 0 {
		return nil
	}
	m := &marks{queue: marking.NewQueue(cfg.Marking.MaxBytes), nudge: make(chan struct{}, 1), tables: map[catalog.TableName]int{}}
	for i, t := range tableNames(cfg.Tables) {
		m.tables[t] = i
	}
	m.marker = marking.NewMarker(marking.Config{
		Settings: cfg.Marking, Tables: cfg.Tables, Connect: cfg.Connect, ApplicationName: cfg.ApplicationName,
		SameServer: func(server catalog.Server) error {
			if s.streamsFrom(server) {
				return nil
			}
			return fmt.Errorf("the connection that marks rows reached another server than the stream (in recovery: %t, started %s and %s), so that its rows are not those that are published",
				server.InRecovery, server.StartedAt.UTC().Format(time.RFC3339), s.startedAt.UTC().Format(time.RFC3339))
		},
	})
	return m
}

// add remembers a row of the transaction in hand. It must be counted by the tracker
// already: what is remembered is not acked before it is published.
// The table is that of the mapping: the relation may be from a time in which it had
// another name.
func (m *marks) add(router *route.Router, rel *decoder.Relation, id []byte) error {
	if rel != m.last {
		t := router.Mapped(rel)
		if t == nil {
			return fault.Stopped("report this as a bug", "a row of table %s.%s was routed, and is of none that is mapped", rel.Namespace, rel.Name)
		}
		m.last, m.lastTable = rel, m.tables[catalog.TableName{Schema: t.Schema, Name: t.Name}]
	}
	m.queue.Add(m.lastTable, id)
	return nil
}

func (m *marks) wake() {
	select {
	case m.nudge <- struct{}{}:
	default:
	}
}

// roomToMark waits while the rows that are to be marked take all their memory. A stop
// does not wait for marking that fails: it ends within a transaction, as with a
// halted lane.
func (s *session) roomToMark(ctx context.Context) error {
	if s.marks == nil || !s.marks.queue.Full() {
		return nil
	}
	s.beforeWait()
	tick := time.NewTicker(roomPoll)
	defer tick.Stop()
	for s.marks.queue.Full() {
		s.marks.wake()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if s.r.isStopping() && s.markError.Load() != nil {
			return errStopped
		}
	}
	return nil
}

// markRows marks rows as they are acked, while the session lives. What keeps it from
// that is told, holds back what is confirmed, and ends neither the session nor the
// attempts: events go on until the queue is full.
func (s *session) markRows(ctx context.Context) error {
	if s.marks == nil {
		return nil
	}
	s.log.Info("published rows are marked in the outbox tables", zap.String("column", s.r.cfg.Marking.Column))
	again := backoff.NewExponentialBackOff()
	again.InitialInterval, again.MaxInterval = s.r.cfg.ReconnectMin, s.r.cfg.ReconnectMax
	again.Reset()
	for ctx.Err() == nil {
		more, err := s.markOnce(ctx)
		pause, nudge := s.savePause(), s.marks.nudge // rows gather meanwhile
		switch {
		case err != nil:
			pause, nudge = min(again.NextBackOff(), s.r.cfg.ReconnectMax), nil
		case more:
			again.Reset()
			continue
		default:
			again.Reset()
		}
		if err := sleep(ctx, pause); err != nil || nudge == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-nudge:
		}
	}
	return nil
}

// markOnce marks one batch of the rows that are acked. more tells that there are
// more of them.
func (s *session) markOnce(ctx context.Context) (more bool, err error) {
	m := s.marks
	batch := m.marker.Batch()
	rows := m.queue.Due(s.tracker.Watermark(), s.tracker.Settled, batch)
	if len(rows) == 0 {
		err = m.marker.Open(ctx) // so that what is wrong is told before there is a row
		s.noteMarking(ctx, err)
		return false, err
	}
	done, changed, err := m.marker.Mark(ctx, rows)
	s.r.marked.Add(uint64(changed))
	s.noteMarking(ctx, err)
	if err != nil {
		return false, err
	}
	m.queue.Marked(done)
	s.eventful.Store(true)
	s.wake()
	return len(rows) == batch || done < len(rows), nil
}

// published is the highest position that may be saved and confirmed: all before it
// is acked and, where rows are marked, marked.
func (s *session) published() pglogrepl.LSN {
	wm := s.tracker.Watermark()
	if s.marks == nil {
		return wm
	}
	return s.marks.queue.Position(wm)
}

// markRest marks what was acked, until all is marked, it is known that a person must
// mend something, or ctx ends.
func (s *session) markRest(ctx context.Context) error {
	if s.marks == nil {
		return nil
	}
	for {
		wm := s.tracker.Watermark()
		if s.marks.queue.Position(wm) >= wm {
			return nil
		}
		_, err := s.markOnce(ctx)
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return errors.Join(context.Cause(ctx), err)
		case fault.ClassOf(err) == fault.Stop:
			return err
		}
		if serr := sleep(ctx, saveRetry); serr != nil {
			return errors.Join(serr, err)
		}
	}
}

// endMarking ends the session that marks.
func (s *session) endMarking(ctx context.Context) {
	if s.marks != nil {
		s.marks.marker.Close(context.WithoutCancel(ctx))
	}
}

// noteMarking keeps, and logs when it changes, why rows cannot be marked.
func (s *session) noteMarking(ctx context.Context, err error) {
	was := s.markError.Load()
	switch {
	case err == nil && was == nil, err != nil && ctx.Err() != nil:
		return
	case err == nil:
		s.markError.Store(nil)
		s.log.Info("published rows are marked again", zap.Duration("after", time.Since(was.since)))
		return
	}
	class, code := classify(err)
	s.r.count(class, code)
	f := &failure{since: time.Now(), err: err}
	if was != nil {
		f.since = was.since
	}
	s.markError.Store(f)
	switch {
	case was != nil && was.err.Error() == err.Error():
	case class == fault.Stop:
		s.log.Error("published rows cannot be marked, so nothing behind them is confirmed, and reading stops when mark.max_bytes is used up; trying again", zap.Error(err))
	default:
		s.log.Warn("published rows were not marked, so nothing behind them is confirmed; trying again", zap.Error(err))
	}
}

// markingStatus is nil where no row is marked.
func (r *Relay) markingStatus(s *session) *MarkingStatus {
	if !r.cfg.Marking.On() {
		return nil
	}
	st := &MarkingStatus{Column: r.cfg.Marking.Column, Marked: r.marked.Load()}
	if s == nil || s.marks == nil {
		return st
	}
	st.Held, st.HeldBytes = s.marks.queue.Held()
	if f := s.markError.Load(); f != nil {
		st.Failing, st.Since = f.err.Error(), f.since
	}
	return st
}

// unmarked tells why a relay that cannot mark rows is not ready, or "".
func (s *session) unmarked(limit time.Duration) string {
	f := s.markError.Load()
	if f == nil || fault.ClassOf(f.err) != fault.Stop && time.Since(f.since) <= limit {
		return ""
	}
	return fmt.Sprintf("published rows are not marked since %s, and nothing behind them is confirmed: %v", f.since.UTC().Format(time.RFC3339), f.err)
}

// sleep returns ctx's cause when it ends before d has passed.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
