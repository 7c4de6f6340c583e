package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/debezium"
	"github.com/cdc-relay/cdc-relay/bench/load"
	"github.com/cdc-relay/cdc-relay/bench/rig"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

const (
	// warmUp is written at the same rate before what is measured: JVMs compile, caches fill.
	warmUp = 10 * time.Second
	// lateness is how long events may be on their way after the last was written.
	lateness = 30 * time.Second
	// steadySize is the payload of the steady scenarios, in bytes.
	steadySize = 300
)

// steady is a load at a fixed rate, and what is between the outbox and a consumer.
type steady struct {
	*rig.Rig
	pg                    string
	rate, txRows, seconds int
	partitions            int
	warmRows, rows        int // of the warm-up; in all
	first                 int // number of the first event
	connections           int
}

func newSteady(o options, rate int) *steady {
	s := &steady{pg: o.pg, rate: rate, txRows: 1, seconds: o.seconds, partitions: 6, connections: 8}
	switch {
	case rate >= 20_000:
		s.txRows = 10
	case rate <= 100:
		s.connections = 2
	case rate <= 1000:
		s.connections = 4
	}
	s.warmRows = int(warmUp.Seconds()) * rate
	s.rows = s.warmRows + s.seconds*rate
	return s
}

func steadyGroups(o options) []*group {
	var groups []*group
	for _, rate := range o.rates {
		s := newSteady(o, rate)
		groups = append(groups, &group{scenario: "steady", variant: strconv.Itoa(rate), rounds: o.slowRounds, slowRounds: o.slowRounds, open: s.open,
			params: fmt.Sprintf("seconds=%d tx_rows=%d partitions=%d bytes=%d pg=%s", o.seconds, s.txRows, s.partitions, steadySize, o.pg),
			systems: []*system{
				{name: "control", run: s.byControl, missing: s.noKafka},
				{name: "relay", run: s.byRelay, missing: s.noKafka},
				{name: "debezium", run: s.byTunedDebezium, missing: s.noDebezium},
				{name: "polling", run: s.byPolling, missing: s.noKafka},
			}})
		if rate == barRate {
			g := groups[len(groups)-1]
			g.systems = append(g.systems, &system{name: "debezium-default", run: s.byDefaultDebezium, missing: s.noDebezium})
		}
	}
	return groups
}

func (s *steady) noKafka(context.Context) string {
	if s.NoBroker != nil {
		return s.NoBroker.Error()
	}
	return ""
}

func (s *steady) noDebezium(ctx context.Context) string {
	if err := s.HaveDebezium(ctx); err != nil {
		return err.Error()
	}
	return ""
}

func (s *steady) open(ctx context.Context, env *rig.Env) (func(), error) {
	r, err := env.NewRig(ctx, s.pg, rig.SteadySettings)
	if err != nil {
		return nil, err
	}
	s.Rig = r
	// Each round has a slot of its own, from its beginning on.
	if err := errors.Join(r.DropSlot(ctx, rig.Slot), r.CreatePollingTable(ctx)); err != nil {
		r.Close()
		return nil, err
	}
	if r.NoBroker == nil {
		// Uncounted: at a low rate the broker's JVM would compile for minutes.
		if _, err := s.heating(5000).byControl(ctx, 0); err != nil {
			r.Close()
			return nil, err
		}
	}
	return r.Close, nil
}

// heating is a load of 20 s for JVMs, of which nothing is counted.
func (s *steady) heating(rate int) *steady {
	h := *s
	h.rate, h.txRows, h.connections, h.warmRows, h.rows = rate, 1, 8, 0, 20*rate
	return &h
}

// subject is what is measured; any of its functions may be nil.
type subject struct {
	table     string
	cpu       func() time.Duration
	peakRSS   func() int64
	backend   *rig.Backend
	committed func(n int)
	naps      func() (float64, bool)
}

// snapshot is what was used up to a moment.
type snapshot struct {
	cpu, backend, broker time.Duration
	load                 time.Duration // of this process: writers and consumer
	naps                 float64
	hasNaps              bool
}

func (s *steady) snapshot(x subject) snapshot {
	var p snapshot
	p.broker = s.Broker.CPU()
	p.load = proc.CPUOf(os.Getpid())
	if x.cpu != nil {
		p.cpu = x.cpu()
	}
	if x.backend != nil {
		p.backend = x.backend.CPU()
	}
	if x.naps != nil {
		p.naps, p.hasNaps = x.naps()
	}
	return p
}

