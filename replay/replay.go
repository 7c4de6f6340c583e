package replay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

const (
	connectTimeout = 15 * time.Second // one connection to the server, with its checks
	finishTimeout  = 5 * time.Second  // the goodbye of the stream
	// pacePiece is the time whose events are published at once where the rate is limited:
	// to wait for each one would send each one alone, beside the live stream.
	pacePiece = 20 * time.Millisecond
	// copyTries is how often the slot is copied while the relay moves it.
	copyTries = 5
)

// ErrInterrupted ends a replay whose context ended.
var ErrInterrupted = errors.New("interrupted")

// Replay is one run. Run is called once; Progress from any goroutine.
//
// Goroutines: reading, decoding, routing and Publish are Run's; one hears that the
// sink cannot go on, and ends with Run; the stream has its status writer.
type Replay struct {
	o      Options
	router *route.Router
	// messages is nil when no logical message is published.
	messages *route.MessageRouter
	dec      *decoder.Decoder
	filter   *filter
	limit    *rate.Limiter // nil: none
	plan     plan

	stream *replication.Stream
	sink   sink.Sink // nil in a dry run
	cancel context.CancelCauseFunc

	// Of Run's goroutine alone.
	tx      transaction // in hand
	rec     sink.Record
	ev      decoder.Event
	headers []sink.Header
	mark    [16]byte // value of the header
	granted int      // events that may be published before the limit is asked again
	unsent  bool     // the sink has records that may wait for a flush
	before  bool     // a transaction from before the range was seen
	notice  error    // of the server

	began   time.Time
	from    atomic.Uint64 // where the range begins; 0 while that is not known
	to      atomic.Uint64
	read    atomic.Uint64 // how far the server has read
	tracker atomic.Pointer[checkpoint.Tracker]

	transactions, events, acked, filtered atomic.Uint64

	mu          sync.Mutex // guards what follows, and sink while it is set
	first, last Event
}

// transaction is the one being received.
type transaction struct {
	open   bool
	wanted bool   // it is in the range
	number uint64 // the tracker's
	route.Tx
	seq uint32 // inserts and published messages seen
}

// New returns a replay that is not running yet, or why the options cannot be used.
func New(o Options) (*Replay, error) {
	router, messages, err := o.compile()
	if err != nil {
		return nil, err
	}
	r := &Replay{o: o, router: router, messages: messages, dec: decoder.New(), filter: newFilter(o.Filter, o.Tables), began: time.Now()}
	if o.Rate > 0 {
		r.limit = rate.NewLimiter(rate.Limit(o.Rate), max(1, int(o.Rate*pacePiece.Seconds())))
	}
	return r, nil
}

func (r *Replay) messagePrefix() string {
	if r.o.Messages == nil {
		return ""
	}
	return r.o.Messages.Prefix
}

// Run replays. The report is valid also when it ends with an error: then
// Report.Next says where to go on.
func (r *Replay) Run(ctx context.Context) (Report, error) {
	rctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.cancel = cancel
	err := r.run(rctx)
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		err = ErrInterrupted
	}
	return r.report(), err
}

func (r *Replay) run(ctx context.Context) error {
	db, conn, slot, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	defer conn.Close()
	if !r.o.DryRun {
		sk, err := r.o.OpenSink(ctx, r.refused)
		if err != nil {
			return fmt.Errorf("open the sink: %w", err)
		}
		defer func() { _ = sk.Close() }()
		r.mu.Lock()
		r.sink = sk
		r.mu.Unlock()
	}
	if r.stream, err = conn.Start(ctx, slot, r.o.Publication, r.plan.start); err != nil {
		return catalog.Explain(err)
	}
	defer r.stream.Close()
	defer context.AfterFunc(ctx, r.stream.Interrupt)()
	defer r.background(ctx, db)()
	err = r.settle(ctx, r.receive(ctx))
	if err == nil {
		fctx, cancel := context.WithTimeout(ctx, finishTimeout)
		defer cancel()
		_ = r.stream.Finish(fctx) // the slot goes with the connection in any case
	}
	return err
}

// background hears that the server is told to stop, and that the sink cannot go on.
// The function that it returns ends it.
func (r *Replay) background(ctx context.Context, db *catalog.Session) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := db.Wait(ctx, time.Minute); err != nil && ctx.Err() == nil {
				r.cancel(catalog.Explain(err))
				r.stream.Close() // at once: a server that stops waits for its walsenders
				return
			}
		}
	})
	if r.sink != nil {
		wg.Go(func() {
			select {
			case <-ctx.Done():
			case <-r.sink.Failed():
				r.cancel(r.sink.Err())
			}
		})
	}
	return func() {
		stop()
		wg.Wait()
	}
}

// settle waits for the acks of what was published: for all of them at the end of
// the range, and for a while when the replay is given up.
func (r *Replay) settle(ctx context.Context, end error) error {
	if r.sink == nil {
		return end
	}
	if end != nil {
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.DrainTimeout)
		defer cancel()
		_ = r.sink.Drain(dctx) // Report.Next says what was not acked
		return end
	}
	err := r.sink.Drain(ctx)
	switch cause := context.Cause(ctx); {
	case err == nil:
		return nil
	case cause != nil:
		return cause // a refused record, or an interrupt
	}
	return fmt.Errorf("wait for the acks: %w", err)
}

