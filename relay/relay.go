// Package relay wires the way of an event together: stream, decoder, router,
// sink, tracker, mark, confirm. It owns the lifecycle, the policies and the
// status.
package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/marking"
	"github.com/cdc-relay/cdc-relay/preflight"
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
	Messages         *route.Messages // nil: no logical message is asked for

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
	CoalesceReads   bool
	MaxAheadTx      int
	MaxAheadWAL     int64
	// History is the second slot, kept a window behind; off when its window is.
	History   HistoryConfig
	Retention Retention
	Marking   marking.Settings // of published rows
	// RuntimeParams are set on the replication connection beside the forced ones:
	// logical_decoding_work_mem, wal_sender_timeout.
	RuntimeParams map[string]string
}

// Deps are what the relay works with. OpenSink is called once per Run; the
// relay closes the sink, the caller the store.
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
	log  *zap.Logger
	sink sink.Sink // set once, before the first session
	// router outlives sessions: it remembers names, and so finds a mapped table
	// that was renamed while the server was away.
	router *route.Router
	// messageRouter is nil when no logical message is asked for.
	messageRouter *route.MessageRouter

	stopping chan struct{} // closed once, by Stop
	stopOnce sync.Once

	// known is what the last session that streamed learned, as a whole; used by
	// Run's goroutine only.
	known preflight.Known
	// failedAt is where the last stream ended by an error of the decoding, and
	// failures how often in a row; Run's goroutine only.
	failedAt failurePlace
	failures int
	// unread is what the server cannot decode, as long as the stream is not beyond
	// it; nil for nothing.
	unread atomic.Pointer[undecodableError]

	transactions, rows, messages, ignoredMessages, bytes, reconnects, naps atomic.Uint64
	deleted                                                                atomic.Uint64 // rows, by retention
	marked                                                                 atomic.Uint64 // rows

	mu        sync.Mutex // guards what follows
	state     State
	since     time.Time
	reason    string // why state is not "streaming"
	server    serverFacts
	session   *session // the current one, or nil
	lastMark  checkpoint.Mark
	lastAcked pglogrepl.LSN // watermark of the last session
	confirmed pglogrepl.LSN // of the last session
	errors    map[sink.ErrorKey]uint64
	history   historyState
	// retentionBlocked is why no row is deleted.
	retentionBlocked string
	partitions       PartitionStatus
}

// serverFacts are what the watching session saw last.
type serverFacts struct {
	systemID string
	timeline int32
	version  int
	current  pglogrepl.LSN
	slot     catalog.Slot
	at       time.Time
}

// New returns a relay that is not running yet.
func New(cfg Config, deps Deps) *Relay {
	return &Relay{
		cfg: cfg, deps: deps, log: deps.Log.With(zap.String("slot", cfg.Slot)),
		stopping: make(chan struct{}),
		state:    StateStarting, since: time.Now(), reason: "starting",
		errors: map[sink.ErrorKey]uint64{},
	}
}

// errStopped says within the package that the stop that was asked for has come
// to the end of a transaction.
var errStopped = errors.New("stopped")

// Run streams until Stop is called (nil after a clean stop; an error when
// something published will be published again), ctx ends (leaves at once, ctx's
// error) or something happens that a person must mend (an error of class
// fault.Stop). It is called once.
func (r *Relay) Run(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			r.setFailed(StateStopped, err)
			return
		}
		r.setState(StateStopped, "stopped cleanly")
	}()
	if err := r.compile(); err != nil {
		return err
	}
	octx, done := r.untilStop(ctx)
	sk, err := r.deps.OpenSink(octx, r.refused)
	done()
	switch {
	case err != nil && errors.Is(context.Cause(octx), errStopped):
		return nil
	case err != nil:
		return fmt.Errorf("open the sink: %w", err)
	}
	r.mu.Lock()
	r.sink = sk
	r.mu.Unlock()
	defer func() { _ = sk.Close() }()
	return r.sessions(ctx)
}

// compile makes the routers of tables and messages.
func (r *Relay) compile() (err error) {
	r.router, r.messageRouter, err = route.CompileAll(r.cfg.Tables, r.cfg.Messages)
	return err
}

