package relay

import (
	"fmt"
	"maps"
	"time"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/sink"
)

func (r *Relay) attach(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session = s
	r.lastMark = s.mark
}

// detach keeps what the session ended with.
func (r *Relay) detach(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session = nil
	r.confirmed = s.stream.Confirmed()
	r.lastAcked = s.tracker.Watermark()
}

func (r *Relay) noteServer(f preflight.Facts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = serverFacts{
		systemID: f.SystemID, timeline: f.Timeline, version: f.Server.VersionNum,
		current: f.Server.CurrentLSN, slot: f.Slot, at: time.Now(),
	}
	if f.HasMark {
		r.lastMark = f.Mark
	}
}

func (r *Relay) noteWatch(server catalog.Server, slot catalog.Slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server.current, r.server.slot, r.server.at = server.CurrentLSN, slot, time.Now()
}

func (r *Relay) noteMark(m checkpoint.Mark) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastMark = m
}

// gaps are the open gaps, by the mark that is saved.
func (r *Relay) gaps() []checkpoint.Gap {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastMark.Gaps
}

// Status returns a snapshot.
func (r *Relay) Status() Status {
	r.mu.Lock()
	st := Status{
		State: r.state, Since: r.since, Reason: r.reason,
		Slot: r.cfg.Slot, Publication: r.cfg.Publication,
		SystemID: r.server.systemID, Timeline: r.server.timeline, ServerVersion: r.server.version,
		Epoch: r.lastMark.Epoch, Durable: r.lastMark.LSN, Gaps: r.lastMark.Gaps,
		ServerLSN: r.server.current, RestartLSN: r.server.slot.Restart, SafeWALBytes: r.server.slot.SafeWALSize,
		WatchedAt: r.server.at, SourceErrors: maps.Clone(r.errors),
		Confirmed: max(r.confirmed, r.server.slot.Confirmed), Acked: r.lastAcked,
	}
	st.History = r.history.status(r.cfg.History)
	if r.cfg.Retention.After > 0 {
		st.Retention = &RetentionStatus{Deleted: r.deleted.Load(), Blocked: r.retentionBlocked}
		if r.cfg.Retention.Partitions != nil {
			p := r.partitions
			st.Retention.Partitions = &p
		}
	}
	s, sk := r.session, r.sink
	r.mu.Unlock()

	st.DecodedTransactions, st.DecodedRows, st.DecodedBytes = r.transactions.Load(), r.rows.Load(), r.bytes.Load()
	st.DecodedMessages, st.IgnoredMessages = r.messages.Load(), r.ignoredMessages.Load()
	st.Reconnects = r.reconnects.Load()
	st.ReceiveNaps = r.naps.Load()
	if sk != nil {
		st.Sink, st.Lanes = sk.Stats(), sk.Lanes()
	}
	if s != nil {
		s.fill(&st)
	}
	st.Marking = r.markingStatus(s)
	if st.ServerLSN > st.Confirmed && st.Confirmed != 0 {
		st.LagBytes = int64(st.ServerLSN - st.Confirmed)
	}
	if st.ServerLSN > st.RestartLSN && st.RestartLSN != 0 {
		st.RetainedBytes = int64(st.ServerLSN - st.RestartLSN)
	}
	if u := r.unread.Load(); u != nil {
		st.Halts = append(st.Halts, u.refusal)
		if st.OldestUnacked.IsZero() || u.since().Before(st.OldestUnacked) {
			st.OldestUnacked = u.since()
		}
	}
	for _, l := range st.Lanes {
		if l.Halted != nil {
			st.Halts = append(st.Halts, *l.Halted)
		}
	}
	r.judge(s, &st)
	return st
}

// fill adds what only a running session knows.
func (s *session) fill(st *Status) {
	st.Received, st.Acked = s.receivedLSN(), s.tracker.Watermark()
	st.Durable, st.Confirmed = lsnOr0(&s.durable), s.stream.Confirmed()
	if at, _, ok := s.tracker.Oldest(); ok {
		st.OldestUnacked = time.UnixMicro(at)
	}
	if h := s.readHalt.Load(); h != nil {
		st.Halts = append(st.Halts, *h)
		// No record of its transaction may be in flight, but it is not published.
		if at := time.UnixMicro(s.haltedTx.Load()); st.OldestUnacked.IsZero() || at.Before(st.OldestUnacked) {
			st.OldestUnacked = at
		}
	}
}

// judge decides readiness by observed progress, with the reason when there is
// none: active and moving, or standing by.
func (r *Relay) judge(s *session, st *Status) {
	switch {
	case st.State == StateStandby:
		st.Ready = true
		return
	case len(st.Halts) > 0:
		if h := st.Halts[0]; st.State == StateStreaming {
			st.State, st.Since = StateHalted, h.At
		}
		st.Reason = haltText(st.Halts[0])
		return
	case st.State != StateStreaming:
		return
	}
	st.Reason = r.stalled(s, st)
	st.Ready = st.Reason == ""
}

// stalled tells why a streaming relay makes no progress, or "".
func (r *Relay) stalled(s *session, st *Status) string {
	limit := r.cfg.StallTimeout
	if lane, ok := failingLane(st.Lanes, limit); ok {
		return fmt.Sprintf("%s, cannot be written since %s: %s",
			sink.Place(lane.Topic, lane.Partition), lane.Since.UTC().Format(time.RFC3339), lane.LastError)
	}
	if s == nil {
		return "the stream has just ended"
	}
	if !st.OldestUnacked.IsZero() {
		if quiet := time.Since(time.Unix(0, s.lastAck.Load())); quiet > limit && time.Since(st.OldestUnacked) > limit {
			return fmt.Sprintf("events wait and none was acked for %s", quiet.Round(time.Second))
		}
	}
	if f := s.saveError.Load(); f != nil && time.Since(f.since) > limit {
		return fmt.Sprintf("nothing is confirmed, because the mark cannot be saved since %s: %v", f.since.UTC().Format(time.RFC3339), f.err)
	}
	if why := s.unmarked(limit); why != "" {
		return why
	}
	if r.watchStale(st.WatchedAt) {
		return "the server has not answered the watching session since " + st.WatchedAt.UTC().Format(time.RFC3339)
	}
	return ""
}

// failingLane returns the lane that fails longest, and longer than limit.
func failingLane(lanes []sink.LaneStatus, limit time.Duration) (sink.LaneStatus, bool) {
	var worst sink.LaneStatus
	for _, l := range lanes {
		if l.LastError != "" && !l.Since.IsZero() && time.Since(l.Since) > limit && (worst.Since.IsZero() || l.Since.Before(worst.Since)) {
			worst = l
		}
	}
	return worst, !worst.Since.IsZero()
}
