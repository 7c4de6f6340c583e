package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/admin"
	"github.com/cdc-relay/cdc-relay/check"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/sink"
)

const askRelayTimeout = 2 * time.Second

// statusReport is what status prints. A part that is nil is not known, and Problems
// says why.
type statusReport struct {
	Server     *serverStatus `json:"server,omitempty"`
	Slot       *slotStatus   `json:"slot,omitempty"`
	Mark       *markStatus   `json:"mark,omitempty"`
	History    *historyRange `json:"history,omitempty"` // where one is kept, or was left behind
	LagBytes   *int64        `json:"lag_bytes"`
	LagSeconds *float64      `json:"lag_seconds"` // only a running relay knows
	Gaps       []admin.Gap   `json:"gaps"`
	Relay      *admin.State  `json:"relay,omitempty"` // when one answers at admin.listen
	Problems   []string      `json:"problems,omitempty"`
}

type serverStatus struct {
	Version  string `json:"version"`
	Database string `json:"database"`
	SystemID string `json:"system_id"`
	Timeline int32  `json:"timeline"`
	LSN      string `json:"lsn"`
}

type slotStatus struct {
	Name          string `json:"name"`
	Active        bool   `json:"active"`
	ActivePID     int32  `json:"active_pid,omitempty"`
	WALStatus     string `json:"wal_status"`
	Confirmed     string `json:"confirmed"`
	Restart       string `json:"restart"`
	RetainedBytes int64  `json:"retained_bytes"`
	SafeWALBytes  *int64 `json:"safe_wal_bytes,omitempty"`
}

type markStatus struct {
	LSN      string    `json:"lsn"`
	Epoch    uint64    `json:"epoch"`
	Timeline int32     `json:"timeline"`
	SavedAt  time.Time `json:"saved_at"`
	Intent   bool      `json:"intent,omitempty"`
}

func (a *app) statusCommand(o *options) *cobra.Command {
	var asJSON bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the slot, positions, lag, mark and open gaps",
		Long: `Show the slot, positions, lag, mark and open gaps, from the database and the mark's
store; so it works when the relay is not running. When one answers at admin.listen,
its state is added, and the lag in seconds, which nobody else knows. The exit code
is 1 when database or mark could not be asked.`,
		Example: "  cdc-relay status\n  cdc-relay status --json | jq .lag_bytes",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usagef("--timeout must be longer than 0")
			}
			cfg, err := a.loadToConnect(o)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return a.status(ctx, cfg, timeout, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "how long the database, the brokers and the mark may take, each")
	return cmd
}