// refused is asked about a record that can never be written: the replay ends there.
func (r *Replay) refused(_ context.Context, ref sink.Refusal, _ *sink.Record) (sink.Verdict, error) {
	r.cancel(&fault.Error{Class: fault.Stop, Err: ref.Reason,
		What: fmt.Sprintf("the brokers refuse the event %q of the transaction %s (insert %d): %s", ref.ID, ref.LSN, ref.Seq, sink.Place(ref.Topic, ref.Partition)),
		Fix:  "mend what the brokers say; or replay up to that transaction (--to), and go on behind it (--from)"})
	return sink.Halt, nil
}

// connect looks at the server, decides, and makes the temporary slot.
func (r *Replay) connect(ctx context.Context) (db *catalog.Session, conn *replication.Conn, slot string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
	defer cancel()
	cfg, err := r.o.Connect()
	if err != nil {
		return nil, nil, "", err
	}
	db, err = catalog.Open(ctx, cfg, r.o.ApplicationName+" (replay, watch)")
	if err != nil {
		return nil, nil, "", catalog.Explain(fmt.Errorf("connect to the database: %w", err))
	}
	conn, slot, err = r.makeSlot(ctx, cfg, db)
	if err != nil {
		db.Close(context.WithoutCancel(ctx))
		return nil, nil, "", err
	}
	return db, conn, slot, nil
}

func (r *Replay) makeSlot(ctx context.Context, cfg *pgx.ConnConfig, db *catalog.Session) (conn *replication.Conn, slot string, err error) {
	f, err := r.look(ctx, db)
	if err != nil {
		return nil, "", catalog.Explain(err)
	}
	if r.plan, err = decide(r.o, f); err != nil {
		return nil, "", err
	}
	conn, err = replication.Connect(ctx, replication.Config{
		Postgres: &cfg.Config, ApplicationName: r.o.ApplicationName + " (replay)", RuntimeParams: r.o.RuntimeParams,
		StatusInterval: r.o.StatusInterval, SilenceTimeout: r.o.SilenceTimeout, MaxMessageBytes: r.o.MaxRowBytes,
		CoalesceReads: r.o.CoalesceReads, MessagePrefix: r.messagePrefix(), BeforeRead: r.flush, OnNotice: r.onNotice,
	})
	if err != nil {
		return nil, "", noRoom(err)
	}
	slot, err = r.copySlot(ctx, conn, f.server)
	if err != nil {
		conn.Close()
		return nil, "", err
	}
	return conn, slot, nil
}

func (r *Replay) look(ctx context.Context, db *catalog.Session) (f facts, err error) {
	if f.server, err = db.Server(ctx); err != nil {
		return f, err
	}
	if f.main, f.hasMain, err = db.Slot(ctx, r.o.Slot); err != nil {
		return f, err
	}
	if f.history, f.hasHistory, err = db.Slot(ctx, r.o.History); err != nil {
		return f, err
	}
	var tables []catalog.TableName
	for _, t := range r.o.Tables {
		tables = append(tables, catalog.TableName{Schema: t.Schema, Name: t.Name})
	}
	ids, err := db.Identities(ctx, r.o.Publication, tables)
	roots := ids.Roots() // the history may be of a time when they had other names
	r.router.Know(roots)
	r.filter.known = roots
	return f, err
}

// copySlot makes the temporary slot. What is decided before it holds only when the
// relay has not moved the history slot meanwhile: the copy says where it stands.
func (r *Replay) copySlot(ctx context.Context, conn *replication.Conn, server catalog.Server) (slot string, err error) {
	sys, err := conn.Identify(ctx)
	if err != nil {
		return "", catalog.Explain(err)
	}
	if sys.ID != server.SystemID || sys.Timeline != server.Timeline {
		return "", fault.Stopped("name one server in source.host", "the two connections of the replay reached two servers: system %s, timeline %d and system %s, timeline %d",
			server.SystemID, server.Timeline, sys.ID, sys.Timeline)
	}
	slot = fmt.Sprintf("%.40s_replay_%d", r.o.Slot, conn.PID())
	var at pglogrepl.LSN
	for try := 1; ; try++ {
		at, err = conn.CopySlot(ctx, r.o.History, slot)
		if err == nil || catalog.SQLState(err) != "XX000" || try == copyTries { // XX000: it was moved during the copy
			break
		}
	}
	if err != nil {
		return "", noRoom(err)
	}
	if at > r.plan.start {
		if r.o.From.LSN != 0 {
			return "", outside(r.plan.start, fmt.Sprintf("the history begins at %s by now", at))
		}
		r.plan.start = at
	}
	r.to.Store(uint64(r.plan.to))
	if r.o.From.Time.IsZero() {
		r.begin(r.plan.start)
	}
	return slot, nil
}

// noRoom explains an error of the server when it has no place for a replay.
func noRoom(err error) error {
	var what, limit string
	switch catalog.SQLState(err) {
	case "53400":
		what, limit = "all replication slots are in use", "max_replication_slots"
	case "53300":
		what, limit = "all walsenders, or all connections, are in use", "max_wal_senders"
	default:
		return catalog.Explain(err)
	}
	return &fault.Error{Class: fault.Stop, Err: err, What: what + ", and a replay needs one while it runs",
		Fix: "wait until another replay has ended, or raise " + limit + " and restart the server"}
}

// onNotice hears the server's notices while streaming. PostgreSQL 18 only warns
// when the publication did not exist at that point of the WAL, and drops the rows.
func (r *Replay) onNotice(n *pgconn.Notice) {
	if n.Code == "55000" && n.SeverityUnlocalized == "WARNING" && r.notice == nil {
		r.notice = fault.Stopped("replay a range in which the publication existed", "the server skipped the publication %q at this point of the WAL, and with it rows: %s",
			r.o.Publication, n.Message)
	}
}
