package relay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/history"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

const (
	connectTimeout = 15 * time.Second // one connection to the server, with its checks
	storeTimeout   = 15 * time.Second // one call of the store
	abortTimeout   = 5 * time.Second  // for requests in flight after a stream failed
	lastSave       = 3 * time.Second  // for the mark of a stream that failed
)

// session is one connection to the server and all that lives as long: stream,
// decoder, bindings of the router, tracker.
//
// Goroutines: receive runs in Run's goroutine; watch, keepHistory, commit, guard, retain and markRows are
// started by stream and waited for there; the stream has its status writer.
type session struct {
	r       *Relay
	log     *zap.Logger
	watcher *catalog.Session // used by watch once streaming
	// startedAt is when the server of this session started.
	startedAt time.Time
	plan      preflight.Plan
	stream    stream
	sink      sink.Sink
	dec       *decoder.Decoder
	router    *route.Router
	messages  *route.MessageRouter // nil when no logical message is asked for
	tracker   *checkpoint.Tracker

	// Of receive's goroutine alone.
	tx     transaction // in hand
	rec    sink.Record
	ev     decoder.Event
	unsent bool    // the sink has records that may wait for a flush
	acked  []int64 // commit times of transactions that were acked when they committed

	received  atomic.Uint64 // end of what was received: the most that may be confirmed
	durable   atomic.Uint64 // LSN of the mark that is saved
	lastAck   atomic.Int64  // Unix nanoseconds of the last finished transaction
	eventful  atomic.Bool   // a transaction was finished since the last save
	nudge     chan struct{} // capacity 1: the watermark may have moved
	notice    error         // set by the server's notices; receive's goroutine only
	readHalt  atomic.Pointer[sink.Refusal]
	haltedTx  atomic.Int64            // commit time of the transaction of readHalt, in microseconds
	saveError atomic.Pointer[failure] // of the mark
	markError atomic.Pointer[failure] // of marks
	// checked is what watch found in order last, and at which position.
	checked atomic.Pointer[checkedIdentities]

	historyDue chan history.Step // what watch asks keepHistory to do; never closed

	marks *marks // of rows; nil when none is marked

	mark checkpoint.Mark // as saved last; commit's goroutine, later finish
}

// stream is what a session needs of replication.Stream; a script plays it in
// tests.
type stream interface {
	Next() (replication.Message, error)
	Interrupt()
	Confirm(lsn pglogrepl.LSN)
	Confirmed() pglogrepl.LSN
	Failed() error
	Finish(ctx context.Context) error
	Close()
}

// checkedIdentities are publication and tables, found in order when the server's
// WAL ended at LSN.
type checkedIdentities struct {
	catalog.Identities
	lsn pglogrepl.LSN
}

// failure is since when, and why, something that is tried again does not work.
type failure struct {
	since time.Time
	err   error
}

// runSession connects, checks, streams and cleans up. streamed tells whether a
// stream had begun.
func (r *Relay) runSession(ctx context.Context) (streamed bool, err error) {
	cctx, done := r.untilStop(ctx)
	s, err := r.connect(cctx)
	done()
	if err != nil {
		if errors.Is(context.Cause(cctx), errStopped) {
			return false, errStopped
		}
		return false, err
	}
	defer s.watcher.Close(context.WithoutCancel(ctx))
	defer s.stream.Close()
	err = s.run(ctx)
	var unread *undecodableError
	if errors.As(err, &unread) {
		s.keepAheadHalted(ctx)
	}
	return true, err
}

// connect opens both connections, decides whether and where to begin, and starts
// the stream. While another instance holds the slot it stands by.
func (r *Relay) connect(ctx context.Context) (*session, error) {
	s := &session{r: r, log: r.log, sink: r.sink, router: r.router, messages: r.messageRouter, nudge: make(chan struct{}, 1), dec: decoder.New(),
		historyDue: make(chan history.Step)}
	s.marks = s.newMarks()
	cfg, err := r.cfg.Connect()
	if err != nil {
		return nil, err
	}
	octx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	s.watcher, err = catalog.Open(octx, cfg, r.cfg.ApplicationName+" (watch)")
	if err != nil {
		return nil, catalog.Explain(fmt.Errorf("connect to the database: %w", err))
	}
	if err := s.startStream(ctx, &cfg.Config); err != nil {
		s.watcher.Close(context.WithoutCancel(ctx))
		return nil, catalog.Explain(err)
	}
	return s, nil
}

