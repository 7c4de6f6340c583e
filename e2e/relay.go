package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

var relayBuild struct {
	sync.Once
	path string
	err  error
}

// RelayBinary builds cmd/cdc-relay once per test binary and returns its path.
func RelayBinary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("CDC_RELAY_TEST_BINARY"); path != "" {
		return path
	}
	relayBuild.Do(func() { relayBuild.path, relayBuild.err = buildRelay() })
	if relayBuild.err != nil {
		t.Fatal(relayBuild.err)
	}
	return relayBuild.path
}

func buildRelay() (string, error) {
	root, err := proc.ModuleRoot()
	if err != nil {
		return "", err
	}
	dir, err := proc.TempDir("bin")
	if err != nil {
		return "", err
	}
	args := []string{"build", "-o", filepath.Join(dir, "cdc-relay")}
	if os.Getenv("CDC_RELAY_TEST_RACE") == "1" {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "./cmd/cdc-relay")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cdc-relay: %w:\n%s", err, out)
	}
	return filepath.Join(dir, "cdc-relay"), nil
}

// RelayOptions says how to start the relay.
type RelayOptions struct {
	// Config is the configuration file's text. Unless it has an admin section, one with a free port is added.
	Config string
	// Command is what to run; "run" when empty.
	Command string
	Args    []string // after the command and --config
	Env     []string // added to a clean environment: no PG* and no CDC_RELAY_* of the caller's
	// Answer, of RunRelay, is called when the command asks, and returns what is typed; nil is the end of input.
	Answer func() string
}

// Relay is a running relay process.
type Relay struct {
	*proc.Process
	// Admin is the address of /livez, /readyz and /metrics; "" when the configuration names it itself.
	Admin  string
	Config string // path of the configuration file
	log    string
}

// StartRelay starts the relay as a process of its own, which is killed at the end of the test; its log is shown when the test
// failed.
func StartRelay(t testing.TB, opts RelayOptions) *Relay {
	t.Helper()
	binary := RelayBinary(t)
	dir := t.TempDir()
	r := &Relay{Config: filepath.Join(dir, "cdc-relay.yaml"), log: filepath.Join(dir, "relay.log")}
	config := opts.Config
	if !strings.HasPrefix(config, "admin:") && !strings.Contains(config, "\nadmin:") {
		port, err := proc.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		r.Admin = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		config = strings.TrimRight(config, "\n") + "\nadmin:\n  listen: " + r.Admin + "\n"
	}
	if err := os.WriteFile(r.Config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	command := opts.Command
	if command == "" {
		command = "run"
	}
	p, err := proc.Start(proc.Spec{
		Path:    binary,
		Args:    append([]string{command, "--config", r.Config}, opts.Args...),
		Env:     append(cleanEnv(), opts.Env...),
		Dir:     dir,
		LogFile: r.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Process = p
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			t.Logf("log of the relay (pid %d, exit code %d), the end:\n%s", r.Pid(), r.ExitCode(), tailFile(r.log, 8000))
		}
	})
	return r
}