func (a *app) status(ctx context.Context, cfg config.Config, timeout time.Duration, asJSON bool) error {
	src, closeAll, err := sources(cfg, timeout)
	if err != nil {
		return err
	}
	defer closeAll()
	w := checkWant(cfg)
	w.Publish, w.Brokers = false, w.MarkTopic != "" // of Kafka only the mark
	rep := newReport(w, check.Gather(ctx, w, src), askRelay(ctx, cfg))
	if asJSON {
		err = writeJSON(a.out, rep)
	} else {
		err = rep.write(a.out)
	}
	if err == nil && len(rep.Problems) > 0 {
		err = errFailed
	}
	return err
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func newReport(w check.Want, f check.Facts, running *admin.State) *statusReport {
	rep := &statusReport{Gaps: []admin.Gap{}, Relay: running}
	problem := func(format string, args ...any) { rep.Problems = append(rep.Problems, fmt.Sprintf(format, args...)) }
	if running != nil && running.Slot != w.Preflight.Slot {
		problem("at admin.listen answers a relay of another slot, %q", running.Slot)
		rep.Relay = nil
	}
	if rep.Relay != nil {
		rep.LagSeconds = &running.LagSeconds
	}
	switch {
	case f.DatabaseErr != nil:
		problem("database: %v", f.DatabaseErr)
	default:
		rep.database(w, f, problem)
	}
	switch {
	case f.DatabaseErr != nil:
		problem("mark: not read, since its key is the database's system identifier")
	case f.BrokersErr != nil:
		problem("mark: %v", f.BrokersErr)
	case f.StoreErr != nil:
		problem("mark: %v", f.StoreErr)
	case !f.HasMark && len(f.Elsewhere) > 0:
		if f.HasSlot { // else it is said already
			problem("%v", f.Begin(w))
		}
	case !f.HasMark:
		problem("there is no mark for slot %q; run cdc-relay setup", w.Preflight.Slot)
	default:
		rep.Mark = &markStatus{LSN: f.Mark.LSN.String(), Epoch: f.Mark.Epoch, Timeline: f.Mark.Timeline, SavedAt: f.Mark.SavedAt, Intent: f.Mark.Intent}
		for i, g := range admin.Gaps(f.Mark.Gaps) {
			if len(checkpoint.Uncovered(f.Mark.Gaps[i:i+1], f.Covered)) == 0 {
				g.Reason += " (a backfill has published its rows; the relay closes it at its next start)"
			}
			rep.Gaps = append(rep.Gaps, g)
		}
		switch {
		case f.HasSlot && f.Mark.Intent && f.Mark.Backfill != nil:
			problem("%v", preflight.Backfilling(w.Preflight.Slot, *f.Mark.Backfill))
		case f.HasSlot: // else it is said already
			if err := f.Disagrees(w); err != nil {
				problem("%v", err)
			}
		}
	}
	return rep
}

func (rep *statusReport) database(w check.Want, f check.Facts, problem func(string, ...any)) {
	rep.Server = &serverStatus{Version: f.Server.Version, Database: f.Server.Database, SystemID: f.Server.SystemID,
		Timeline: f.Server.Timeline, LSN: f.Server.CurrentLSN.String()}
	if !f.HasSlot {
		// Beside a mark setup makes no slot; run says what to do.
		if err := f.Begin(w); (f.HasMark || len(f.Elsewhere) > 0) && err != nil {
			problem("%v", err)
		} else if unread := f.StoreErr != nil || w.MarkTopic != "" && f.BrokersErr != nil; unread {
			problem("slot %q does not exist; whether it ever did is in its mark, which could not be read", w.Preflight.Slot)
		} else {
			problem("slot %q does not exist; run cdc-relay setup", w.Preflight.Slot)
		}
		return
	}
	s := f.Slot
	rep.Slot = &slotStatus{Name: s.Name, Active: s.Active, ActivePID: s.ActivePID, WALStatus: s.WALStatus,
		Confirmed: s.Confirmed.String(), Restart: s.Restart.String(),
		RetainedBytes: behind(f.Server.CurrentLSN, s.Restart), SafeWALBytes: s.SafeWALSize}
	lag := behind(f.Server.CurrentLSN, s.Confirmed)
	rep.LagBytes = &lag
	rep.history(w, f)
}

// behind is how many bytes at is behind end; 0 when it is not known.
func behind(end, at pglogrepl.LSN) int64 {
	if at == 0 || at >= end {
		return 0
	}
	return int64(end - at)
}

func (rep *statusReport) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	if s := rep.Server; s != nil {
		line("server", "PostgreSQL %s, database %s, system %s, timeline %d, at %s", s.Version, s.Database, s.SystemID, s.Timeline, s.LSN)
	}
	if s := rep.Slot; s != nil {
		use := "not in use"
		if s.Active {
			use = fmt.Sprintf("in use by process %d", s.ActivePID)
		}
		line("slot", "%s, %s, wal_status %s", s.Name, use, s.WALStatus)
		line("confirmed", "%s", s.Confirmed)
		line("retained WAL", "%s, from %s", size(s.RetainedBytes), s.Restart)
		if s.SafeWALBytes != nil {
			line("until it may be lost", "%s", size(*s.SafeWALBytes))
		}
	}
	if m := rep.Mark; m != nil {
		line("mark", "%s, epoch %d, timeline %d, saved %s", m.LSN, m.Epoch, m.Timeline, m.SavedAt.UTC().Format(time.DateTime+"Z"))
	}
	if rep.LagBytes != nil {
		seconds := "unknown time (no relay answers at admin.listen)"
		if rep.LagSeconds != nil {
			seconds = fmt.Sprintf("%.1f s", *rep.LagSeconds)
		}
		line("lag", "%s, %s", size(*rep.LagBytes), seconds)
	}
	rep.writeHistory(line)
	rep.writeRelay(line)
	for _, g := range rep.Gaps {
		from, table := g.From, g.Table
		if from == "" {
			from = "the beginning"
		}
		if table == "" {
			table = "every outbox table"
		}
		line("open gap", "%s, from %s to %s: %s", table, from, g.To, g.Reason)
	}
	if rep.Mark != nil && len(rep.Gaps) == 0 {
		line("open gaps", "none")
	}
	for _, p := range rep.Problems {
		line("problem", "%s", strings.ReplaceAll(p, "\n", " "))
	}
	return t.Flush()
}

