package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/rig"
)

// drainLimit bounds one drain.
const drainLimit = 15 * time.Minute

// drain is a backlog that each system drains from a slot of equal content.
type drain struct {
	*rig.Rig
	rows, slowRows, txRows, size int
	pg                           string
	backlog                      rig.Backlog
	recordSize                   int // mean bytes of the relay's records
}

func drainName(size, txRows int) string { return fmt.Sprintf("%s/tx%d", sizeName(size), txRows) }

func sizeName(size int) string {
	if size%1024 == 0 {
		return fmt.Sprintf("%dKiB", size/1024)
	}
	return fmt.Sprintf("%dB", size)
}

func drainGroups(o options, quick bool) []*group {
	var groups []*group
	for _, size := range o.sizes {
		for _, txRows := range o.txRows {
			d := &drain{rows: o.rows, slowRows: min(o.slowRows, o.rows), txRows: txRows, size: size, pg: o.pg}
			g := &group{scenario: "drain", variant: drainName(size, txRows), params: fmt.Sprintf("rows=%d slow_rows=%d pg=%s", o.rows, d.slowRows, o.pg),
				rounds: o.rounds, slowRounds: o.slowRounds, open: d.open}
			if quick {
				g.params = fmt.Sprintf("rows=%d pg=%s", o.rows, o.pg)
			}
			g.systems = d.systems(quick)
			groups = append(groups, g)
		}
	}
	return groups
}

func (d *drain) systems(quick bool) []*system {
	all := []*system{
		{name: "pg_recvlogical", run: d.byRecvlogical},
		{name: "null", run: d.byNull},
		{name: "kafka", run: d.byKafka, missing: d.noKafka},
	}
	if !quick && d.size == 300 {
		all = append(all, &system{name: "null-off", run: d.byNullOff, missing: d.noCoalesce})
	}
	// In the quick run these only say whether the bar of the relay to Kafka applies.
	all = append(all, &system{name: "perf-beside", run: d.byPerfToolBeside, missing: d.noPerfTool, slow: quick})
	if !quick {
		all = append(all, &system{name: "perf", run: d.byPerfTool, missing: d.noPerfTool},
			&system{name: "debezium", run: d.byDebezium, missing: d.noDebezium, slow: true},
			&system{name: "polling", run: d.byPolling, missing: d.noKafka, slow: true})
	}
	return all
}

func (d *drain) noKafka(context.Context) string {
	if d.NoBroker != nil {
		return d.NoBroker.Error()
	}
	return ""
}

// open commits the backlog, and lets the relay drain it once uncounted: the broker's JVM compiles what it needs.
func (d *drain) open(ctx context.Context, env *rig.Env) (func(), error) {
	r, err := env.NewRig(ctx, d.pg, rig.DrainSettings)
	if err != nil {
		return nil, err
	}
	d.Rig = r
	if d.backlog, err = r.Fill(ctx, d.rows, d.slowRows, d.txRows, d.size); err != nil {
		r.Close()
		return nil, err
	}
	if r.NoBroker == nil {
		if _, err := d.byKafka(ctx, 0); err != nil {
			r.Close()
			return nil, err
		}
	}
	return r.Close, nil
}

// byRecvlogical lets pg_recvlogical read the backlog and drop it.
func (d *drain) byRecvlogical(ctx context.Context, _ int) (outcome, error) {
	slot, err := d.CopySlot(ctx, d.backlog.Slot)
	if err != nil {
		return outcome{}, fatalError{err}
	}
	limited, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	w := d.WatchWalsender(slot)
	began := time.Now()
	p, err := d.Recvlogical(limited, slot, d.backlog.End)
	took := time.Since(began)
	served := w.Stop()
	if err != nil {
		return outcome{}, err
	}
	out := drained(d.rows, took, p.CPU(), p.PeakRSS(), served)
	return out, d.DropSlot(ctx, slot)
}

func (d *drain) byNull(ctx context.Context, _ int) (outcome, error) {
	return d.byRelay(ctx, rig.RelayOptions{Null: true})
}

// coalesceOff switches off reading a busy stream in few large pieces.
const coalesceOff = "coalesce_reads: off"

func (d *drain) byNullOff(ctx context.Context, _ int) (outcome, error) {
	return d.byRelay(ctx, rig.RelayOptions{Null: true, Source: []string{coalesceOff}})
}

func (d *drain) noCoalesce(ctx context.Context) string {
	if !d.Accepts(ctx, coalesceOff) {
		return "this relay's configuration does not know source." + coalesceOff
	}
	return ""
}

func (d *drain) byKafka(ctx context.Context, _ int) (outcome, error) {
	topic, err := d.NewTopic(ctx, 6)
	if err != nil {
		return outcome{}, fatalError{err}
	}
	before := d.Broker.CPU()
	out, err := d.byRelay(ctx, rig.RelayOptions{Topic: topic})
	if err != nil {
		return outcome{}, err
	}
	out.figures["broker_cpu_per_million"] = perMillion(d.Broker.CPU()-before, d.rows)
	have, err := d.Records(ctx, topic)
	if err != nil {
		return outcome{}, err
	}
	if d.recordSize == 0 {
		if d.recordSize, err = d.RecordSize(ctx, topic); err != nil {
			return outcome{}, err
		}
	}
	if have != int64(d.rows) {
		return outcome{}, fmt.Errorf("%d records in the topic, of %d", have, d.rows)
	}
	return out, d.DeleteTopic(ctx, topic)
}

// byRelay runs the relay from its start until all is published, saved and confirmed.
func (d *drain) byRelay(ctx context.Context, o rig.RelayOptions) (outcome, error) {
	var err error
	if o.Slot, err = d.CopySlot(ctx, d.backlog.Slot); err != nil {
		return outcome{}, fatalError{err}
	}
	if err := d.PrepareRelay(ctx, o); err != nil {
		return outcome{}, err
	}
	w := d.WatchWalsender(o.Slot)
	defer w.Stop()
	began := time.Now()
	relay, err := d.StartRelay(o)
	if err != nil {
		return outcome{}, err
	}
	defer relay.KillTree()
	if err := d.WaitConfirmed(ctx, o.Slot, d.backlog.End, drainLimit, relay); err != nil {
		return outcome{}, err
	}
	took := time.Since(began)
	out := drained(d.rows, took, relay.CPU(), relay.PeakRSS(), w.CPU())
	m, err := relay.Metrics()
	if err != nil {
		return outcome{}, err
	}
	if requests := m["cdc_relay_produce_requests_total"]; requests > 0 {
		out.figures["records_per_request"] = float64(d.rows) / requests
	}
	if naps, ok := m["cdc_relay_receive_naps_total"]; ok {
		out.figures["naps"] = naps
	}
	if err := relay.Stop(ctx); err != nil {
		return outcome{}, err
	}
	return out, d.DropSlot(ctx, o.Slot)
}

// drained are the figures of a drain.
func drained(rows int, took, cpu time.Duration, rss int64, walsender time.Duration) outcome {
	f := map[string]float64{
		"rows":            float64(rows),
		"seconds":         took.Seconds(),
		"rows_per_s":      float64(rows) / took.Seconds(),
		"cpu_per_million": perMillion(cpu, rows),
		"rss_mb":          float64(rss) / (1 << 20),
	}
	if walsender > 0 {
		f["walsender_cpu_per_million"] = perMillion(walsender, rows)
	}
	return outcome{figures: f}
}

func perMillion(cpu time.Duration, rows int) float64 { return cpu.Seconds() / float64(rows) * 1e6 }
