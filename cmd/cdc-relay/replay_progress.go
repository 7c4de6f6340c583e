package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/progress"
	"github.com/cdc-relay/cdc-relay/replay"
)

// replayProgress looks how far a replay is, and shows it. Its methods belong to one
// goroutine at a time.
type replayProgress struct {
	snapshot func() replay.Progress
	every    time.Duration
	stage    *progress.Stage

	last replay.Progress // a second ago or more
	rate float64         // since then
}

func progressOf(snapshot func() replay.Progress, r *progress.Reporter) *replayProgress {
	return &replayProgress{snapshot: snapshot, every: r.Interval(), stage: r.Stage("connecting", -1, "")}
}

func (p *replayProgress) loop(ctx context.Context) {
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.show(p.snapshot())
		}
	}
}

func (p *replayProgress) show(now replay.Progress) {
	if now.To == 0 {
		return // connecting
	}
	if d := now.Elapsed - p.last.Elapsed; d >= time.Second || p.rate == 0 {
		p.rate = float64(now.EventsAcked-p.last.EventsAcked) / max(d, time.Millisecond).Seconds()
		p.last = now
	}
	total := int64(0)
	if now.From != 0 && now.To > now.From {
		total = int64(now.To - now.From)
	}
	p.stage.Show(int64(now.Acked-now.From), total, progressText(now, p.rate))
}

// progressText is rate, position and what is left.
func progressText(now replay.Progress, rate float64) string {
	if now.From == 0 {
		return fmt.Sprintf("looking for the first transaction of the range; the server has read up to %s", now.Read)
	}
	text := fmt.Sprintf("%d events, %.0f/s, acked up to %s of %s", now.EventsAcked, rate, now.Acked, now.To)
	if left, ok := remaining(now); ok {
		text += ", " + left.Round(time.Second).String() + " left"
	}
	if now.Trouble != "" {
		text += "; " + now.Trouble
	}
	return text
}

// remaining is when the range will be done, by the WAL that was passed so far.
func remaining(now replay.Progress) (time.Duration, bool) {
	done, all := float64(now.Acked-now.From), float64(now.To-now.From)
	if done <= 0 || all <= done || now.Elapsed < time.Second {
		return 0, false
	}
	return time.Duration(float64(now.Elapsed) * (all - done) / done), true
}