func (rep *statusReport) writeRelay(line func(name, format string, args ...any)) {
	s := rep.Relay
	if s == nil {
		return
	}
	ready := "ready"
	if !s.Ready {
		ready = "not ready: " + s.Reason
	}
	line("relay", "%s since %s, %s", s.State, s.Since.UTC().Format(time.DateTime+"Z"), ready)
	line("positions", "received %s, acked %s, durable %s, confirmed %s", known(s.Positions.Received), known(s.Positions.Acked),
		known(s.Positions.Durable), known(s.Positions.Confirmed))
	if r := s.Retention; r != nil {
		if p := r.Partitions; p != nil {
			line("retention", "%d partitions dropped and %d made since the start%s", p.Dropped, p.Made, until(p.Until))
			if len(p.Detached) > 0 {
				line("detached partitions", "%s; not dropped yet", strings.Join(p.Detached, ", "))
			}
		} else {
			line("retention", "%d published rows deleted since the start", r.Deleted)
		}
		if r.Blocked != "" {
			line("retention is held up", "%s", r.Blocked)
		}
	}
	if m := s.Marking; m != nil {
		line("marking", "%d published rows marked in column %s since the start, %d to go (%s)", m.Marked, m.Column, m.Held, size(m.HeldBytes))
		if m.Failing != "" {
			line("marking fails", "since %s, and nothing behind is confirmed: %s", m.Since.UTC().Format(time.DateTime+"Z"), m.Failing)
		}
	}
	for _, h := range s.Halts {
		line("halted", "%s, id %s, at %s, since %s: %s", sink.Place(h.Topic, h.Partition), known(h.ID), h.LSN, h.At.UTC().Format(time.DateTime+"Z"), h.Reason)
		if h.Fix != "" {
			line("to fix it", "%s", h.Fix)
		}
	}
	for _, l := range s.Lanes {
		if !l.Halted {
			line("failing", "%s, since %s: %s", sink.Place(l.Topic, l.Partition), l.Since.UTC().Format(time.DateTime+"Z"), l.LastError)
		}
	}
}

func until(t *time.Time) string {
	if t == nil {
		return ""
	}
	return "; there are partitions until " + t.UTC().Format(time.DateTime+"Z")
}

func known(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// size is a number of bytes for a person.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

// askRelay asks the relay at admin.listen; nil when none answers.
func askRelay(ctx context.Context, cfg config.Config) *admin.State {
	addr := dialable(cfg.Admin.Listen)
	if addr == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askRelayTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+admin.ReadyPath, nil)
	if err != nil {
		return nil
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy: it is this machine
	res, err := client.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	var s admin.State
	if json.NewDecoder(io.LimitReader(res.Body, 8<<20)).Decode(&s) != nil || s.State == "" {
		return nil
	}
	return &s
}

// dialable turns an address to listen on into one to connect to; "" when there is
// none.
func dialable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil || port == "0" {
		return ""
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
