package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

func requirePostgres(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts servers")
	}
	if _, err := chooseVersion(os.Getenv("CDC_RELAY_TEST_PG_VERSION")); err != nil {
		t.Skip(err)
	}
}

func TestMain(m *testing.M) {
	code := e2e.Main(m)
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

var built struct {
	sync.Once
	dir string
	err error
}

// binaries builds the demo and the relay beside each other, once.
func binaries(t *testing.T) string {
	t.Helper()
	built.Do(func() {
		var root string
		if root, built.err = proc.ModuleRoot(); built.err != nil {
			return
		}
		if built.dir, built.err = os.MkdirTemp("", "cdc-relay-demo-test-"); built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", built.dir+"/", "./cmd/...")
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build: %w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

func TestDemo_EveryOrderArrives(t *testing.T) {
	requirePostgres(t)
	dir := binaries(t)
	for name, o := range map[string]options{
		"quiet": {Rate: 50, Duration: 3 * time.Second, Kafka: "embedded"},
		"kills": {Rate: 200, Duration: 8 * time.Second, Kafka: "embedded", Kill: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.Relay, o.Version = filepath.Join(dir, "cdc-relay"), os.Getenv("CDC_RELAY_TEST_PG_VERSION")
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			var b strings.Builder
			c, err := run(ctx, o, newScreen(&b, false))
			ok := err == nil && c.ok() && c.Arrived == c.Committed && c.Arrived > 20 && c.RolledBack > 0 && (o.Kill || c.Duplicates == 0)
			for _, name := range []string{"PostgreSQL", "Kafka", "relay"} {
				if began, there := strings.Index(b.String(), "starting "+name+" ..."), strings.Index(b.String(), "\n  "+name+" "); began < 0 || there < began {
					t.Errorf("does not say at once that %s is starting:\n%s", name, b.String())
				}
			}
			if o.Kill && !strings.Contains(b.String(), "was killed by signal 9") {
				ok = false
			}
			e2e.Result(t, "demo", ok, "kills", o.Kill, "committed", c.Committed, "arrived", c.Arrived, "missing", c.Waiting,
				"duplicates", c.Duplicates, "overtaken", c.OutOfOrder, "uncommitted", c.Uncommitted, "p50_ms", float64(c.P50)/1e6, "p99_ms", float64(c.P99)/1e6)
			if !ok {
				t.Errorf("error %v; output:\n%s", err, b.String())
			}
		})
	}
}

// TestDemo_EndsWithAllItsChildren runs it as a person does.
func TestDemo_EndsWithAllItsChildren(t *testing.T) {
	requirePostgres(t)
	dir := binaries(t)
	for name, sig := range map[string]syscall.Signal{"interrupt": syscall.SIGINT, "crash": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(filepath.Join(dir, "cdc-relay-demo"), "-rate", "20")
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill() }()
			var text strings.Builder
			lines := bufio.NewScanner(stdout)
			for lines.Scan() {
				text.WriteString(lines.Text() + "\n")
				if strings.Contains(lines.Text(), "OrderPaid") {
					break
				}
			}
			rundir := regexp.MustCompile(`/\S*/cdc-relay-\d+`).FindString(text.String())
			ports := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(text.String(), -1)
			if rundir == "" || len(ports) < 3 {
				t.Fatalf("the demo did not start:\n%s", text.String())
			}
			children := processesIn(t, rundir)
			if len(children) < 2 {
				t.Fatalf("only %v belong to %s", children, rundir)
			}
			_ = cmd.Process.Signal(sig)
			for lines.Scan() {
				text.WriteString(lines.Text() + "\n")
			}
			err = cmd.Wait()
			if sig == syscall.SIGINT && (err != nil || !strings.Contains(text.String(), "0 duplicates, 0 out of order")) {
				t.Errorf("after an interrupt: %v\n%s", err, text.String())
			}
			deadline := time.Now().Add(20 * time.Second)
			for time.Now().Before(deadline) {
				if _, err := os.Stat(rundir); os.IsNotExist(err) && len(processesIn(t, rundir)) == 0 {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
			t.Errorf("left behind: %v, and perhaps %s", processesIn(t, rundir), rundir)
		})
	}
}

// processesIn lists the command lines of processes that name dir, but for the
// shell that waits to remove it.
func processesIn(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		b, _ := os.ReadFile(f)
		line := strings.ReplaceAll(string(b), "\x00", " ")
		if strings.Contains(line, dir) && !strings.HasPrefix(line, "/bin/sh -c") {
			found = append(found, line)
		}
	}
	return found
}

func TestParse_RefusesWhatCannotBeMeant(t *testing.T) {
	for _, args := range [][]string{
		{"-rate", "0"}, {"-rate", "x"}, {"-kafka", "fake"}, {"-duration", "-1s"}, {"now"}, {"-attach"},
		{"-attach", "-kill", "-postgres", "postgres://x", "-brokers", "x:1"}, {"-nonsense"},
	} {
		if _, code := parse(args); code != exitUsage {
			t.Errorf("%v: code %d", args, code)
		}
	}
	t.Setenv("DURATION", "soon")
	if _, code := parse(nil); code != exitUsage {
		t.Errorf("DURATION=soon: code %d", code)
	}
	t.Setenv("DURATION", "5s")
	t.Setenv("KAFKA", "real")
	t.Setenv("KILL", "1")
	if o, code := parse(nil); code != -1 || o.Duration != 5*time.Second || o.Kafka != "real" || !o.Kill {
		t.Errorf("from the environment: %+v, code %d", o, code)
	}
}