// measure writes the load while the subject runs, and consumes what comes out.
func (s *steady) measure(ctx context.Context, topic string, x subject) (outcome, error) {
	ledger := load.NewLedger(s.rows)
	consumer, err := load.Consume(s.Broker.Addr(), topic, s.first, ledger)
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = consumer.Close() }() // asked below
	w := load.Writer{DSN: s.DSN(), Table: x.table, Rate: s.rate, TxRows: s.txRows, Events: s.rows, First: s.first, Size: steadySize, Connections: s.connections,
		Committed: x.committed}
	written := make(chan error, 1)
	go func() { written <- w.Run(ctx, ledger) }()
	select {
	case <-time.After(time.Duration(float64(s.warmRows) / float64(s.rate) * float64(time.Second))):
	case err := <-written:
		return outcome{}, fmt.Errorf("the load ended within the warm-up: %w", err)
	case <-ctx.Done():
		return outcome{}, ctx.Err()
	}
	before := s.snapshot(x)
	if err := <-written; err != nil {
		return outcome{}, err
	}
	after := s.snapshot(x)
	waiting := ledger.Waiting()
	if err := arrived(ctx, ledger); err != nil {
		return outcome{}, err
	}
	if err := consumer.Close(); err != nil {
		return outcome{}, err
	}
	out := latencyFigures(ledger.Since(s.warmRows))
	out.notes["p99_ms_by_second"] = inMilliseconds(ledger.BySecond(s.warmRows))
	s.resources(out.figures, x, before, after)
	out.figures["behind_at_end"] = float64(waiting)
	return out, nil
}

// arrived waits until every event has come, for a while: a system that is slower than the load has its own.
func arrived(ctx context.Context, ledger *load.Ledger) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(lateness); ledger.Waiting() > 0 && time.Now().Before(deadline); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func latencyFigures(l load.Latency) outcome {
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	return outcome{notes: map[string]string{}, figures: map[string]float64{
		"p50_ms": ms(l.P50), "p99_ms": ms(l.P99), "p999_ms": ms(l.P999), "max_ms": ms(l.Max),
		"achieved_per_s": l.PerSecond, "missing": float64(l.Missing), "duplicates": float64(l.Duplicates),
	}}
}

// inMilliseconds lists durations, for the raw rounds.
func inMilliseconds(all []time.Duration) string {
	var parts []string
	for _, d := range all {
		parts = append(parts, fmt.Sprintf("%.1f", float64(d)/1e6))
	}
	return strings.Join(parts, " ")
}

func (s *steady) resources(f map[string]float64, x subject, before, after snapshot) {
	events := s.rows - s.warmRows
	f["broker_cpu_per_million"] = perMillion(after.broker-before.broker, events)
	f["load_cpu_percent"] = 100 * (after.load - before.load).Seconds() / (float64(events) / float64(s.rate))
	if x.cpu != nil {
		f["cpu_per_million"] = perMillion(after.cpu-before.cpu, events)
		f["cpu_percent"] = 100 * (after.cpu - before.cpu).Seconds() / (float64(events) / float64(s.rate))
	}
	if x.backend != nil {
		f["backend_cpu_per_million"] = perMillion(after.backend-before.backend, events)
	}
	if x.peakRSS != nil {
		f["rss_mb"] = float64(x.peakRSS()) / (1 << 20)
	}
	if before.hasNaps && after.hasNaps {
		f["naps"] = after.naps - before.naps
	}
}

// empty makes the outbox tables empty.
func (s *steady) empty(ctx context.Context) error {
	if err := s.Exec(ctx, "TRUNCATE outbox, "+rig.PollingTable, "CHECKPOINT"); err != nil {
		return fatalError{err}
	}
	return nil
}

// begin makes the outbox empty and a topic.
func (s *steady) begin(ctx context.Context) (topic string, err error) {
	if err := s.empty(ctx); err != nil {
		return "", err
	}
	if topic, err = s.NewTopic(ctx, s.partitions); err != nil {
		return "", fatalError{err}
	}
	return topic, nil
}

// byControl commits, and then publishes: the shortest way there is, which loses what was not yet sent when it dies.
func (s *steady) byControl(ctx context.Context, _ int) (outcome, error) {
	topic, err := s.begin(ctx)
	if err != nil {
		return outcome{}, err
	}
	p, err := load.NewProducer(s.Broker.Addr(), topic, steadySize)
	if err != nil {
		return outcome{}, err
	}
	out, err := s.measure(ctx, topic, subject{table: "outbox", committed: p.Send})
	if err = errors.Join(err, p.Close(ctx)); err != nil {
		return outcome{}, err
	}
	return out, s.DeleteTopic(ctx, topic)
}

