package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/sink"
)

// errShutdownTimeout ends a clean stop that took too long.
var errShutdownTimeout = errors.New("the clean stop took longer than shutdown_timeout")

// run streams until something ends it, and then leaves slot, sink and mark in a
// state from which the next session can begin. Its error is the first cause.
func (s *session) run(ctx context.Context) error {
	s.mark = s.plan.Mark
	s.tracker = checkpoint.NewTracker(s.plan.Start)
	s.received.Store(uint64(s.plan.Start))
	s.r.passed(s.plan.Start)
	s.durable.Store(uint64(s.plan.Mark.LSN))
	s.lastAck.Store(time.Now().UnixNano())
	s.checked.Store(&checkedIdentities{
		Identities: catalog.Identities{Publication: s.mark.Publication, Relations: s.mark.Relations},
		lsn:        s.mark.CheckedLSN,
	})
	if s.plan.SaveFirst {
		if err := s.save(ctx, s.mark); err != nil {
			return err
		}
	}
	s.r.attach(s)
	defer s.r.detach(s)
	defer s.endMarking(ctx)
	s.r.setState(StateStreaming, "")
	s.log.Info("streaming", zap.Stringer("lsn", s.plan.Start), zap.Stringer("mark", s.plan.Mark.LSN), zap.Uint64("epoch", s.plan.Mark.Epoch))

	// sctx is the life of the session. An end in order stops the commits, and then
	// goes on under watch: a server that is told to stop does not wait for it.
	sctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	background := func(tasks ...func(context.Context) error) (end func()) {
		bctx, stop := context.WithCancel(sctx)
		var wg sync.WaitGroup
		for _, f := range tasks {
			wg.Go(func() {
				if err := f(bctx); err != nil && bctx.Err() == nil {
					cancel(err)
				}
			})
		}
		return func() {
			stop()
			wg.Wait()
		}
	}
	endWatch := background(s.watch, s.keepHistory)
	endCommits := background(s.commit, s.guard, s.retain, s.markRows)
	defer context.AfterFunc(sctx, func() { s.stream.Close() })() // wakes the reader
	pctx, stopPublishing := context.WithCancel(sctx)
	defer stopPublishing()
	defer s.onStop(sctx, cancel, stopPublishing)()

	end := s.receive(sctx, pctx)
	err := s.settle(sctx, end, endCommits)
	endWatch()
	if err == nil {
		return end
	}
	cancel(err)
	if fault.ClassOf(err) != fault.Stop {
		err = context.Cause(sctx)
	}
	return s.abandon(ctx, err)
}

// settle has all that was received before end published and confirmed, where it
// ends in order, within ShutdownTimeout. endCommits ends the commits of the
// background. It returns nil when that is done, and otherwise why not: end itself
// when a person must mend it, whatever else failed meanwhile.
func (s *session) settle(ctx context.Context, end error, endCommits func()) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.r.cfg.ShutdownTimeout, errShutdownTimeout)
	defer cancel()
	err := end
	if endsInOrder(end) {
		err = s.drain(ctx)
	}
	endCommits()
	if err == nil {
		err = s.finish(ctx)
	}
	if err != nil && fault.ClassOf(end) == fault.Stop {
		return end
	}
	return err
}

// onStop reacts to Stop: it wakes the reader, so that it ends at the end of the
// transaction in hand, gives up a Publish that waits behind a halted lane, and
// bounds the whole. The function that it returns ends it.
func (s *session) onStop(ctx context.Context, cancel context.CancelCauseFunc, stopPublishing context.CancelFunc) (end func()) {
	done := make(chan struct{}) // closed by end
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-s.r.stopping:
		}
		s.r.setState(StateStopping, "stopping: publishing what is in hand")
		s.stream.Interrupt()
		timeout := time.NewTimer(s.r.cfg.ShutdownTimeout)
		defer timeout.Stop()
		look := time.NewTicker(100 * time.Millisecond)
		defer look.Stop()
		for {
			if s.halted() {
				stopPublishing()
			}
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-timeout.C:
				cancel(errShutdownTimeout)
				return
			case <-look.C:
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// halted tells whether a lane waits for a person. The sink lists those first.
func (s *session) halted() bool {
	lanes := s.sink.Lanes()
	return len(lanes) > 0 && lanes[0].Halted != nil
}

// guard ends the session when the sink cannot go on.
func (s *session) guard(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.sink.Failed():
		return s.sink.Err()
	}
}

