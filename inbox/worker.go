package inbox

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/semaphore"
)

const (
	fetchBytes = 16 << 20
	fetchWait  = 500 * time.Millisecond // bounds how long a worker takes to end, too
	heldBytes  = 32 << 20               // of records that are read, and not settled
)

// worker handles one partition for one generation of the group.
type worker struct {
	r         *Runner
	gen       *kafka.Generation
	topic     string
	partition int
	begin     int64 // where the group says to begin

	stop context.Context // the partition is to be given back
	work context.Context // handlers must end

	// Invariant: committed <= next, and all below next is settled: committed to
	// PostgreSQL with its effect, seen before, or acknowledged by another topic.
	started   atomic.Bool
	next      atomic.Int64
	committed int64

	held *semaphore.Weighted // of heldBytes; acquired by fetch, released behind settle
}

// place is a partition as a key of Runner.ahead.
type place struct {
	topic     string
	partition int
}

func (w *worker) place() place { return place{w.topic, w.partition} }

func (w *worker) observe(e Event) {
	e.Topic, e.Partition = w.topic, w.partition
	w.r.cfg.Observe(e)
}

// run ends when the generation does, or ends it when an offset was refused.
func (w *worker) run() {
	start, ok := w.start()
	if !ok {
		return
	}
	w.committed = start
	w.next.Store(start)
	w.started.Store(true)
	w.observe(Event{Kind: Assigned, Offset: start})
	defer func() { w.observe(Event{Kind: Revoked, Offset: w.next.Load()}) }()

	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: w.r.cfg.Brokers, Dialer: w.r.cluster.dialer, Topic: w.topic, Partition: w.partition,
		QueueCapacity: 1, MinBytes: 1, MaxBytes: fetchBytes, MaxWait: fetchWait,
		ReadBackoffMin: 50 * time.Millisecond, ReadBackoffMax: time.Second,
		OffsetOutOfRangeError: true, // or it waits until the topic is as long, and begins in its middle
	})
	defer func() { _ = reader.Close() }()
	if err := reader.SetOffset(start); err != nil {
		w.observe(Event{Kind: Waiting, Err: err})
		return
	}
	w.held = semaphore.NewWeighted(heldBytes)
	messages := make(chan kafka.Message, w.r.cfg.Batch) // never closed: both ends watch stop
	ctx, cancel := context.WithCancel(w.stop)
	var wg sync.WaitGroup
	wg.Go(func() {
		w.fetch(ctx, reader, messages)
		cancel() // so that collect ends, too
	})
	defer wg.Wait()
	defer cancel()
	for {
		records := w.collect(ctx, messages)
		var held int64
		for _, r := range records {
			held += r.held
		}
		if records == nil || !w.settle(records) {
			return
		}
		w.held.Release(held)
	}
}

// start returns the offset to begin at.
func (w *worker) start() (int64, bool) {
	for pauses := w.r.pauses(); ; {
		p, err := w.r.cluster.end(w.stop, w.topic, w.partition)
		if w.begin < 0 { // also of a topic that was made anew, whose offsets the broker has deleted
			w.r.ahead.Delete(w.place())
		}
		_, ahead := w.r.ahead.Load(w.place())
		switch {
		case err != nil:
			w.observe(Event{Kind: Waiting, Err: err})
		case w.begin < 0:
			return p.FirstOffset, true
		case ahead, w.begin > p.LastOffset:
			// The topic was made anew, or has lost its end. A person resets the offset, and
			// decides about markers by position. It does not go on when the log has grown as long again: what is before
			// would be passed over.
			w.r.ahead.Store(w.place(), true)
			w.observe(Event{Kind: OffsetsAhead, Offset: w.begin, N: max(0, w.begin-p.LastOffset)})
		case w.begin < p.FirstOffset:
			w.observe(Event{Kind: OffsetsLost, Offset: w.begin, N: p.FirstOffset - w.begin})
			return p.FirstOffset, true
		default:
			return w.begin, true
		}
		if !sleep(w.stop, pauses.NextBackOff()) {
			return 0, false
		}
	}
}

