package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// linesPerSecond is how many events are shown; at higher rates the rest is
// counted only.
const linesPerSecond = 50

// screen prints for a person; plain when it is no terminal. Its methods may be
// called from any goroutine.
type screen struct {
	mu      sync.Mutex
	w       io.Writer
	color   bool
	second  int64 // of the lines counted
	lines   int
	skipped int
}

func newScreen(w io.Writer, color bool) *screen { return &screen{w: w, color: color} }

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// ANSI styles.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

func (s *screen) style(style, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

func (s *screen) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.w, format+"\n", args...)
}

func (s *screen) title(text string) { s.print("%s\n", s.style(bold, text)) }

// part is a line about something that was started.
func (s *screen) part(name, what string, took time.Duration) {
	s.print("  %-12s %s  %s", name, what, s.style(dim, fmt.Sprintf("(%.1f s)", took.Seconds())))
}

func (s *screen) hints(title string, lines ...string) {
	s.print("\n%s", title)
	for _, l := range lines {
		s.print("  %s", s.style(cyan, l))
	}
}

func (s *screen) note(format string, args ...any) {
	s.print("%s", s.style(yellow, "-- "+fmt.Sprintf(format, args...)))
}

func (s *screen) header() {
	s.print("%s", s.style(dim, fmt.Sprintf("  %-12s  %9s  %-8s %-7s %-16s %s", "time", "latency", "at", "key", "type", "payload")))
}

// event is one record as the consumer got it.
func (s *screen) event(e event, a arrival, at time.Time) {
	if !s.admit(at) && !a.OutOfOrder && !a.RolledBack {
		return
	}
	latency := "-"
	if a.Known {
		latency = millis(a.Latency)
	}
	remark := ""
	switch {
	case a.Duplicate:
		remark = s.style(yellow, "  copy, dropped by its id")
	case a.OutOfOrder:
		remark = s.style(red, "  OUT OF ORDER")
	case a.RolledBack:
		remark = s.style(red, "  WAS ROLLED BACK")
	case !a.Known:
		remark = s.style(dim, "  not from this demo")
	}
	s.print("  %s  %s  %-8s %-7s %-16s %s%s", at.Format("15:04:05.000"), s.style(green, fmt.Sprintf("%9s", latency)),
		fmt.Sprintf("%d@%d", e.Partition, e.Offset), clip(e.Key, 7), clip(e.Type, 16), s.style(dim, clip(e.Payload, 90)), remark)
}

// admit counts a line, and tells whether it may be printed.
func (s *screen) admit(at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sec := at.Unix(); sec != s.second {
		s.second, s.lines = sec, 0
	}
	if s.lines++; s.lines > linesPerSecond {
		s.skipped++
		return false
	}
	return true
}

// takeSkipped is how many lines were left out since it was asked last.
func (s *screen) takeSkipped() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.skipped
	s.skipped = 0
	return n
}

func (s *screen) status(c counts) {
	text := fmt.Sprintf("-- %d orders, %d events committed, %d arrived, %d under way, %d duplicates; latency p50 %s, p99 %s",
		c.Orders, c.Committed, c.Arrived, c.Waiting, c.Duplicates, millis(c.P50), millis(c.P99))
	if n := s.takeSkipped(); n > 0 {
		text += fmt.Sprintf("; %d events not shown", n)
	}
	s.print("%s", s.style(bold, text))
}

func (s *screen) problem(err error) {
	s.print("\n%s", s.style(red, "The demo failed: "+err.Error()))
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// clip shortens text from outside to n characters of one line without control
// characters.
func clip(text string, n int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, text)
	if r := []rune(text); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return text
}
