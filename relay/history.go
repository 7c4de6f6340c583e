package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/history"
)

// HistoryConfig is the history slot and its window.
type HistoryConfig struct {
	Slot string
	history.Window
}

// HistoryStatus is the range that can be replayed: [From, To).
type HistoryStatus struct {
	Slot    string `json:"slot"`
	Problem string `json:"problem,omitempty"` // why nothing can be replayed

	From pglogrepl.LSN `json:"from"`
	To   pglogrepl.LSN `json:"to"`
	// Since: all that was committed at that time or later is in the range; zero when
	// no time is known yet.
	Since         time.Time `json:"since"`
	RetainedBytes int64     `json:"retained_bytes"` // the server's end of WAL - restart
	Dropped       uint64    `json:"dropped"`        // times, since the process started
}

// historyState is what the relay knows of its history slot, over all sessions.
type historyState struct {
	samples history.Samples
	facts   history.Facts // of the last look; zero when there was no slot
	end     pglogrepl.LSN // the server's, at that look
	over    time.Time     // since when the slot is above the hard limit; zero when it is not
	pressed int           // how often it was advanced since
	looked  bool
	dropped uint64
	problem string // why nothing can be replayed; "" when something can
	gone    string // why the slot was dropped, while it is not made anew
}

func (h *historyState) status(cfg HistoryConfig) *HistoryStatus {
	if !cfg.On() {
		return nil
	}
	st := &HistoryStatus{Slot: cfg.Slot, Problem: h.problem, Dropped: h.dropped}
	if !h.looked {
		st.Problem = "the slot was not looked at yet"
	}
	if st.Problem != "" {
		return st
	}
	st.From, st.To = h.facts.Start, h.facts.Published
	st.Since, _ = h.samples.Since(st.From)
	if h.end > h.facts.Restart {
		st.RetainedBytes = int64(h.end - h.facts.Restart)
	}
	return st
}

// watchHistory looks at the history slot and asks keepHistory for what is due. What
// is wrong with it never ends the stream.
func (s *session) watchHistory(ctx context.Context, server catalog.Server, main catalog.Slot) error {
	cfg := s.r.cfg.History
	if !cfg.On() {
		return nil
	}
	drops := s.r.historyDrops() // before the look: one that is dropped meanwhile is not taken for a new one
	slot, ok, err := s.watcher.Slot(ctx, cfg.Slot)
	if err != nil {
		return fmt.Errorf("watch the history slot: %w", err)
	}
	due := s.r.noteHistory(server, main, slot, ok, drops)
	if due.Kind == history.Keep || slot.Active { // it is being moved
		return nil
	}
	select {
	case s.historyDue <- due:
	default: // the step before is under way; the next look asks again
	}
	return nil
}

// noteHistory remembers what was seen, says what has become of the slot, and
// returns the step that is due.
func (r *Relay) noteHistory(server catalog.Server, main, slot catalog.Slot, exists bool, drops uint64) history.Step {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &r.history
	if h.dropped != drops {
		return history.Step{}
	}
	h.looked = true
	before := h.problem
	if h.problem = historyProblem(r.cfg.History.Slot, slot, exists, server.Database); h.problem != "" {
		h.facts, h.over, h.pressed = history.Facts{}, time.Time{}, 0
		switch {
		case !exists && h.gone != "":
			h.problem = h.gone // told when it was dropped
		case h.problem != before:
			r.log.Error("nothing can be replayed: the history slot cannot be used; the stream is not concerned",
				zap.String("history_slot", r.cfg.History.Slot), zap.String("reason", h.problem))
		}
		return history.Step{}
	}
	h.gone = ""
	h.end = server.CurrentLSN
	h.facts = history.Facts{Now: time.Now(), Published: main.Confirmed, Start: slot.Confirmed, Restart: slot.Restart, MainRestart: main.Restart}
	h.samples.Add(h.facts.Now, main.Confirmed, slot.Confirmed)
	switch over := r.cfg.History.Over(h.facts); {
	case !over:
		h.over, h.pressed = time.Time{}, 0
	case h.over.IsZero():
		h.over = h.facts.Now
	}
	h.facts.OverSince, h.facts.Pressed = h.over, h.pressed
	return r.cfg.History.Next(h.facts, &h.samples)
}

// historyProblem says why nothing can be replayed from a slot; "" when something
// can.
func historyProblem(name string, s catalog.Slot, exists bool, database string) string {
	switch {
	case !exists:
		return fmt.Sprintf("slot %q does not exist; cdc-relay setup makes it, and the range begins there", name)
	case s.Lost():
		why := s.InvalidationReason
		if why == "" {
			why = "its WAL was removed"
		}
		return fmt.Sprintf("slot %q is lost (%s; see max_slot_wal_keep_size, and idle_replication_slot_timeout of PostgreSQL 18); "+
			"cdc-relay setup makes it anew, and the range begins there", name, why)
	case s.Type != "logical" || s.Plugin != catalog.Plugin || s.Database != database:
		return fmt.Sprintf("slot %q is not a logical slot of %s in database %q; choose another history.slot and run cdc-relay setup",
			name, catalog.Plugin, database)
	}
	return ""
}

// keepHistory moves the history slot, or drops it, when watch finds it due. It has
// an SQL session of its own for each step: an advance reads much WAL, and watch
// must hear meanwhile that the server stops.
func (s *session) keepHistory(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case step := <-s.historyDue:
			if err := s.moveHistory(ctx, step); err != nil && ctx.Err() == nil {
				class, code := classify(err)
				s.r.count(class, code)
				s.log.Warn("the history slot was not moved; trying again", zap.String("history_slot", s.r.cfg.History.Slot), zap.Error(err))
			}
		}
	}
}

func (s *session) moveHistory(ctx context.Context, step history.Step) error {
	cfg, err := s.r.cfg.Connect()
	if err != nil {
		return err
	}
	db, err := catalog.Open(ctx, cfg, s.r.cfg.ApplicationName+" (history)")
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	server, err := db.Server(ctx)
	if err != nil {
		return err
	}
	if err := s.sameServer(server); err != nil {
		return err
	}
	slot := s.r.cfg.History.Slot
	if step.Kind == history.Drop {
		if err := db.DropSlot(ctx, slot); err != nil {
			return err
		}
		s.r.historyDropped(step.Why)
		return nil
	}
	began := time.Now()
	at, err := db.AdvanceSlot(ctx, slot, step.To)
	if err != nil {
		return err
	}
	s.r.historyMoved()
	s.log.Info("history slot advanced", zap.String("history_slot", slot), zap.Stringer("lsn", at), zap.Duration("took", time.Since(began)))
	return nil
}

// historyMoved counts an advance that should have freed WAL.
func (r *Relay) historyMoved() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cfg.History.Over(r.history.facts) {
		r.history.pressed++
	}
}

func (r *Relay) historyDrops() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history.dropped
}

func (r *Relay) historyDropped(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &r.history
	h.dropped++
	h.gone = fmt.Sprintf("slot %q was dropped at %s: %s. End such transactions, or raise history.hard_max_bytes; cdc-relay setup makes it anew, and the range begins there",
		r.cfg.History.Slot, time.Now().UTC().Format(time.RFC3339), why)
	h.problem, h.facts = h.gone, history.Facts{}
	r.log.Error("history slot dropped: nothing can be replayed any more; the stream is not concerned",
		zap.String("history_slot", r.cfg.History.Slot), zap.String("reason", h.gone))
}
