package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/admin"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/relay"
)

// listenSilently returns an address that accepts connections and says nothing.
func listenSilently(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
		}
	}()
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// fakeRelay ends with err when it is stopped, or when the test lets it.
type fakeRelay struct {
	stop chan struct{}
	once sync.Once
	end  chan error
	held bool // does not end by Stop
}

func newFakeRelay() *fakeRelay {
	return &fakeRelay{stop: make(chan struct{}), end: make(chan error, 1)}
}

func (f *fakeRelay) Stop() { f.once.Do(func() { close(f.stop) }) }

func (f *fakeRelay) Run(ctx context.Context) error {
	if f.held {
		return <-f.end
	}
	select {
	case <-f.stop:
		return nil
	case err := <-f.end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestRun_FirstSignalStopsCleanly(t *testing.T) {
	a := &app{err: io.Discard, exit: func(int) { t.Error("left at once") }}
	signals := make(chan os.Signal, 2)
	signals <- syscall.SIGTERM
	if err := a.supervise(t.Context(), newFakeRelay(), nil, signals, zap.NewNop()); err != nil {
		t.Error(err)
	}
}

func TestRun_SecondSignalLeavesAtOnce(t *testing.T) {
	var errs bytes.Buffer
	log, err := newLogger(config.Log{Level: "error", Format: "json"}, &errs)
	if err != nil {
		t.Fatal(err)
	}
	r := newFakeRelay()
	r.held = true
	left := 0
	a := &app{err: io.Discard, exit: func(code int) { left = code; r.end <- errors.New("the process is gone") }}
	signals := make(chan os.Signal, 2)
	signals <- syscall.SIGINT
	signals <- syscall.SIGTERM
	_ = a.supervise(t.Context(), r, nil, signals, log)
	if left != exitFailure || !strings.Contains(errs.String(), "published again") {
		t.Errorf("exit %d: %s", left, errs.String())
	}
}

func TestRun_TakesAnEchoForTheSameSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRelay()
		r.held = true
		a := &app{err: io.Discard, signalEcho: signalEcho, exit: func(int) { t.Error("left at once") }}
		signals := make(chan os.Signal, 2)
		signals <- syscall.SIGTERM
		signals <- syscall.SIGTERM
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = a.supervise(t.Context(), r, nil, signals, zap.NewNop())
		}()
		synctest.Wait()
		a.exit = func(int) { r.end <- errors.New("the process is gone") }
		time.Sleep(signalEcho)
		signals <- syscall.SIGTERM
		<-done
	})
}

func TestRun_ServesUntilTheRelayEnds(t *testing.T) {
	status := func() relay.Status { return relay.Status{State: relay.StateStreaming, Ready: true, Slot: "s"} }
	m := admin.NewMetrics("v", "")
	m.Watch(status)
	server, err := admin.Listen("127.0.0.1:0", status, m, "v")
	if err != nil {
		t.Fatal(err)
	}
	r := newFakeRelay()
	done := make(chan error, 1)
	a := &app{err: io.Discard}
	go func() { done <- a.supervise(t.Context(), r, server, nil, zap.NewNop()) }()
	cfg := config.Default()
	cfg.Admin.Listen = server.Addr().String()
	if s := askRelay(t.Context(), cfg); s == nil || !s.Ready || s.Slot != "s" {
		t.Errorf("%+v", s)
	}
	r.end <- errors.New("the slot is lost")
	if err := <-done; err == nil || err.Error() != "the slot is lost" {
		t.Error(err)
	}
	if _, err := http.Get("http://" + cfg.Admin.Listen + admin.LivePath); err == nil {
		t.Error("still serves")
	}
	if s := askRelay(t.Context(), cfg); s != nil {
		t.Errorf("%+v", s)
	}
}

func TestLogger_FormatAndLevel(t *testing.T) {
	for _, format := range []string{"json", "console"} {
		var b bytes.Buffer
		log, err := newLogger(config.Log{Level: "warn", Format: format}, &b)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("unseen")
		log.Warn("seen", zap.String("slot", "s"))
		if got := b.String(); strings.Contains(got, "unseen") || !strings.Contains(got, "seen") || (format == "json") != strings.HasPrefix(got, "{") {
			t.Errorf("%s: %s", format, got)
		}
	}
}

// TestRun_EndsWithALineThatAPipelineCanParse: the last word of run is told once,
// in the log's own form.
func TestRun_EndsWithALineThatAPipelineCanParse(t *testing.T) {
	t.Chdir(t.TempDir())
	taken := listenSilently(t)
	args := []string{"run", "--set", "source.url=postgres://u@127.0.0.1:1/d", "--set", "kafka.brokers=127.0.0.1:1", "--set", "admin.listen=" + taken}
	code, stdout, stderr := cli(t, nil, args...)
	if code != exitFailure || stdout != "" {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	var last map[string]string
	for line := range strings.Lines(stderr) {
		last = nil
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	if last["level"] != "error" || last["message"] != "stopped by an error" || !strings.Contains(last["error"], taken+" is in use") ||
		strings.Contains(last["error"], "To fix it") || !strings.HasPrefix(last["fix"], "give admin.listen another address") {
		t.Errorf("%v", last)
	}

	code, _, stderr = cli(t, nil, append(args, "--set", "log.format=console")...)
	if code != exitFailure || strings.Count(stderr, "is in use") != 1 || !strings.Contains(stderr, "\ncdc-relay: admin.listen") && !strings.HasPrefix(stderr, "cdc-relay: admin.listen") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestStatus_SaysSinceWhenAndWhere, and nothing of a partition that is not chosen.
func TestStatus_SaysSinceWhenAndWhere(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	rep := statusReport{Relay: &admin.State{State: relay.StateHalted, Since: at, Reason: "why",
		Halts: []admin.Halt{{Partition: -1, LSN: "0/1", Reason: "no id", At: at}, {Topic: "orders", Partition: 3, ID: "i", LSN: "0/2", Reason: "too large", At: at}},
		Lanes: []admin.Lane{{Topic: "new", Partition: -1, LastError: "no such topic", Since: at}}}}
	var b strings.Builder
	if err := rep.write(&b); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{"relay halted since 2026-03-01 12:00:00Z, not ready: why",
		"halted topic not known, id unknown, at 0/1, since 2026-03-01 12:00:00Z: no id",
		"halted topic orders, partition 3, id i, at 0/2, since 2026-03-01 12:00:00Z: too large",
		"failing topic new, partition not chosen yet, since 2026-03-01 12:00:00Z: no such topic"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}
