// Package kafka publishes to Apache Kafka.
//
// A lane per topic-partition appends each record, encoded, straight into an open
// record batch. The batch leaves when nothing of the lane is in flight and a
// sender of the partition's leader is free, or waits, growing, until that is so.
// One batch of a lane is in flight at a time, and nothing passes it until it is
// acked or parked: an error that is not proven fatal is tried again for ever,
// with the same bytes. Each batch carries a producer id, an epoch and a
// sequence, by which a broker recognises one that it has: see identity.go.
//
// # Authorization of a topic
//
// TOPIC_AUTHORIZATION_FAILED halts the lanes of that topic, with a reason that
// status shows, and heals by itself when the privilege is granted: it is tried
// again every few seconds. Only what concerns the connection as a whole
// (credentials, TLS, versions) fails the sink.
//
// # Memory
//
// Everything that grows with the records is counted against the budget, by
// capacity: batch buffers, also empty ones that are kept for reuse, notes and
// runs beside them, and room for the compressed copy. kafka-go makes no copy:
// see produceRequest.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Config of a Sink. Zero values take the defaults named.
type Config struct {
	Cluster  *broker.Cluster // required; it is not closed by the sink
	ClientID string          // default "cdc-relay"

	Compression string // none, gzip, snappy, lz4 or zstd; default none
	// MaxBatchBytes bounds a batch before compression; a larger record travels
	// alone. Default 900 KiB.
	MaxBatchBytes int
	BudgetBytes   int64 // default 64 MiB

	RequestTimeout time.Duration // of a produce request; the broker gets half; default 30 s
	RetryMin       time.Duration // first pause between attempts; default 50 ms
	RetryMax       time.Duration // longest; default 1 s
	// LookInterval is how often topics in use are looked at for new partitions;
	// default 5 s.
	LookInterval time.Duration
	// HealInterval is how often a topic is tried to which the privilege is
	// missing; default 3 s.
	HealInterval time.Duration
	// IdleTimeout is when the state of an idle lane is let go; default 1 min.
	IdleTimeout time.Duration

	Refused sink.Refused // nil halts
	Log     *zap.Logger  // nil is silent
}

func (c Config) withDefaults() Config {
	if c.ClientID == "" {
		c.ClientID = "cdc-relay"
	}
	if c.MaxBatchBytes <= 0 {
		c.MaxBatchBytes = 900 << 10
	}
	if c.BudgetBytes <= 0 {
		c.BudgetBytes = 64 << 20
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&c.RequestTimeout, 30 * time.Second}, {&c.RetryMin, 50 * time.Millisecond}, {&c.RetryMax, time.Second},
		{&c.LookInterval, 5 * time.Second}, {&c.HealInterval, 3 * time.Second}, {&c.IdleTimeout, time.Minute},
	} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	c.RetryMax = max(c.RetryMax, c.RetryMin)
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	return c
}

// Sink publishes to Kafka; see sink.Sink.
type Sink struct {
	cfg    Config
	codec  compress.Compression
	factor int64 // 2 when room for a compressed copy is kept

	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine of the sink

	lookNow chan struct{} // nudges the resolver; holds one
	wakeNow chan struct{} // nudges the waker; holds one
	nameNow chan struct{} // nudges the identifier; holds one

	mu       sync.Mutex // guards all below, and what hangs on it
	pool     pool
	topics   map[string]*topic
	unsent   []*lane // idle with records: the next flush moves them on
	last     *topic  // of the last record
	senders  map[int32]*sender
	pauses   pauseHeap
	who      producer                      // what a lane begins as; noProducer until there is an id
	retired  map[string]map[int32]producer // of topics that were let go, by partition
	records  int                           // taken and not settled
	flying   int                           // batches owned by a sender or by a refusal
	active   int                           // lanes with records
	refresh  bool
	changed  chan struct{} // closed at the next settlement; nil when nobody waits
	closed   bool
	err      error
	failed   chan struct{} // closed when err is set
	refusals context.Context
	endRefs  context.CancelFunc
	count    counters
	warn     warnLimit
}

var _ sink.Sink = (*Sink)(nil)

