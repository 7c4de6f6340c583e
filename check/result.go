package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cdc-relay/cdc-relay/fault"
)

// Status of a check.
type Status string

const (
	Pass Status = "pass"
	Warn Status = "warn"
	Fail Status = "fail"
	Skip Status = "skip" // it depends on something that failed
)

// Result of one check.
type Result struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

// Failed reports whether a result is a failure.
func Failed(rs []Result) bool {
	for _, r := range rs {
		if r.Status == Fail {
			return true
		}
	}
	return false
}

// report collects results.
type report struct{ results []Result }

func (r *report) add(name string, s Status, fix, format string, args ...any) {
	r.results = append(r.results, Result{Name: name, Status: s, Detail: fmt.Sprintf(format, args...), Fix: fix})
}

func (r *report) pass(name, format string, args ...any) { r.add(name, Pass, "", format, args...) }
func (r *report) skip(name, why string)                 { r.add(name, Skip, "", "%s", why) }

// fails adds an error, with the way out that it carries, or else fix.
func (r *report) fails(name string, err error, fix string) {
	var e *fault.Error
	if !errors.As(err, &e) {
		r.add(name, Fail, fix, "%v", err)
		return
	}
	if e.Fix != "" {
		fix = e.Fix
	}
	bare := *e
	bare.Fix = ""
	r.add(name, Fail, fix, "%v", &bare)
}

// count returns how many results of each status there are.
func count(rs []Result) map[Status]int {
	n := make(map[Status]int)
	for _, r := range rs {
		n[r.Status]++
	}
	return n
}

// WriteText writes the results as a table, each fix below its line.
func WriteText(w io.Writer, rs []Result) error {
	width := 0
	for _, r := range rs {
		width = max(width, len(r.Name))
	}
	var b strings.Builder
	for _, r := range rs {
		mark := string(r.Status)
		if r.Status == Fail {
			mark = "FAIL"
		}
		fmt.Fprintf(&b, "%s  %-*s  %s\n", mark, width, r.Name, r.Detail)
		if r.Fix != "" {
			fmt.Fprintf(&b, "      %-*s  to fix it: %s\n", width, "", r.Fix)
		}
	}
	n := count(rs)
	fmt.Fprintf(&b, "\n%d passed, %d with a warning, %d failed, %d skipped\n", n[Pass], n[Warn], n[Fail], n[Skip])
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the results for a program.
func WriteJSON(w io.Writer, rs []Result) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		OK      bool     `json:"ok"`
		Results []Result `json:"results"`
	}{!Failed(rs), rs})
}
