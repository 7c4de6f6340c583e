// Package progress tells a person how far a long command has come: a bar on a
// terminal, plain lines now and then anywhere else.
package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

const (
	// lineInterval is how often a stage says where it is when there is no terminal.
	lineInterval = 10 * time.Second
	// barInterval is how often a bar is worth to be drawn.
	barInterval = 200 * time.Millisecond
)

// Reporter tells of one stage after the other. Its methods, and those of a
// stage, may be called from any goroutine; there is one stage at a time.
type Reporter struct {
	w        io.Writer
	terminal bool
	interval time.Duration
	now      func() time.Time
}

// New returns a reporter that writes to w: bars when that is a terminal, else
// lines.
func New(w io.Writer) *Reporter {
	r := &Reporter{w: w, interval: lineInterval, now: time.Now}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		r.terminal = true
	}
	return r
}

// Every sets how often a stage says where it is when there is no terminal.
func (r *Reporter) Every(d time.Duration) *Reporter {
	r.interval = d
	return r
}

// Interval is how often whoever looks by itself where a stage is calls Show.
func (r *Reporter) Interval() time.Duration {
	if r.terminal {
		return barInterval
	}
	return r.interval
}

// Say prints a line between stages.
func (r *Reporter) Say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.w, format+"\n", args...)
}

// Stage is something that is under way.
type Stage struct {
	r       *Reporter
	name    string
	unit    string
	total   int64 // -1: not known
	started time.Time
	bar     *progressbar.ProgressBar // nil without a terminal

	mu   sync.Mutex
	done int64
	told time.Time
}

// Stage begins something of total units; -1 when that is not known. The name and
// the unit are for a person: "read the table", "rows"; the unit is "" where Show
// says all that there is to say.
func (r *Reporter) Stage(name string, total int64, unit string) *Stage {
	if total <= 0 {
		total = -1
	}
	now := r.now()
	s := &Stage{r: r, name: name, unit: unit, total: total, started: now, told: now}
	if r.terminal {
		options := []progressbar.Option{
			progressbar.OptionSetWriter(r.w), progressbar.OptionSetDescription(name),
			progressbar.OptionThrottle(barInterval / 2), progressbar.OptionSetWidth(20),
			progressbar.OptionSpinnerType(14), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetElapsedTime(unit != ""), progressbar.OptionSetPredictTime(unit != ""),
		}
		if unit != "" {
			options = append(options, progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString(unit))
		}
		s.bar = progressbar.NewOptions64(total, options...)
	}
	return s
}

// Add says that n more units are done. It is cheap, but not free: call it for
// many at a time.
func (s *Stage) Add(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done += n
	if s.bar != nil {
		// An estimate may have been too low, and a bar that is full is finished.
		if s.total > 0 && s.done >= s.total {
			s.total = s.done + s.done/10
			s.bar.ChangeMax64(s.total)
		}
		_ = s.bar.Set64(s.done)
		return
	}
	if now := s.r.now(); now.Sub(s.told) >= s.r.interval {
		s.told = now
		s.r.Say("%s", s.line(now))
	}
}

// Show says that done of total is done, total zero for not known yet, and how that
// reads: behind the bar, or as a line at each call. It is for whoever looks by
// itself where the stage is, every Reporter.Interval.
func (s *Stage) Show(done, total int64, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar == nil {
		s.r.Say("%s", text)
		return
	}
	if total > 0 {
		s.bar.ChangeMax64(total)
		_ = s.bar.Set64(min(done, total-1)) // a bar that is full is finished
	}
	s.bar.Describe(text)
}

// Close takes the bar away, and leaves no line.
func (s *Stage) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear()
	}
}

// End finishes the stage, and leaves one line of it.
func (s *Stage) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Finish()
	}
	took := s.r.now().Sub(s.started)
	s.r.Say("%s: %d %s in %s", s.name, s.done, s.unit, took.Round(100*time.Millisecond))
}

// line is the stage in words: "read the table: 1200000 of about 10000000 rows,
// 120000/s, 1m13s left".
func (s *Stage) line(now time.Time) string {
	took := now.Sub(s.started).Seconds()
	rate := float64(s.done) / max(took, 0.001)
	if s.total < 0 || s.done >= s.total {
		return fmt.Sprintf("%s: %d %s, %.0f/s", s.name, s.done, s.unit, rate)
	}
	left := "unknown time"
	if rate > 0 {
		left = time.Duration(float64(s.total-s.done) / rate * float64(time.Second)).Round(time.Second).String()
	}
	return fmt.Sprintf("%s: %d of about %d %s, %.0f/s, %s left", s.name, s.done, s.total, s.unit, rate, left)
}
