// Package relay wires the way of an event together: stream, decoder, router,
// sink, tracker, mark, confirm. It owns the lifecycle, the policies and the
// status.
package relay

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Config of a Relay; sizes in bytes.
type Config struct {
	// Connect returns the settings of an ordinary connection to the database. It
	// is asked at every connect, so that password files are read again.
	Connect          func() (*pgx.ConnConfig, error)
	Slot             string
	Publication      string
	ApplicationName  string
	AllowSynchronous bool
	Tables           []route.Table

	StatusInterval  time.Duration
	SilenceTimeout  time.Duration
	WatchInterval   time.Duration
	SaveInterval    time.Duration
	ShutdownTimeout time.Duration
	StandbyInterval time.Duration
	ReconnectMin    time.Duration
	ReconnectMax    time.Duration
	StallTimeout    time.Duration
	MaxRowBytes     int64
	MaxAheadTx      int
	MaxAheadWAL     int64
	// RuntimeParams are set on the replication connection beside the forced ones:
	// logical_decoding_work_mem, wal_sender_timeout.
	RuntimeParams map[string]string
}

// Deps are what the relay works with. OpenSink is called once per Run; the
// relay closes the sink and the store.
type Deps struct {
	Log      *zap.Logger
	OpenSink func(ctx context.Context, refused sink.Refused) (sink.Sink, error)
	Store    checkpoint.Store
	// ObserveAck hears the time from a transaction's commit to its last ack; may
	// be nil. It is called from any goroutine.
	ObserveAck func(time.Duration)
}

// Relay streams one slot. Its methods may be called from any goroutine.
type Relay struct {
	cfg  Config
	deps Deps
}

// New returns a relay that is not running yet.
func New(cfg Config, deps Deps) *Relay { return &Relay{cfg: cfg, deps: deps} }

// Run streams until Stop is called (nil after a clean stop), ctx ends (leaves at
// once, ctx's error) or something happens that a person must mend (an error of
// class fault.Stop). It is called once.
func (r *Relay) Run(ctx context.Context) error { panic("not written yet") }

// Stop asks for a clean stop and returns at once; Run returns when it is done or
// after Config.ShutdownTimeout. Calling it again changes nothing.
func (r *Relay) Stop() {}

// Status returns a snapshot.
func (r *Relay) Status() Status { return Status{} }
