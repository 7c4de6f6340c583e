package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
)

const (
	// saveAgain is how often the mark is saved although it has not moved: it heals
	// a late write of an instance that was taken over.
	saveAgain = 10 * time.Second
	// saveRetry is the pause after a save that failed.
	saveRetry = 250 * time.Millisecond
)

// commit turns what is published into the durable mark, and the mark into the
// confirmed position: first saved, then confirmed. While it pauses between two
// saves it hears no nudge: on a busy stream there is one for each transaction.
func (s *session) commit(ctx context.Context) error {
	tick := time.NewTicker(s.r.cfg.StatusInterval)
	defer tick.Stop()
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	var saved time.Time // the last attempt
	nudge := s.nudge
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-nudge:
		case <-tick.C:
		case <-again.C:
		}
		eventful := s.eventful.Load()
		wait, err := s.commitOnce(ctx, &saved)
		if err != nil {
			return err
		}
		nudge = s.nudge
		if wait > 0 {
			again.Reset(wait)
			if eventful { // else the pause may be a long one, which an event ends
				nudge = nil
			}
		}
	}
}

// commitOnce saves and confirms when it is time to, and returns in how long it
// will be when it is too early. Positions without events can wait for a second;
// events are held back by SaveInterval only.
func (s *session) commitOnce(ctx context.Context, saved *time.Time) (wait time.Duration, err error) {
	pause := s.r.cfg.StatusInterval
	if s.eventful.Load() {
		pause = s.savePause()
	}
	if s.saveError.Load() != nil {
		pause = max(pause, saveRetry)
	}
	wm := s.published()
	due := time.Since(*saved)
	switch {
	case wm <= s.mark.LSN && due < saveAgain:
		s.confirm(wm) // events from before a crash, published again
		return 0, nil
	case wm > s.mark.LSN && due < pause:
		return pause - due, nil
	}
	s.eventful.Store(false)
	wm = s.published()
	err = s.save(ctx, s.nextMark(wm))
	*saved = time.Now()
	if err == nil {
		s.confirm(wm)
		return 0, nil
	}
	if ctx.Err() != nil {
		return 0, err // the end of the background work; finish saves
	}
	class, code := classify(err)
	s.r.count(class, code)
	if class == fault.Stop {
		return 0, err
	}
	return saveRetry, nil
}

// savePause is the shortest pause between two saves while events flow. A mark
// names every relation, and a store keeps the marks of some minutes and reads them
// all at the start: with many partitions there are fewer of them.
func (s *session) savePause() time.Duration {
	return s.r.cfg.SaveInterval * time.Duration(1+len(s.checked.Load().Relations)/32)
}

// nextMark is the mark for a watermark, with the identities found in order last.
// Invariant: within an epoch a mark never goes back.
func (s *session) nextMark(wm pglogrepl.LSN) checkpoint.Mark {
	m := s.mark
	m.LSN = max(m.LSN, wm)
	c := s.checked.Load()
	m.Publication, m.Relations, m.CheckedLSN = c.Publication, c.Relations, c.lsn
	return m
}

// save makes m durable and remembers it.
func (s *session) save(ctx context.Context, m checkpoint.Mark) error {
	sctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	m.SavedAt = time.Now().UTC()
	if err := s.r.deps.Store.Save(sctx, m); err != nil {
		err = fmt.Errorf("save the mark %s of slot %q: %w", m.LSN, m.Slot, err)
		if ctx.Err() == nil {
			s.noteSaveError(err)
		}
		return err
	}
	if f := s.saveError.Swap(nil); f != nil {
		s.log.Info("the mark can be saved again", zap.Duration("after", time.Since(f.since)))
	}
	s.mark = m
	s.durable.Store(uint64(m.LSN))
	s.r.noteMark(m)
	return nil
}

func (s *session) noteSaveError(err error) {
	old := s.saveError.Load()
	f := &failure{since: time.Now(), err: err}
	if old != nil {
		f.since = old.since
	} else {
		s.log.Warn("the mark cannot be saved, so nothing is confirmed; trying again", zap.Error(err))
	}
	s.saveError.Store(f)
}

// confirm tells the server, and never more than is durable and was received.
func (s *session) confirm(wm pglogrepl.LSN) {
	s.stream.Confirm(min(wm, lsnOr0(&s.durable), s.receivedLSN()))
}