// sessions runs one session after another until a person is needed, or wants it
// to end.
func (r *Relay) sessions(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = r.cfg.ReconnectMin, r.cfg.ReconnectMax
	pause.Reset()
	for {
		began := time.Now()
		streamed, err := r.runSession(ctx)
		switch {
		case errors.Is(err, errStopped) && streamed:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case r.isStopping() && !streamed && fault.ClassOf(err) != fault.Stop:
			return r.stoppedBetween(nil)
		case r.isStopping():
			return r.stoppedBetween(err)
		}
		class, code := classify(err)
		r.count(class, code)
		var unread *undecodableError
		halted := errors.As(err, &unread)
		if class == fault.Stop && !halted {
			return err
		}
		if streamed {
			r.reconnects.Add(1)
		}
		if streamed && time.Since(began) > r.cfg.ReconnectMax {
			pause.Reset()
		}
		wait := min(pause.NextBackOff(), r.cfg.ReconnectMax) // its jitter goes past the longest
		if halted {
			wait = r.haltAt(unread, wait, time.Since(began))
		} else {
			r.setFailed(StateReconnecting, err)
			r.log.Warn("connection lost or not made; trying again", zap.Error(err), zap.String("code", code), zap.Duration("pause", wait))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.stopping:
			return r.stoppedBetween(nil)
		case <-time.After(wait):
		}
	}
}

// stoppedBetween is the end of a relay that was stopped while it had no stream,
// or whose stream ended before all was confirmed.
func (r *Relay) stoppedBetween(err error) error {
	r.mu.Lock()
	acked, confirmed := max(r.lastAcked, r.lastMark.LSN), r.confirmed
	r.mu.Unlock()
	switch {
	case err != nil:
		return err
	case r.unread.Load() != nil:
		return fmt.Errorf("stopped while halted: confirmed up to %s; what was published after it will be published again", confirmed)
	case confirmed == 0 || acked <= confirmed:
		return nil // nothing was streamed, or all of it is confirmed
	}
	return fmt.Errorf("stopped while the server was away: events after %s that were published will be published again, and nothing is lost", confirmed)
}

// Stop asks for a clean stop and returns at once; Run returns when it is done or
// after Config.ShutdownTimeout. Calling it again changes nothing.
func (r *Relay) Stop() { r.stopOnce.Do(func() { close(r.stopping) }) }

// untilStop returns a context that ends with Stop, with the cause errStopped: for
// what need not be done once a stop is asked for. done ends the watch, and the
// context.
func (r *Relay) untilStop(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-r.stopping:
			cancel(errStopped)
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		wg.Wait()
	}
}

func (r *Relay) isStopping() bool {
	select {
	case <-r.stopping:
		return true
	default:
		return false
	}
}

// refused is asked about a record that can never be written. Nothing is skipped:
// its lane halts, and a person decides.
func (r *Relay) refused(_ context.Context, ref sink.Refusal, _ *sink.Record) (sink.Verdict, error) {
	partition := zap.Int32("partition", ref.Partition)
	if ref.Partition == sink.PartitionByKey {
		partition = zap.Skip() // none was chosen yet
	}
	_, fix := HaltReason(ref)
	r.log.Error("record refused; its partition is halted and nothing after it will be confirmed", zap.String("fix", fix),
		zap.String("topic", ref.Topic), partition, zap.String("id", ref.ID),
		zap.Stringer("lsn", ref.LSN), zap.Uint32("seq", ref.Seq), zap.Error(ref.Reason))
	return sink.Halt, nil
}

func (r *Relay) setState(s State, reason string) {
	r.enter(s, reason, zap.String("reason", reason))
}

// setFailed is setState for an error, which has a line of its own in the log.
func (r *Relay) setFailed(s State, err error) { r.enter(s, err.Error(), zap.Skip()) }

func (r *Relay) enter(s State, reason string, why zap.Field) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != s {
		r.state, r.since = s, time.Now()
		r.log.Info("state changed", zap.String("state", string(s)), why)
	}
	r.reason = reason
}

func (r *Relay) count(class fault.Class, code string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors[sink.ErrorKey{Class: class, Code: code}]++
}