func (s *session) startStream(ctx context.Context, cfg *pgconn.Config) error {
	for {
		if err := s.standby(ctx); err != nil {
			return err
		}
		err := s.tryStart(ctx, cfg)
		if catalog.SQLState(err) == "55006" { // another instance was faster
			continue
		}
		return err
	}
}

// standby waits while another connection holds the slot. It asks the catalog,
// and not START_REPLICATION, which would fill the server's log.
func (s *session) standby(ctx context.Context) error {
	for {
		qctx, cancel := context.WithTimeout(ctx, connectTimeout)
		slot, ok, err := s.watcher.Slot(qctx, s.r.cfg.Slot)
		cancel()
		if err != nil {
			return fmt.Errorf("look at the slot: %w", err)
		}
		if !ok || !slot.Active {
			return nil
		}
		s.r.setState(StateStandby, fmt.Sprintf("slot %q is in use by the connection with process id %d; taking over when it is free", slot.Name, slot.ActivePID))
		if err := s.watcher.Wait(ctx, s.r.cfg.StandbyInterval); err != nil {
			return fmt.Errorf("stand by: %w", err)
		}
	}
}

func (s *session) tryStart(ctx context.Context, cfg *pgconn.Config) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout+storeTimeout)
	defer cancel()
	conn, err := replication.Connect(ctx, replication.Config{
		Postgres: cfg, ApplicationName: s.r.cfg.ApplicationName, RuntimeParams: s.r.cfg.RuntimeParams,
		StatusInterval: s.r.cfg.StatusInterval, SilenceTimeout: s.r.cfg.SilenceTimeout,
		MaxMessageBytes: s.r.cfg.MaxRowBytes, OnNotice: s.onNotice,
		MessagePrefix: s.r.messagePrefix(),
		CoalesceReads: s.r.cfg.CoalesceReads, Naps: &s.r.naps, BeforeRead: s.beforeWait,
	})
	if err != nil {
		return err
	}
	plan, err := s.check(ctx, conn)
	if err != nil {
		conn.Close()
		return err
	}
	st, err := conn.Start(ctx, s.r.cfg.Slot, s.r.cfg.Publication, plan.Start)
	if err != nil {
		return err
	}
	// The slot is ours now. Whoever held it between the check and the start may
	// have moved slot and mark, so all is read once more before anything is sent.
	if err := s.recheck(ctx, plan); err != nil {
		st.Close()
		return err
	}
	for _, w := range plan.Warnings {
		s.log.Warn(w)
	}
	s.plan, s.stream = plan, st
	s.router.Know(catalog.Identities{Relations: plan.Mark.Relations}.Roots())
	return nil
}

// check gathers the facts and decides.
func (s *session) check(ctx context.Context, conn *replication.Conn) (preflight.Plan, error) {
	sys, err := conn.Identify(ctx)
	if err != nil {
		return preflight.Plan{}, err
	}
	f, err := gather(ctx, s.watcher, s.r.deps.Store, s.want(), sys.ID, sys.Timeline)
	if err != nil {
		return preflight.Plan{}, err
	}
	s.r.noteServer(f)
	return s.decide(f)
}

// decide asks for the plan, and notes which run of the server it is for.
func (s *session) decide(f preflight.Facts) (preflight.Plan, error) {
	s.startedAt = f.Server.StartedAt
	return preflight.Decide(s.want(), f, s.r.known)
}

// recheck reads slot and mark again, now that nobody else can move them.
func (s *session) recheck(ctx context.Context, plan preflight.Plan) error {
	slot, ok, err := s.watcher.Slot(ctx, s.r.cfg.Slot)
	if err != nil {
		return fmt.Errorf("look at the slot again: %w", err)
	}
	sctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	mark, found, err := s.r.deps.Store.Load(sctx, plan.Mark.SystemID, s.r.cfg.Slot)
	if err != nil {
		return fmt.Errorf("read the mark again: %w", err)
	}
	if !ok || !found || mark.Epoch != plan.Seen.Epoch || slot.Confirmed > plan.Start {
		return errors.New("another instance moved the slot or its mark in the meantime; looking again")
	}
	return nil
}

