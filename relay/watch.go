package relay

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
)

// watch keeps an ordinary session open beside the stream. It sees at once that
// the server is told to stop, which would otherwise wait for the relay's
// confirms; and every WatchInterval that slot, publication and tables are still
// what the stream depends on.
func (s *session) watch(ctx context.Context) error {
	for {
		if err := s.watchOnce(ctx); err != nil {
			return err
		}
		if err := s.watcher.Wait(ctx, s.r.cfg.WatchInterval); err != nil {
			return fmt.Errorf("watch the server: %w", err)
		}
	}
}

func (s *session) watchOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.r.cfg.SilenceTimeout)
	defer cancel()
	from := s.stream.Confirmed() // what was published before this look
	server, err := s.watcher.Server(ctx)
	if err != nil {
		return fmt.Errorf("watch the server: %w", err)
	}
	slot, ok, err := s.watcher.Slot(ctx, s.r.cfg.Slot)
	if err != nil {
		return fmt.Errorf("watch the slot: %w", err)
	}
	switch {
	case !ok:
		return fault.Stopped("find out who dropped it; then "+preflight.Recover,
			"slot %q was dropped while it was streamed: events committed after %s may be lost to the stream", s.r.cfg.Slot, from)
	case slot.Lost():
		return preflight.Lost(s.r.cfg.Slot, slot, from, server.CurrentLSN)
	}
	s.r.noteWatch(server, slot)
	if err := s.watchIdentities(ctx, server); err != nil {
		return err
	}
	if err := s.watchHistory(ctx, server, slot); err != nil {
		return err
	}
	if err := s.stream.Failed(); err != nil {
		return err // the reader may be waiting for the sink and not see it
	}
	if !s.r.cfg.AllowSynchronous && preflight.MatchesSynchronous(server.SynchronousStandbyNames, s.r.cfg.ApplicationName) {
		s.log.Warn("synchronous_standby_names can match the relay: commits of the application may wait for Kafka; the next start will refuse",
			zap.String("synchronous_standby_names", server.SynchronousStandbyNames))
	}
	return nil
}

// watchIdentities compares publication and tables with the last look that found
// all in order: the WAL in doubt begins there, and ends here.
func (s *session) watchIdentities(ctx context.Context, server catalog.Server) error {
	now, err := s.watcher.Identities(ctx, s.r.cfg.Publication, tableNames(s.r.cfg.Tables))
	if err != nil {
		return fmt.Errorf("watch the publication: %w", err)
	}
	was := s.checked.Load()
	gone, err := s.watcher.Gone(ctx, s.plan.Mark.SystemID, s.r.cfg.Slot, was.Relations, now.Relations)
	if err != nil {
		return err
	}
	if err := preflight.Changed(was.Publication, was.Relations, now, gone, was.lsn, server.CurrentLSN); err != nil {
		if later, lerr := s.watcher.Server(ctx); lerr == nil { // the change may be younger than the position
			err = preflight.Changed(was.Publication, was.Relations, now, gone, was.lsn, later.CurrentLSN)
		}
		return err
	}
	s.checked.Store(&checkedIdentities{Identities: now, lsn: server.CurrentLSN})
	return nil
}

// watchStale is how long a watching session may be silent before the relay is
// not ready.
func (r *Relay) watchStale(at time.Time) bool {
	return !at.IsZero() && time.Since(at) > r.cfg.WatchInterval+2*r.cfg.SilenceTimeout
}