// fetch ends when ctx does, or when the partition has not the offset that was to be
// read: it was made anew, has lost its end, or retention has overtaken. start of the next generation tells which.
func (w *worker) fetch(ctx context.Context, reader *kafka.Reader, messages chan<- kafka.Message) {
	for {
		m, err := reader.FetchMessage(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			w.observe(Event{Kind: Waiting, Err: err}) // the reader itself goes on trying
			if errors.Is(err, kafka.OffsetOutOfRange) {
				if p, err := w.r.cluster.end(ctx, w.topic, w.partition); err == nil && w.next.Load() > p.LastOffset {
					w.r.ahead.Store(w.place(), true)
				}
				return
			}
			if !sleep(ctx, 100*time.Millisecond) {
				return
			}
			continue
		}
		if w.held.Acquire(ctx, heldBy(m)) != nil {
			return
		}
		select {
		case messages <- m:
		case <-ctx.Done():
			return
		}
	}
}

// heldBy is what a message counts; one that is larger than all has all of it.
func heldBy(m kafka.Message) int64 {
	n := len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return min(int64(n), heldBytes)
}

// collect waits for a record, and takes what else is there. nil: stop.
func (w *worker) collect(ctx context.Context, messages <-chan kafka.Message) []record {
	var records []record
	add := func(m kafka.Message) {
		if m.Offset < w.next.Load() {
			w.held.Release(heldBy(m))
			return
		}
		r := w.r.reader.read(m)
		r.held = heldBy(m)
		records = append(records, r)
	}
	for records == nil {
		select {
		case <-ctx.Done():
			return nil
		case m := <-messages:
			add(m)
		}
	}
	w.gap(records[0].at)
	for len(records) < w.r.cfg.Batch {
		select {
		case m := <-messages:
			add(m)
		default:
			return records
		}
	}
	return records
}

// gap tells offsets that retention has deleted from those that compaction or markers
// of transactions leave out.
func (w *worker) gap(first int64) {
	next := w.next.Load()
	if first == next {
		return
	}
	if p, err := w.r.cluster.end(w.stop, w.topic, w.partition); err == nil && p.FirstOffset > next {
		w.observe(Event{Kind: OffsetsLost, Offset: next, N: min(first, p.FirstOffset) - next})
	}
}

// settle handles records, together or one by one, and then commits their offset. It
// returns false when the worker must end.
func (w *worker) settle(records []record) bool {
	last := records[len(records)-1].at
	records, ok := w.withoutMarkers(records)
	if !ok {
		return false
	}
	if len(records) > 0 && !w.together(records) {
		for i := range records {
			if !w.alone(&records[i]) {
				w.commit()
				return false
			}
			w.next.Store(records[i].at + 1)
		}
	}
	w.next.Store(last + 1)
	return w.commit()
}

// withoutMarkers leaves out the control records of Kafka's transactions. It asks the
// broker for each that looks like one. false: the worker must end.
func (w *worker) withoutMarkers(records []record) ([]record, bool) {
	kept := records[:0]
	for _, r := range records {
		control := false
		for pauses := w.r.pauses(); r.marker; {
			var err error
			if control, err = w.r.cluster.isControl(w.stop, w.topic, w.partition, r.at); err == nil {
				break
			}
			w.observe(Event{Kind: Waiting, Offset: r.at, Err: err})
			if !sleep(w.stop, pauses.NextBackOff()) {
				return nil, false
			}
		}
		if !control {
			kept = append(kept, r)
		}
	}
	return kept, true
}

// commit tells the group how far all is settled. The broker refuses it when the
// generation is not the current one any more, so a worker that lost its partition moves nothing.
func (w *worker) commit() bool {
	next := w.next.Load()
	if next <= w.committed {
		return true
	}
	err := w.gen.CommitOffsets(map[string]map[int]int64{w.topic: {w.partition: next}})
	if err != nil {
		w.observe(Event{Kind: OffsetRefused, Offset: next, Err: err})
		return false
	}
	w.committed = next
	return true
}