func (s *session) want() preflight.Want {
	cfg := s.r.cfg
	columns := map[catalog.TableName][]string{}
	for i, name := range tableNames(cfg.Tables) {
		columns[name] = cfg.Tables[i].Columns()
	}
	return preflight.Want{
		Slot: cfg.Slot, Publication: cfg.Publication, Tables: tableNames(cfg.Tables), Columns: columns,
		ApplicationName: cfg.ApplicationName, AllowSynchronous: cfg.AllowSynchronous,
		Messages: cfg.Messages != nil,
	}
}

func tableNames(tables []route.Table) []catalog.TableName {
	var names []catalog.TableName
	for _, t := range tables {
		names = append(names, catalog.TableName{Schema: t.Schema, Name: t.Name})
	}
	return names
}

// gather reads what preflight.Decide wants to know.
func gather(ctx context.Context, c *catalog.Session, store checkpoint.Store, w preflight.Want, systemID string, timeline int32) (preflight.Facts, error) {
	f := preflight.Facts{SystemID: systemID, Timeline: timeline, Now: time.Now(), Gone: map[uint32]bool{}}
	var err error
	if f.Slot, f.HasSlot, err = c.Slot(ctx, w.Slot); err != nil {
		return f, fmt.Errorf("look at slot %q: %w", w.Slot, err)
	}
	sctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if f.Mark, f.HasMark, err = store.Load(sctx, systemID, w.Slot); err != nil {
		return f, fmt.Errorf("read the mark of slot %q: %w", w.Slot, err)
	}
	if len(f.Mark.Gaps) > 0 {
		covered, _, err := store.Load(sctx, systemID, checkpoint.CoverKey(w.Slot))
		if err != nil {
			return f, fmt.Errorf("read which gaps of slot %q are covered: %w", w.Slot, err)
		}
		f.Covered = covered.Gaps
	}
	if !f.HasMark || f.Mark.Withdrawn() {
		if f.Elsewhere, err = store.Others(sctx, systemID, w.Slot); err != nil {
			return f, fmt.Errorf("look for marks of slot %q on other clusters: %w", w.Slot, err)
		}
	}
	// After the mark: the server's position must not be older than it.
	if f.Server, err = c.Server(ctx); err != nil {
		return f, fmt.Errorf("look at the server: %w", err)
	}
	if f.Publication, f.HasPublication, err = c.Publication(ctx, w.Publication); err != nil {
		return f, fmt.Errorf("look at publication %q: %w", w.Publication, err)
	}
	if f.Identities, err = c.Identities(ctx, w.Publication, w.Tables); err != nil {
		return f, fmt.Errorf("look at the tables of publication %q: %w", w.Publication, err)
	}
	if f.Columns, err = c.Columns(ctx, w.Tables); err != nil {
		return f, err
	}
	f.Gone, err = c.Gone(ctx, systemID, w.Slot, f.Mark.Relations, f.Identities.Relations)
	return f, err
}

// onNotice hears the server's notices while streaming. PostgreSQL 18 only warns
// when the publication did not exist at that point of the WAL, and drops the
// rows (pgoutput.c, LoadPublications).
func (s *session) onNotice(n *pgconn.Notice) {
	s.log.Warn("the server sent a notice", zap.String("severity", n.Severity), zap.String("code", n.Code), zap.String("message", n.Message))
	if n.Code == "55000" && n.SeverityUnlocalized == "WARNING" && s.notice == nil {
		s.notice = fmt.Errorf("the server skipped the publication: %s", n.Message)
	}
}

// classify asks fault first, then the PostgreSQL side.
func classify(err error) (fault.Class, string) {
	if errors.Is(err, replication.ErrSilent) {
		return fault.Retry, "silent"
	}
	if errors.Is(err, replication.ErrEnded) {
		return fault.Retry, "ended"
	}
	return catalog.Classify(err)
}

// lsnOr0 reads an atomic LSN.
func lsnOr0(a *atomic.Uint64) pglogrepl.LSN { return pglogrepl.LSN(a.Load()) }
