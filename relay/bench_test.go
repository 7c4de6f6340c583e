package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/e2e/blackhole"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
	"github.com/cdc-relay/cdc-relay/sink/kafka"
	"github.com/cdc-relay/cdc-relay/sink/null"
)

// pipeline is a session that reads a walsender's frames from a socket, and does
// all that the relay does with them: decode, route, publish, track, save, confirm.
type pipeline struct {
	s       *session
	perTx   int
	rowSize int
}

// startPipeline has read the table's description when it returns.
func startPipeline(tb testing.TB, k sink.Sink, perTx int) *pipeline {
	tb.Helper()
	tables := []route.Table{{
		Schema: "public", Name: "outbox", ID: "id", Key: "aggregateid", Type: "type", Payload: "payload",
		Topic: "outbox.event.{aggregatetype}", IDHeader: "id", Position: true,
	}}
	router, err := route.Compile(tables)
	if err != nil {
		tb.Fatal(err)
	}
	mark := checkpoint.Mark{Slot: "s", Epoch: 1, LSN: benchStart}
	r := New(Config{Slot: "s", MaxAheadTx: 1 << 20, MaxAheadWAL: 1 << 40, Tables: tables, StatusInterval: time.Second, SaveInterval: 100 * time.Millisecond},
		Deps{Log: zap.NewNop(), Store: &memoryStore{mark: mark}})
	r.sink = k
	w := newWalsender(perTx)
	p := &pipeline{perTx: perTx, rowSize: w.size, s: &session{
		r: r, log: zap.NewNop(), sink: k, stream: w.start(tb), dec: decoder.New(), router: router,
		tracker: checkpoint.NewTracker(benchStart), nudge: make(chan struct{}, 1), mark: mark,
		plan: preflight.Plan{Start: benchStart, Mark: mark},
	}}
	p.s.received.Store(benchStart)
	p.s.durable.Store(benchStart)
	p.s.checked.Store(&checkedIdentities{Identities: catalog.Identities{}})
	ctx, cancel := context.WithCancel(tb.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.s.commit(ctx); err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	p.receive(tb, 1)
	return p
}

// counted is a stream that ends, for its reader, after so many messages.
type counted struct {
	stream
	left int
}

func (c *counted) Next() (replication.Message, error) {
	if c.left == 0 {
		return replication.Message{}, errNothing
	}
	c.left--
	return c.stream.Next()
}

// receive reads and publishes so many messages.
func (p *pipeline) receive(tb testing.TB, messages int) {
	if c, ok := p.s.stream.(*counted); ok {
		c.left = messages
	} else {
		p.s.stream = &counted{stream: p.s.stream, left: messages}
	}
	if err := p.s.receive(tb.Context(), tb.Context()); !errors.Is(err, errNothing) {
		tb.Fatal(err)
	}
}

// transactions reads and publishes so many of them.
func (p *pipeline) transactions(tb testing.TB, n int) { p.receive(tb, n*(p.perTx+2)) }

// pipelineSinks are what a pipeline is measured on.
var pipelineSinks = []struct {
	name string
	open func(testing.TB) sink.Sink
}{
	{"null", func(testing.TB) sink.Sink { return null.Open() }},
	{"kafka", func(tb testing.TB) sink.Sink { return openBlackhole(tb, blackhole.Start(tb, 6), "none") }},
	{"lz4", func(tb testing.TB) sink.Sink { return openBlackhole(tb, blackhole.Start(tb, 6), "lz4") }},
}

func openBlackhole(tb testing.TB, b *blackhole.Broker, codec string) sink.Sink {
	tb.Helper()
	cluster, err := broker.Open(broker.Config{Brokers: b.Addrs()})
	if err != nil {
		tb.Fatal(err)
	}
	k, err := kafka.Open(tb.Context(), kafka.Config{Cluster: cluster, Compression: codec})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		k.Close()
		cluster.Close()
	})
	return k
}

// BenchmarkPipeline takes events from the bytes of a replication stream to the
// sink's acks; its operation is an event. The server and the broker, which do
// next to nothing, run in the same process.
func BenchmarkPipeline(b *testing.B) {
	for _, k := range pipelineSinks {
		for _, perTx := range []int{1, 10, 1000} {
			b.Run(fmt.Sprintf("sink=%s/perTx=%d", k.name, perTx), func(b *testing.B) {
				sk := k.open(b)
				p := startPipeline(b, sk, perTx)
				p.transactions(b, max(1, 50_000/perTx)) // to a steady state
				b.SetBytes(int64(p.rowSize))
				b.ReportAllocs()
				b.ResetTimer()
				p.transactions(b, (b.N+perTx-1)/perTx)
				if err := sk.Drain(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
				if st := sk.Stats(); st.Requests > 0 {
					b.ReportMetric(float64(st.Published)/float64(st.Requests), "records/request")
				}
			})
		}
	}
}
