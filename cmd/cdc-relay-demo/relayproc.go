package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

const (
	readyTimeout = 60 * time.Second // from its start to ready, also after a kill
	stopTimeout  = 30 * time.Second // longer than the relay's own shutdown_timeout
	restartPause = 300 * time.Millisecond
)

// findRelay is the relay's binary: the one that was named, the one beside this
// program, or one that is built from the sources around.
func findRelay(ctx context.Context, named, dir string) (string, error) {
	if named != "" {
		if _, err := os.Stat(named); err != nil {
			return "", fmt.Errorf("the relay's binary: %w", err)
		}
		return filepath.Abs(named)
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "cdc-relay")
		if st, err := os.Stat(beside); err == nil && st.Mode().IsRegular() {
			return beside, nil
		}
	}
	root, err := proc.ModuleRoot()
	if err != nil {
		return "", errors.New("there is no cdc-relay beside this program, and no source to build it from: name it with -relay")
	}
	bin := inDir(dir, "cdc-relay")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/cdc-relay")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the relay: %w: %s", err, bytes.TrimSpace(out))
	}
	return bin, nil
}

// relayProc is the relay as a process of its own, started again when somebody
// kills it.
type relayProc struct {
	bin    string
	config string
	log    string
	listen string // address of its health and metrics
	out    *screen

	mu       sync.Mutex
	proc     *proc.Process
	kills    int
	stopping bool
}

// writeConfig writes the relay's configuration.
func (r *relayProc) writeConfig(url, brokers string, replication int) error {
	quoted := make([]string, 0, 3)
	for b := range strings.SplitSeq(brokers, ",") {
		quoted = append(quoted, fmt.Sprintf("%q", b))
	}
	text := fmt.Sprintf(`# Written by cdc-relay-demo. The rest are defaults; see docs/configuration.md.
source:
  url: %q
kafka:
  brokers: [%s]
  topics: {names: [%s], partitions: 3, replication: %d}
checkpoint:
  replication: %[4]d
admin:
  listen: %[5]q
log:
  format: console
`, url, strings.Join(quoted, ", "), topic, replication, r.listen)
	return os.WriteFile(r.config, []byte(text), 0o644) // no secret in it but of a given server
}

// setup runs `cdc-relay setup` as the role of that URL, and returns what it
// said.
func (r *relayProc) setup(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.bin, "setup", "--config", r.config, "--create-table", "--create-topics")
	cmd.Env = append(cleanEnv(), "CDC_RELAY_SOURCE_URL="+url)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cdc-relay setup failed (%w): %s", err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// cleanEnv is the environment without what would change the configuration.
func cleanEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "CDC_RELAY_") && !strings.HasPrefix(v, "PG") {
			env = append(env, v)
		}
	}
	return env
}

func (r *relayProc) start() error {
	p, err := proc.Start(proc.Spec{Path: r.bin, Args: []string{"run", "--config", r.config}, Env: cleanEnv(), LogFile: r.log})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc = p
	return nil
}

func (r *relayProc) current() *proc.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proc
}

// kill ends the relay as a crash would.
func (r *relayProc) kill() { _ = r.current().Signal(syscall.SIGKILL) }

// supervise starts the relay again when a signal ended it, and returns why it
// ended by itself; nil after stop.
func (r *relayProc) supervise(ctx context.Context) error {
	for {
		p := r.current()
		select {
		case <-ctx.Done():
			return nil
		case <-p.Done():
		}
		r.mu.Lock()
		stopping := r.stopping
		r.mu.Unlock()
		code := p.ExitCode()
		switch {
		case stopping:
			return nil
		case code < 128:
			return fmt.Errorf("the relay (pid %d) ended with exit code %d; the end of its log %s:\n%s", p.Pid(), code, r.log, tailOf(r.log))
		}
		r.mu.Lock()
		r.kills++
		r.mu.Unlock()
		r.out.note("the relay (pid %d) was killed by signal %d; starting it again", p.Pid(), code-128)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartPause):
		}
		if err := r.start(); err != nil {
			return err
		}
	}
}

// awaitReady waits until the relay says that it is ready, also while supervise
// starts it again.
func (r *relayProc) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		p := r.current()
		if p.Alive() && r.ready(ctx) {
			return nil
		}
		if code := p.ExitCode(); code >= 0 && code < 128 {
			return fmt.Errorf("the relay ended with exit code %d; the end of its log %s:\n%s", code, r.log, tailOf(r.log))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the relay was not ready in time: %w; the end of its log %s:\n%s", ctx.Err(), r.log, tailOf(r.log))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (r *relayProc) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.listen+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// stop ends the relay cleanly and returns its exit code.
func (r *relayProc) stop() (int, error) {
	r.mu.Lock()
	r.stopping = true
	p := r.proc
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := p.Stop(ctx, syscall.SIGTERM)
	if err == nil && p.ExitCode() != 0 {
		err = fmt.Errorf("the relay's clean stop ended with exit code %d; the end of its log:\n%s", p.ExitCode(), tailOf(r.log))
	}
	return p.ExitCode(), err
}

// tailOf is the end of a log.
func tailOf(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-12):], "\n  ")
}
