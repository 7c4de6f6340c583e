package admin

import (
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/sink"
)

// State is a relay's status as it is shown over HTTP: positions as text, errors
// as sentences, and what a person wants to know first in front.
type State struct {
	Ready  bool        `json:"ready"`
	State  relay.State `json:"state"`
	Reason string      `json:"reason,omitempty"`
	Since  time.Time   `json:"since"`

	Version       string `json:"version,omitempty"`
	Slot          string `json:"slot"`
	Publication   string `json:"publication"`
	SystemID      string `json:"system_id,omitempty"`
	Timeline      int32  `json:"timeline,omitempty"`
	Epoch         uint64 `json:"epoch,omitempty"`
	ServerVersion int    `json:"server_version,omitempty"`

	Positions     Positions  `json:"positions"`
	LagBytes      int64      `json:"lag_bytes"`
	LagSeconds    float64    `json:"lag_seconds"` // age of the oldest unacked transaction; 0 when there is none
	RetainedBytes int64      `json:"retained_bytes"`
	SafeWALBytes  *int64     `json:"safe_wal_bytes,omitempty"`
	WatchedAt     *time.Time `json:"watched_at,omitempty"`

	Published     uint64 `json:"published_records"`
	InFlightBytes int64  `json:"in_flight_bytes"`
	BudgetBytes   int64  `json:"budget_bytes"`
	Reconnects    uint64 `json:"reconnects"`

	History *History `json:"history,omitempty"` // nil when none is kept
	// Retention is nil when rows are kept.
	Retention *relay.RetentionStatus `json:"retention,omitempty"`
	// Marking is nil when no row is marked.
	Marking *relay.MarkingStatus `json:"marking,omitempty"`

	Gaps  []Gap  `json:"gaps,omitempty"`
	Halts []Halt `json:"halts,omitempty"`
	// Lanes are the topic-partitions that are failing or halted.
	Lanes []Lane `json:"lanes,omitempty"`
}

// Positions in the WAL, as PostgreSQL prints them; "" means unknown.
type Positions struct {
	Received  string `json:"received,omitempty"`
	Acked     string `json:"acked,omitempty"`
	Durable   string `json:"durable,omitempty"`
	Confirmed string `json:"confirmed,omitempty"`
	Server    string `json:"server,omitempty"`
	Restart   string `json:"restart,omitempty"`
}

// History is the range that can be replayed.
type History struct {
	Slot    string `json:"slot"`
	Problem string `json:"problem,omitempty"` // why nothing can be replayed
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	// Since: all that was committed since then is in the range; nil when no time is
	// known yet.
	Since         *time.Time `json:"since,omitempty"`
	RetainedBytes int64      `json:"retained_bytes"`
	Dropped       uint64     `json:"dropped"` // times, since the process started
}

// Gap is a range that may never have been published.
type Gap struct {
	From   string    `json:"from,omitempty"` // "" : since ever
	To     string    `json:"to"`
	Table  string    `json:"table,omitempty"` // "" : every outbox table
	Reason string    `json:"reason"`
	Found  time.Time `json:"found"`
}

// Halt is a record that holds up its lane, or reading; without an id, what the
// server cannot decode. It holds no payload.
type Halt struct {
	Topic     string    `json:"topic,omitempty"`
	Partition int32     `json:"partition"` // -1: none was chosen yet
	ID        string    `json:"id"`
	LSN       string    `json:"lsn"`
	Seq       uint32    `json:"seq"`
	Reason    string    `json:"reason"`
	Fix       string    `json:"fix,omitempty"`
	At        time.Time `json:"at"`
}

// Lane is a topic-partition that is failing or halted.
type Lane struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Queued    int       `json:"queued_records"`
	Bytes     int64     `json:"queued_bytes"`
	Halted    bool      `json:"halted"`
	LastError string    `json:"last_error,omitempty"`
	Since     time.Time `json:"since"`
}

// NewState makes a State of a relay's status at the time now.
func NewState(s relay.Status, version string, now time.Time) State {
	out := State{
		Ready: s.Ready, State: s.State, Reason: s.Reason, Since: s.Since,
		Version: version, Slot: s.Slot, Publication: s.Publication, SystemID: s.SystemID,
		Timeline: s.Timeline, Epoch: s.Epoch, ServerVersion: s.ServerVersion,
		// The server is asked now and then; what it sent since, it has.
		Positions: Positions{
			Received: lsn(s.Received), Acked: lsn(s.Acked), Durable: lsn(s.Durable),
			Confirmed: lsn(s.Confirmed), Server: lsn(max(s.ServerLSN, s.Received)), Restart: lsn(s.RestartLSN),
		},
		LagBytes: s.LagBytes, LagSeconds: age(s.OldestUnacked, now), RetainedBytes: s.RetainedBytes, SafeWALBytes: s.SafeWALBytes,
		Published: s.Sink.Published, InFlightBytes: s.Sink.InFlightBytes, BudgetBytes: s.Sink.BudgetBytes,
		Reconnects: s.Reconnects, Retention: s.Retention, Marking: s.Marking,
		Gaps: Gaps(s.Gaps),
	}
	if !s.WatchedAt.IsZero() {
		out.WatchedAt = &s.WatchedAt
	}
	if h := s.History; h != nil {
		out.History = &History{Slot: h.Slot, Problem: h.Problem, From: lsn(h.From), To: lsn(h.To), RetainedBytes: h.RetainedBytes, Dropped: h.Dropped}
		if !h.Since.IsZero() {
			out.History.Since = &h.Since
		}
	}
	for _, h := range s.Halts {
		out.Halts = append(out.Halts, halt(h))
	}
	for _, l := range s.Lanes {
		if l.Since.IsZero() && l.Halted == nil {
			continue
		}
		out.Lanes = append(out.Lanes, Lane{Topic: l.Topic, Partition: l.Partition, Queued: l.Queued, Bytes: l.Bytes,
			Halted: l.Halted != nil, LastError: l.LastError, Since: l.Since})
	}
	return out
}

// Gaps makes them readable.
func Gaps(gaps []checkpoint.Gap) []Gap {
	var out []Gap
	for _, g := range gaps {
		out = append(out, Gap{From: lsn(g.From), To: g.To.String(), Table: g.Table, Reason: g.Reason, Found: g.Found})
	}
	return out
}

func halt(r sink.Refusal) Halt {
	h := Halt{Topic: r.Topic, Partition: r.Partition, ID: r.ID, LSN: r.LSN.String(), Seq: r.Seq, At: r.At}
	h.Reason, h.Fix = relay.HaltReason(r)
	return h
}

func lsn(l pglogrepl.LSN) string {
	if l == 0 {
		return ""
	}
	return l.String()
}

// age is how long ago t was, in seconds; 0 for no time and for a clock that is
// behind.
func age(t, now time.Time) float64 {
	if t.IsZero() || now.Before(t) {
		return 0
	}
	return now.Sub(t).Seconds()
}
