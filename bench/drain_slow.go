package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/debezium"
	"github.com/cdc-relay/cdc-relay/bench/rig"
)

func (d *drain) noDebezium(ctx context.Context) string {
	if err := d.HaveDebezium(ctx); err != nil {
		return err.Error()
	}
	return ""
}

// byDebezium lets Debezium drain the end of the backlog. Its rate is that from the first to the last record that came: the start of the
// JVM and of the connector is not counted, which is in its favour.
func (d *drain) byDebezium(ctx context.Context, _ int) (outcome, error) {
	topic, err := d.NewTopic(ctx, 6)
	if err != nil {
		return outcome{}, fatalError{err}
	}
	slot, err := d.CopySlot(ctx, d.backlog.SlowSlot)
	if err != nil {
		return outcome{}, fatalError{err}
	}
	w, err := d.StartDebezium(ctx, slot, topic, debezium.Throughput)
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = w.Close() }() // its directory is in the run's
	started := time.Now()
	a, err := d.WatchTopic(ctx, topic, d.slowRows, drainLimit, w)
	if err != nil {
		return outcome{}, err
	}
	rows := d.slowRows - int(a.Before)
	if rows < d.slowRows/2 {
		return outcome{}, fmt.Errorf("%d of %d records were there when the first were seen: more rows are needed (-slow-rows)", a.Before, d.slowRows)
	}
	out := drained(rows, a.Last.Sub(a.First), w.CPU()-a.CPU, w.PeakRSS(), 0)
	out.notes = map[string]string{"profile": debezium.Throughput.String()}
	out.figures["until_last_s"] = a.Last.Sub(started).Seconds()
	if late := a.Last.Sub(a.Half).Seconds(); late > 0 {
		// What it does when its JVM has compiled more.
		out.figures["second_half_per_s"] = float64(int64(d.slowRows)-a.AtHalf) / late
	}
	have, err := d.Records(ctx, topic)
	if err == nil && have != int64(d.slowRows) {
		err = fmt.Errorf("%d records in the topic, of %d", have, d.slowRows)
	}
	w.Kill()
	return out, errors.Join(err, d.DropSlot(ctx, slot), d.DeleteTopic(ctx, topic))
}

// byPolling lets the polling relay publish an outbox of its own.
func (d *drain) byPolling(ctx context.Context, _ int) (_ outcome, err error) {
	topic, err := d.NewTopic(ctx, 6)
	if err != nil {
		return outcome{}, fatalError{err}
	}
	if err := d.FillPolling(ctx, d.slowRows, d.size); err != nil {
		return outcome{}, fatalError{err}
	}
	if err := d.Vacuum(ctx, true); err != nil {
		return outcome{}, fatalError{err}
	}
	defer func() { err = errors.Join(err, d.Vacuum(context.WithoutCancel(ctx), false)) }()
	w := d.WatchClient(rig.PollingClient)
	defer w.Stop()
	began := time.Now()
	p, err := d.StartPolling(ctx, topic)
	if err != nil {
		return outcome{}, err
	}
	defer p.KillTree()
	if err := d.WaitPublished(ctx, drainLimit, p); err != nil {
		return outcome{}, err
	}
	out := drained(d.slowRows, time.Since(began), p.CPU(), p.PeakRSS(), 0)
	out.figures["backend_cpu_per_million"] = perMillion(w.CPU(), d.slowRows)
	have, err := d.Records(ctx, topic)
	if err == nil && have != int64(d.slowRows) {
		err = fmt.Errorf("%d records in the topic, of %d", have, d.slowRows)
	}
	p.KillTree()
	return out, errors.Join(err, d.DeleteTopic(ctx, topic))
}
