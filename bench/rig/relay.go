package rig

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// RelayOptions says how the relay runs.
type RelayOptions struct {
	Slot  string
	Topic string // where every event goes
	Null  bool   // discard the records, and keep the mark in a file
	// Source are further lines of the section source.
	Source []string
}

// Relay is a running relay.
type Relay struct {
	*proc.Process
	admin string
	log   string
}

// configure writes a configuration into a directory of its own.
func (r *Rig) configure(o RelayOptions, admin string) (path string, err error) {
	dir := filepath.Join(r.Dir, "relay-"+o.Slot)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "source:\n  url: %q\n  slot: %s\n  publication: %s\n", r.DSN(), o.Slot, Publication)
	for _, line := range o.Source {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	topic := o.Topic
	if topic == "" {
		topic = "bench"
	}
	fmt.Fprintf(&b, "outbox:\n  - table: public.outbox\n    topic: %s\n", topic)
	if o.Null {
		fmt.Fprintf(&b, "sink: \"null\"\ncheckpoint:\n  store: file\n  file: %s\n", filepath.Join(dir, "mark"))
	} else {
		fmt.Fprintf(&b, "kafka:\n  brokers: [%q]\ncheckpoint:\n  topic: bench-marks\n", r.Broker.Addr())
	}
	fmt.Fprintf(&b, "admin:\n  listen: %q\n", admin)
	path = filepath.Join(dir, "cdc-relay.yaml")
	return path, os.WriteFile(path, []byte(b.String()), 0o600)
}

// setup makes publication, slot and mark, or the mark alone where the slot is there.
func (r *Rig) setup(ctx context.Context, o RelayOptions, args ...string) error {
	path, err := r.configure(o, "")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, r.Binary, append([]string{"setup", "--config", path}, args...)...)
	cmd.Env = cleanEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cdc-relay setup: %w:\n%s", err, out)
	}
	return nil
}

// Accepts tells whether the relay's configuration knows these lines of the section source.
func (r *Rig) Accepts(ctx context.Context, lines ...string) bool {
	path, err := r.configure(RelayOptions{Slot: "probe", Null: true, Source: lines}, "")
	if err != nil {
		return false
	}
	cmd := exec.CommandContext(ctx, r.Binary, "config", "print", "--config", path)
	cmd.Env = cleanEnv()
	return cmd.Run() == nil
}

// SetupRelay makes a slot and its mark, at the end of the WAL.
func (r *Rig) SetupRelay(ctx context.Context, o RelayOptions) error { return r.setup(ctx, o) }

// PrepareRelay makes the mark of a copied slot.
func (r *Rig) PrepareRelay(ctx context.Context, o RelayOptions) error {
	return r.setup(ctx, o, "--existing-slot")
}

// StartRelay starts the relay.
func (r *Rig) StartRelay(o RelayOptions) (*Relay, error) {
	port, err := proc.FreePort()
	if err != nil {
		return nil, err
	}
	p := &Relay{admin: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	path, err := r.configure(o, p.admin)
	if err != nil {
		return nil, err
	}
	p.log = filepath.Join(filepath.Dir(path), "relay.log")
	p.Process, err = proc.Start(proc.Spec{Path: r.Binary, Args: []string{"run", "--config", path}, Env: cleanEnv(), LogFile: p.log})
	return p, err
}

// WaitReady waits until the relay streams.
func (p *Relay) WaitReady(ctx context.Context) error {
	return Poll(ctx, time.Minute, 20*time.Millisecond, "the relay to be ready", func() (bool, error) {
		if !p.Alive() {
			return false, p.Failure()
		}
		code, _, err := p.get("/readyz")
		return err == nil && code == http.StatusOK, nil
	})
}

// Stop stops the relay cleanly.
func (p *Relay) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := p.Process.Stop(ctx, syscall.SIGTERM); err != nil {
		return err
	}
	if p.ExitCode() != 0 {
		return p.Failure()
	}
	return nil
}

// Failure is an error with the end of the relay's log.
func (p *Relay) Failure() error {
	b, _ := os.ReadFile(p.log)
	return fmt.Errorf("the relay ended with %d:\n%s", p.ExitCode(), b[max(0, len(b)-3000):])
}

// Metrics are the relay's counters and gauges, each summed over its labels.
func (p *Relay) Metrics() (map[string]float64, error) {
	code, body, err := p.get("/metrics")
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: %d", code)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("GET /metrics: %w", err)
	}
	sums := map[string]float64{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			sums[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sums, nil
}

var httpClient = http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func (p *Relay) get(path string) (int, string, error) {
	resp, err := httpClient.Get("http://" + p.admin + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// cleanEnv is the environment without what would change a configuration.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "CDC_RELAY_") {
			env = append(env, kv)
		}
	}
	return env
}
