package proc_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

func TestFreePort_IsOutsideOfOutgoingConnections(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		p, err := proc.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if p >= 32768 || seen[p] {
			t.Fatalf("port %d", p)
		}
		seen[p] = true
	}
}

func TestProcess_TellsHowItEnded(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	p, err := proc.Start(proc.Spec{Path: sh, Args: []string{"-c", "echo out; echo err >&2; exit 3"}, LogFile: log})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	b, err := os.ReadFile(log)
	if err != nil || p.ExitCode() != 3 || string(b) != "out\nerr\n" {
		t.Fatalf("exit code %d, log %q, %v", p.ExitCode(), b, err)
	}

	p, err = proc.Start(proc.Spec{Path: sh, Args: []string{"-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"}, LogFile: log})
	if err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(read(log), "up") {
		time.Sleep(time.Millisecond)
	}
	if p.PeakRSS() == 0 || p.ExitCode() != -1 {
		t.Fatalf("peak RSS %d, exit code %d while running", p.PeakRSS(), p.ExitCode())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := p.Stop(ctx, syscall.SIGTERM); err == nil {
		t.Fatal("a process that ignores SIGTERM was stopped without an error")
	}
	if p.Alive() || p.ExitCode() != 128+9 {
		t.Fatalf("alive %v, exit code %d", p.Alive(), p.ExitCode())
	}
}

func read(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}