// Open starts a sink. It returns an error of class fault.Stop when the cluster
// says that a person must act (credentials, TLS, configuration). A cluster that
// is away is no error: it is looked for in the background.
func Open(ctx context.Context, cfg Config) (*Sink, error) {
	cfg = cfg.withDefaults()
	codec, err := parseCodec(cfg.Compression)
	if err != nil {
		return nil, &fault.Error{Class: fault.Stop, What: "open the Kafka sink", Fix: "correct kafka.compression", Err: err}
	}
	if err := ping(ctx, cfg); err != nil {
		return nil, err
	}
	s := &Sink{
		cfg: cfg, codec: codec, factor: 1,
		lookNow: make(chan struct{}, 1), wakeNow: make(chan struct{}, 1), nameNow: make(chan struct{}, 1),
		who: noProducer, retired: make(map[string]map[int32]producer),
		pool: newPool(), topics: make(map[string]*topic), senders: make(map[int32]*sender),
		failed: make(chan struct{}), count: newCounters(),
	}
	if codec != compress.None {
		s.factor = 2
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.refusals, s.endRefs = context.WithCancel(s.ctx)
	s.wg.Go(s.resolve)
	s.wg.Go(s.wake)
	s.wg.Go(s.identify)
	return s, nil
}

// ping asks for the cause before kafka-go hides it.
func ping(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err := cfg.Cluster.Ping(ctx)
	if err == nil {
		return nil
	}
	if fault.ClassOf(err) == fault.Stop {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
		return cause
	}
	cfg.Log.Warn("Kafka cannot be reached yet; trying on", zap.Error(err))
	return nil
}

// fail ends the sink with a reason that a person must settle. s.mu is held.
func (s *Sink) fail(err error) {
	if s.err != nil || s.closed {
		return
	}
	if fault.ClassOf(err) != fault.Stop {
		err = &fault.Error{Class: fault.Stop, Err: err}
	}
	s.err = err
	close(s.failed)
	s.notify()
	for _, w := range s.senders {
		w.cond.Broadcast()
	}
}

// Failed is closed when the sink cannot go on.
func (s *Sink) Failed() <-chan struct{} { return s.failed }

// Err tells why the sink cannot go on, nil while it can.
func (s *Sink) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// usable returns why nothing can be published any more. s.mu is held.
func (s *Sink) usable() error {
	if s.closed {
		return sink.ErrClosed
	}
	return s.err
}

// notify wakes all who wait for a change. s.mu is held.
func (s *Sink) notify() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// await releases s.mu until something has changed or ctx ends, and takes it
// again.
func (s *Sink) await(ctx context.Context) error {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	ch := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Drain waits until all is acked or parked; see sink.Sink.
func (s *Sink) Drain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flush()
	for {
		switch {
		case s.records == 0:
			return nil
		case s.usable() != nil:
			return s.usable()
		case s.onlyHalted():
			return sink.ErrHalted
		}
		if err := s.await(ctx); err != nil {
			return fmt.Errorf("drain: %d records are not acked: %w", s.records, err)
		}
	}
}

// onlyHalted tells that all records left are behind halted lanes.
func (s *Sink) onlyHalted() bool {
	if s.flying > 0 {
		return false
	}
	all := true
	for _, t := range s.topics {
		t.each(func(ln *lane) { all = all && (ln.records == 0 || ln.halted != nil) })
	}
	return all
}

// Abort drops what is queued and waits for the requests in flight; see
// sink.Sink.
func (s *Sink) Abort(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	for s.flying > 0 {
		if s.closed {
			return sink.ErrClosed
		}
		if err := s.await(ctx); err != nil {
			return fmt.Errorf("abort: %d requests are still in flight: %w", s.flying, err)
		}
	}
	return nil
}

// drop forgets every record that is not in flight. s.mu is held.
func (s *Sink) drop() {
	s.endRefs() // ask no more what becomes of a refused record
	s.refusals, s.endRefs = context.WithCancel(s.ctx)
	for _, t := range s.topics {
		t.next = 0
		t.each(s.dropLane)
	}
	s.flush() // there is nothing left to send
	s.notify()
}

func (s *Sink) dropLane(ln *lane) {
	stay := 0
	if ln.busy() {
		ln.queue[0].dropped = true
		stay = 1
	} else if len(ln.queue) > 0 && ln.queue[0].unsure {
		s.renew(ln) // what follows must not be taken for what is dropped
	}
	for _, b := range ln.queue[stay:] {
		s.pool.release(b)
	}
	clear(ln.queue[stay:])
	ln.queue = ln.queue[:stay]
	ln.open = nil
	s.uncount(ln, ln.records)
	if !ln.busy() {
		ln.state = laneIdle
		ln.pause++
	}
	ln.ok()
	ln.idleSince = time.Now()
}

// Close aborts and ends every goroutine of the sink; the cluster's connections
// stay the caller's.
func (s *Sink) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	if first {
		s.drop()
		s.cancel() // interrupts the requests in flight
		for _, w := range s.senders {
			w.cond.Broadcast()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
