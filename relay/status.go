package relay

import (
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/sink"
)

// State is what the relay is doing.
type State string

const (
	StateStarting     State = "starting"     // connecting and checking for the first time
	StateStandby      State = "standby"      // another instance holds the slot; waiting for it
	StateStreaming    State = "streaming"    // reading and publishing
	StateReconnecting State = "reconnecting" // the server is away; connecting again
	StateHalted       State = "halted"       // a record can never be written; a person must act
	StateStopping     State = "stopping"     // draining for a clean stop
	StateStopped      State = "stopped"
)

// Status is a snapshot of the relay, without secrets and payloads. Counters
// count since the process started.
type Status struct {
	State  State     `json:"state"`
	Since  time.Time `json:"since"` // of State
	Ready  bool      `json:"ready"`
	Reason string    `json:"reason,omitempty"` // why it is not ready

	Slot          string `json:"slot"`
	Publication   string `json:"publication"`
	SystemID      string `json:"system_id,omitempty"`
	Timeline      int32  `json:"timeline,omitempty"`
	Epoch         uint64 `json:"epoch,omitempty"`
	ServerVersion int    `json:"server_version,omitempty"` // server_version_num

	// Positions; zero means unknown. Confirmed <= Durable <= Acked <= Received.
	Received  pglogrepl.LSN `json:"received"`
	Acked     pglogrepl.LSN `json:"acked"`
	Durable   pglogrepl.LSN `json:"durable"`
	Confirmed pglogrepl.LSN `json:"confirmed"`
	// As the watching SQL session saw them last.
	ServerLSN     pglogrepl.LSN `json:"server_lsn"`
	RestartLSN    pglogrepl.LSN `json:"restart_lsn"`
	LagBytes      int64         `json:"lag_bytes"`      // ServerLSN - Confirmed
	RetainedBytes int64         `json:"retained_bytes"` // ServerLSN - RestartLSN
	SafeWALBytes  *int64        `json:"safe_wal_bytes,omitempty"`
	WatchedAt     time.Time     `json:"watched_at"`

	// OldestUnacked is the commit time of the oldest transaction that is not
	// fully acked; zero when there is none.
	OldestUnacked time.Time `json:"oldest_unacked"`

	DecodedTransactions uint64 `json:"decoded_transactions"`
	DecodedRows         uint64 `json:"decoded_rows"`
	DecodedMessages     uint64 `json:"decoded_messages"` // with the configured prefix
	IgnoredMessages     uint64 `json:"ignored_messages"` // with it, but not transactional
	DecodedBytes        uint64 `json:"decoded_bytes"`
	Reconnects          uint64 `json:"reconnects"`
	ReceiveNaps         uint64 `json:"receive_naps"` // pauses between coalesced reads
	// SourceErrors counts errors of the PostgreSQL side by class and SQLSTATE (or
	// kind of network error).
	SourceErrors map[sink.ErrorKey]uint64 `json:"-"`

	History *HistoryStatus `json:"history,omitempty"` // nil when none is kept
	// Retention is nil when rows are kept.
	Retention *RetentionStatus `json:"retention,omitempty"`
	// Marking is nil when no row is marked.
	Marking *MarkingStatus `json:"marking,omitempty"`

	Gaps  []checkpoint.Gap  `json:"gaps,omitempty"`
	Halts []sink.Refusal    `json:"halts,omitempty"` // records that hold up their lane, or reading
	Lanes []sink.LaneStatus `json:"lanes,omitempty"`
	Sink  sink.Stats        `json:"-"`
}
