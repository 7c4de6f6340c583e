package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/cdc-relay/cdc-relay/replay"
)

// replayProgress shows how far a replay is: a bar on a terminal, else a line now
// and then. Its methods belong to one goroutine at a time.
type replayProgress struct {
	snapshot func() replay.Progress
	out      io.Writer
	every    time.Duration
	bar      *progressbar.ProgressBar // nil without a terminal

	last replay.Progress // a second ago or more
	rate float64         // since then
}

func (a *app) progressOf(r *replay.Replay, f replayFlags) *replayProgress {
	p := &replayProgress{snapshot: r.Progress, out: a.err, every: f.every}
	if file, ok := a.err.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.every = 200 * time.Millisecond
		p.bar = progressbar.NewOptions64(1, progressbar.OptionSetWriter(file), progressbar.OptionFullWidth(),
			progressbar.OptionSetDescription("connecting"), progressbar.OptionSetElapsedTime(false), progressbar.OptionSetPredictTime(false))
	}
	return p
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
	if d := now.Elapsed - p.last.Elapsed; d >= time.Second || p.bar == nil {
		p.rate = float64(now.EventsAcked-p.last.EventsAcked) / max(d, time.Millisecond).Seconds()
		p.last = now
	}
	text := progressText(now, p.rate)
	if p.bar == nil {
		_, _ = fmt.Fprintln(p.out, text)
		return
	}
	if now.From != 0 && now.To > now.From {
		p.bar.ChangeMax64(int64(now.To - now.From))
		_ = p.bar.Set64(min(int64(now.Acked-now.From), int64(now.To-now.From)-1))
	}
	p.bar.Describe(text)
}

// close ends the bar, so that what follows begins a line.
func (p *replayProgress) close(done bool) {
	if p.bar == nil {
		return
	}
	if done {
		_ = p.bar.Finish()
	} else {
		_ = p.bar.Exit()
	}
	_, _ = fmt.Fprintln(p.out)
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
