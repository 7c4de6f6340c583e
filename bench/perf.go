package main

import (
	"context"
	"time"
)

// noPerfTool says why Kafka's own tool is missing.
func (d *drain) noPerfTool(ctx context.Context) string {
	if err := d.PerfTool(ctx); err != nil {
		return err.Error()
	}
	return ""
}

// byPerfTool lets Kafka's producer performance tool write as many records, of the bytes that the relay's have.
func (d *drain) byPerfTool(ctx context.Context, _ int) (outcome, error) {
	topic, err := d.NewTopic(ctx, 6)
	if err != nil {
		return outcome{}, fatalError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	before := d.Broker.CPU()
	p, rate, err := d.RunPerfTool(ctx, topic, d.rows, d.recordSize)
	if err != nil {
		return outcome{}, err
	}
	took := time.Duration(float64(d.rows) / rate * float64(time.Second))
	out := drained(d.rows, took, p.CPU(), p.PeakRSS(), 0)
	sent := d.rows + d.rows/4
	out.figures["cpu_per_million"] = perMillion(p.CPU(), sent)
	out.figures["broker_cpu_per_million"] = perMillion(d.Broker.CPU()-before, sent)
	out.figures["record_bytes"] = float64(d.recordSize)
	return out, d.DeleteTopic(ctx, topic)
}

// byPerfToolBeside is byPerfTool while pg_recvlogical drains: what is left of the machine for a producer while a walsender is busy.
func (d *drain) byPerfToolBeside(ctx context.Context, n int) (outcome, error) {
	beside, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- d.recvlogicalAgainAndAgain(beside) }()
	out, err := d.byPerfTool(ctx, n)
	stop()
	if besideErr := <-done; err == nil {
		err = besideErr
	}
	return out, err
}

// recvlogicalAgainAndAgain drains equal slots until ctx ends.
func (d *drain) recvlogicalAgainAndAgain(ctx context.Context) error {
	own, err := d.NewSession(ctx)
	if err != nil {
		return endOf(ctx, err)
	}
	defer own.Close()
	for ctx.Err() == nil {
		slot, err := own.CopySlot(context.WithoutCancel(ctx), d.backlog.Slot)
		if err != nil {
			return endOf(ctx, err)
		}
		_, drainErr := d.Recvlogical(ctx, slot, d.backlog.End)
		if err := own.DropSlot(context.WithoutCancel(ctx), slot); err != nil {
			return err
		}
		if drainErr != nil {
			return endOf(ctx, drainErr)
		}
	}
	return nil
}

// endOf is err, unless ctx ended, which is meant.
func endOf(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}
