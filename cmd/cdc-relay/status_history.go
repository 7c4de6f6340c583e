package main

import (
	"time"

	"github.com/cdc-relay/cdc-relay/check"
)

// historyRange is what can be replayed: [from, to).
type historyRange struct {
	Slot    string `json:"slot"`
	Problem string `json:"problem,omitempty"` // why nothing can be replayed
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	// Since: all that was committed since then is in the range; only a running relay
	// knows.
	Since         *time.Time `json:"since,omitempty"`
	WALStatus     string     `json:"wal_status,omitempty"`
	RetainedBytes int64      `json:"retained_bytes"`
}

func (rep *statusReport) history(w check.Want, f check.Facts) {
	h := f.HistorySlot
	if !w.History && !f.HasHistory {
		return
	}
	rep.History = &historyRange{Slot: w.HistorySlot, WALStatus: h.WALStatus}
	switch {
	case !f.HasHistory:
		rep.History.Problem = "the slot does not exist; run cdc-relay setup"
		if r := rep.Relay; r != nil && r.History != nil && r.History.Problem != "" {
			rep.History.Problem = r.History.Problem // says more, when the relay dropped it
		}
		return
	case h.Lost():
		rep.History.Problem = "the slot is lost; run cdc-relay setup, which makes it anew"
		return
	}
	rep.History.From, rep.History.To = h.Confirmed.String(), f.Slot.Confirmed.String()
	rep.History.RetainedBytes = behind(f.Server.CurrentLSN, h.Restart)
	if r := rep.Relay; r != nil && r.History != nil {
		rep.History.Since = r.History.Since
	}
}

func (rep *statusReport) writeHistory(line func(name, format string, args ...any)) {
	h := rep.History
	if h == nil {
		return
	}
	if h.Problem != "" {
		line("history", "%s: nothing can be replayed: %s", h.Slot, h.Problem)
		return
	}
	since := "the time is not known (no relay answers at admin.listen)"
	switch {
	case h.Since != nil:
		since = "all that was committed since " + h.Since.UTC().Add(time.Second-1).Truncate(time.Second).Format(time.DateTime+"Z")
	case rep.Relay != nil:
		since = "the time is not known yet"
	}
	line("history", "%s: %s to %s can be replayed, %s", h.Slot, h.From, h.To, since)
	line("history WAL", "%s, wal_status %s", size(h.RetainedBytes), h.WALStatus)
}