// endsInOrder tells whether what was received before err is published and
// confirmed before the end: after a stop, and when something in the stream needs
// a person. A mapping that is mended then does not meet the old rows again.
func endsInOrder(err error) bool {
	return errors.Is(err, errStopped) || fault.ClassOf(err) == fault.Stop
}

// drain waits for the acks of all that was published. A halted relay does not
// wait for the halted lane.
func (s *session) drain(ctx context.Context) error {
	err := s.sink.Drain(ctx)
	if errors.Is(err, sink.ErrHalted) {
		return nil // finish confirms what precedes it, and says so
	}
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return nil
}

// finish marks, saves and confirms what is acked, and ends the stream in order. What
// cannot be marked is not confirmed.
func (s *session) finish(ctx context.Context) error {
	unmarked := s.markRest(ctx)
	wm := s.published()
	if wm > s.mark.LSN {
		if err := s.saveUntil(ctx, s.nextMark(wm)); err != nil {
			return err
		}
	}
	s.stream.Confirm(min(wm, lsnOr0(&s.durable)))
	if err := s.stream.Finish(ctx); err != nil {
		return err
	}
	if unmarked != nil {
		return fmt.Errorf("stopped before published rows were marked: confirmed up to %s; what was published after it will be published again, and marked: %w", s.stream.Confirmed(), unmarked)
	}
	if _, open, _ := s.tracker.Oldest(); open > 0 || s.readHalt.Load() != nil {
		return fmt.Errorf("stopped while halted: confirmed up to %s; what was published after it will be published again", s.stream.Confirmed())
	}
	s.log.Info("stopped cleanly; everything received is published and confirmed", zap.Stringer("lsn", s.stream.Confirmed()))
	return nil
}

// saveUntil saves m, again and again, until ctx ends.
func (s *session) saveUntil(ctx context.Context, m checkpoint.Mark) error {
	for {
		err := s.save(ctx, m)
		if err == nil {
			return nil
		}
		if class, _ := classify(err); class == fault.Stop {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// abandon leaves a stream that failed: what is queued is dropped, requests in
// flight are waited for, and what they acked is saved if Kafka answers. Nothing
// is confirmed any more. The cause is returned.
func (s *session) abandon(ctx context.Context, cause error) error {
	s.stream.Close()
	if catalog.IsShutdown(cause) {
		s.log.Info("the server is stopping or ended the connection; the replication connection is closed")
	}
	if ctx.Err() != nil {
		return cause
	}
	actx, cancel := context.WithTimeout(ctx, abortTimeout)
	defer cancel()
	if err := s.sink.Abort(actx); err != nil {
		s.log.Warn("requests are still in flight after the stream ended; their partitions wait for them", zap.Error(err))
	}
	if wm := s.published(); wm > s.mark.LSN {
		wctx, cancel := context.WithTimeout(ctx, lastSave)
		defer cancel()
		if err := s.save(wctx, s.nextMark(wm)); err != nil {
			s.log.Warn("the mark was not saved after the stream ended; some events will be published again", zap.Error(err))
		}
	}
	// Both at once: what was durable is known of this run of the server alone.
	s.r.known = preflight.Known{StartedAt: s.startedAt, Durable: min(s.published(), lsnOr0(&s.durable))}
	if errors.Is(cause, errShutdownTimeout) {
		return fmt.Errorf("%w (%s): confirmed up to %s; what was published after it will be published again, and nothing is lost",
			cause, s.r.cfg.ShutdownTimeout, s.stream.Confirmed())
	}
	return cause
}

// receivedLSN bounds what may be confirmed on this stream.
func (s *session) receivedLSN() pglogrepl.LSN { return lsnOr0(&s.received) }