func (s *steady) byRelay(ctx context.Context, n int) (outcome, error) {
	topic, err := s.begin(ctx)
	if err != nil {
		return outcome{}, err
	}
	o := rig.RelayOptions{Slot: fmt.Sprintf("relay_%d", n), Topic: topic}
	if err := s.SetupRelay(ctx, o); err != nil {
		return outcome{}, err
	}
	relay, err := s.StartRelay(o)
	if err != nil {
		return outcome{}, err
	}
	defer relay.KillTree()
	if err := relay.WaitReady(ctx); err != nil {
		return outcome{}, err
	}
	x := subject{table: "outbox", cpu: relay.CPU, peakRSS: relay.PeakRSS, backend: s.WatchWalsender(o.Slot), naps: func() (float64, bool) {
		m, err := relay.Metrics()
		naps, ok := m["cdc_relay_receive_naps_total"]
		return naps, ok && err == nil
	}}
	defer x.backend.Stop()
	out, err := s.measure(ctx, topic, x)
	if err != nil {
		return outcome{}, err
	}
	if out.figures["missing"] > 0 {
		return outcome{}, fmt.Errorf("%.0f events have not arrived", out.figures["missing"])
	}
	m, err := relay.Metrics()
	if err != nil {
		return outcome{}, err
	}
	out.figures["errors"] = m["cdc_relay_errors_total"]
	if err := relay.Stop(ctx); err != nil {
		return outcome{}, err
	}
	return out, errors.Join(s.DropSlot(ctx, o.Slot), s.DeleteTopic(ctx, topic))
}

func (s *steady) byTunedDebezium(ctx context.Context, n int) (outcome, error) {
	if s.rate >= 20_000 {
		return s.byDebezium(ctx, n, debezium.Throughput) // the other one falls behind sooner
	}
	return s.byDebezium(ctx, n, debezium.Latency)
}

func (s *steady) byDefaultDebezium(ctx context.Context, n int) (outcome, error) {
	return s.byDebezium(ctx, n, debezium.OutOfTheBox)
}

func (s *steady) byDebezium(ctx context.Context, n int, profile debezium.Profile) (outcome, error) {
	topic, err := s.begin(ctx)
	if err != nil {
		return outcome{}, err
	}
	slot := fmt.Sprintf("debezium_%d_%d", profile, n)
	if err := s.Exec(ctx, "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput')"); err != nil {
		return outcome{}, err
	}
	w, err := s.StartDebezium(ctx, slot, topic, profile)
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = w.Close() }() // its directory is in the run's
	if err := s.WaitActive(ctx, slot); err != nil {
		return outcome{}, err
	}
	x := subject{table: "outbox", cpu: w.CPU, peakRSS: w.PeakRSS, backend: s.WatchWalsender(slot)}
	defer x.backend.Stop()
	hot := s.heating(2000)
	if _, err := hot.measure(ctx, topic, x); err != nil {
		return outcome{}, err
	}
	after := *s
	after.first = hot.rows
	out, err := after.measure(ctx, topic, x)
	if err != nil {
		return outcome{}, err
	}
	out.notes["profile"] = profile.String()
	w.Kill()
	return out, errors.Join(s.DropSlot(ctx, slot), s.DeleteTopic(ctx, topic))
}

func (s *steady) byPolling(ctx context.Context, _ int) (outcome, error) {
	topic, err := s.begin(ctx)
	if err != nil {
		return outcome{}, err
	}
	p, err := s.StartPolling(ctx, topic)
	if err != nil {
		return outcome{}, err
	}
	defer p.KillTree()
	x := subject{table: rig.PollingTable, cpu: p.CPU, peakRSS: p.PeakRSS, backend: s.WatchClient(rig.PollingClient)}
	defer x.backend.Stop()
	out, err := s.measure(ctx, topic, x)
	if err != nil {
		return outcome{}, err
	}
	if out.figures["missing"] == 0 {
		if err := s.WaitPublished(ctx, time.Minute, p); err != nil { // the last batch is marked after it has arrived
			return outcome{}, err
		}
	}
	if !p.Alive() {
		return outcome{}, p.Failure()
	}
	return out, s.DeleteTopic(ctx, topic)
}