// RunRelay runs a command of the relay to its end and returns its exit code, standard output and standard error.
func RunRelay(t testing.TB, timeout time.Duration, opts RelayOptions) (code int, stdout, stderr string) {
	t.Helper()
	binary := RelayBinary(t)
	dir := t.TempDir()
	args := []string{}
	if opts.Command != "" {
		args = append(args, opts.Command)
	}
	if opts.Config != "" {
		path := filepath.Join(dir, "cdc-relay.yaml")
		if err := os.WriteFile(path, []byte(opts.Config), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append(args, opts.Args...)...)
	cmd.Env = append(cleanEnv(), opts.Env...)
	cmd.Dir = dir
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	if opts.Answer != nil {
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout = &asked{Builder: &o, in: in, answer: opts.Answer}
	}
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("cdc-relay %v did not end within %v:\n%s%s", args, timeout, o.String(), e.String())
	}
	if cmd.ProcessState == nil {
		t.Fatalf("start cdc-relay %v: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// asked answers the first question on a command's standard output.
type asked struct {
	*strings.Builder
	in     io.WriteCloser
	answer func() string
}

func (a *asked) Write(b []byte) (int, error) {
	n, err := a.Builder.Write(b)
	if a.answer != nil && strings.Contains(a.String(), "[yes/no]") {
		_, _ = io.WriteString(a.in, a.answer()+"\n")
		_ = a.in.Close()
		a.answer = nil
	}
	return n, err
}

// Measured is a command of the relay that has ended.
type Measured struct {
	Code           int
	Stdout, Stderr string
	PeakRSS        int64 // bytes; looked at while it ran
	Took           time.Duration
}

// MeasureRelay runs a command of the relay to its end, and measures it. interrupt, where not nil, is when to send it SIGINT:
// it is asked, with what the command has written to standard error, until it says true.
func MeasureRelay(t testing.TB, timeout time.Duration, opts RelayOptions, interrupt func(stderr string) bool) (m Measured) {
	t.Helper()
	binary := RelayBinary(t) // before the clock starts
	dir := t.TempDir()
	config := filepath.Join(dir, "cdc-relay.yaml")
	if err := os.WriteFile(config, []byte(opts.Config), 0o600); err != nil {
		t.Fatal(err)
	}
	var files [2]*os.File
	for i, name := range []string{"stdout", "stderr"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	read := func(f *os.File) string { b, _ := os.ReadFile(f.Name()); return string(b) }
	began := time.Now()
	p, err := proc.Start(proc.Spec{Path: binary, Args: append([]string{opts.Command, "--config", config}, opts.Args...),
		Env: append(cleanEnv(), opts.Env...), Dir: dir, Stdout: files[0], Stderr: files[1]})
	if err != nil {
		t.Fatal(err)
	}
	defer p.KillTree()
	for p.Alive() {
		// Of the running process: what the kernel tells at the end has the parent's memory in it, from before the exec.
		if rss := p.PeakRSS(); p.Alive() {
			m.PeakRSS = max(m.PeakRSS, rss)
		}
		if interrupt != nil && interrupt(read(files[1])) {
			interrupt = nil
			_ = p.Signal(syscall.SIGINT)
		}
		if time.Since(began) > timeout {
			t.Fatalf("cdc-relay %s did not end within %v:\n%s", opts.Command, timeout, read(files[1]))
		}
		select {
		case <-p.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	m.Took = time.Since(began)
	m.Code, m.Stdout, m.Stderr = p.ExitCode(), read(files[0]), read(files[1])
	return m
}

// cleanEnv is the environment without what would change the relay's configuration.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "CDC_RELAY_") {
			env = append(env, kv)
		}
	}
	return env
}

// Kill kills the relay with SIGKILL and waits until it is gone; a paused one too.
func (r *Relay) Kill() {
	_ = r.Signal(syscall.SIGKILL)
	<-r.Done()
}

// Pause stops the process (SIGSTOP) and returns when the kernel has stopped all its threads, so that what a test looks at then
// stays as it is.
func (r *Relay) Pause(t testing.TB) {
	t.Helper()
	if err := r.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 10*time.Second, "the relay is stopped", func() bool {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", r.Pid()))
		for _, path := range tasks {
			b, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			if _, rest, _ := strings.Cut(string(b), ") "); !strings.HasPrefix(rest, "T") {
				return false
			}
		}
		return true
	})
}

// Resume lets a paused relay go on.
func (r *Relay) Resume(t testing.TB) {
	t.Helper()
	if err := r.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// Terminate sends SIGTERM and returns the exit code; it fails the test when the relay has not ended after timeout.
func (r *Relay) Terminate(t testing.TB, timeout time.Duration) int {
	t.Helper()
	if err := r.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return r.WaitExit(t, timeout)
}

// WaitExit waits until the relay ends by itself and returns the exit code.
func (r *Relay) WaitExit(t testing.TB, timeout time.Duration) int {
	t.Helper()
	select {
	case <-r.Done():
	case <-time.After(timeout):
		t.Fatalf("the relay did not end within %v", timeout)
	}
	return r.ExitCode()
}

// Ready asks /readyz; the text is what it answers, or the error of asking.
func (r *Relay) Ready() (bool, string) {
	code, body, err := r.get("/readyz")
	if err != nil {
		return false, err.Error()
	}
	return code == http.StatusOK, body
}

// Reason is why the relay is not ready, as /readyz says.
func (r *Relay) Reason(t testing.TB) string {
	t.Helper()
	var state struct{ Reason string }
	_, body := r.Ready()
	if err := json.Unmarshal([]byte(body), &state); err != nil {
		t.Fatalf("/readyz: %v:\n%s", err, body)
	}
	return state.Reason
}

// WaitReady waits until /readyz answers 200.
func (r *Relay) WaitReady(t testing.TB, timeout time.Duration) {
	t.Helper()
	r.waitReady(t, timeout, "ready", func(ok bool, _ string) bool { return ok })
}

// WaitNotReady waits until /readyz answers something else with a text that contains reason.
func (r *Relay) WaitNotReady(t testing.TB, timeout time.Duration, reason string) {
	t.Helper()
	r.waitReady(t, timeout, "not ready because of "+strconv.Quote(reason), func(ok bool, body string) bool {
		return !ok && strings.Contains(body, reason)
	})
}

func (r *Relay) waitReady(t testing.TB, timeout time.Duration, what string, want func(bool, string) bool) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		ok, body := r.Ready()
		if want(ok, body) {
			return
		}
		last = body
		if !r.Alive() {
			t.Fatalf("the relay ended with code %d while the test waited until it is %s:\n%s", r.ExitCode(), what, r.Log())
		}
		if time.Now().After(deadline) {
			t.Fatalf("the relay is not %s after %v; /readyz: %s", what, timeout, last)
		}
	}
}

// Metrics is the text of /metrics.
func (r *Relay) Metrics(t testing.TB) string {
	t.Helper()
	code, body, err := r.get("/metrics")
	if err != nil || code != http.StatusOK {
		t.Fatalf("GET /metrics: code %d, %v", code, err)
	}
	return body
}

var httpClient = http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func (r *Relay) get(path string) (int, string, error) {
	resp, err := httpClient.Get("http://" + r.Admin + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// Log is what the relay has written so far.
func (r *Relay) Log() string {
	b, _ := os.ReadFile(r.log)
	return string(b)
}

// WaitLog waits until the log contains s.
func (r *Relay) WaitLog(t testing.TB, timeout time.Duration, s string) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !strings.Contains(r.Log(), s); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the relay's log does not say %q after %v", s, timeout)
		}
	}
}

// Eventually polls until cond holds and fails the test when it does not within timeout.
func Eventually(t testing.TB, timeout time.Duration, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", timeout, what)
		}
	}
}
