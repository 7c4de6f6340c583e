package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

const victimEnv = "CDC_RELAY_TEST_VICTIM"

// TestVictim is no test: it is what TestE2E_Cleanup runs in another process and makes end badly.
func TestVictim(t *testing.T) {
	how := os.Getenv(victimEnv)
	if how == "" {
		t.SkipNow()
	}
	pg := e2e.Postgres(t)
	k := e2e.ExclusiveKafka(t, kafkaserver.Options{})
	if pg.Server == nil || k.Broker == nil {
		t.SkipNow()
	}
	fmt.Println("READY", filepath.Dir(filepath.Dir(pg.Server.LogPath())))
	switch how {
	case "panic":
		panic("on purpose")
	case "panic in a goroutine":
		go panic("on purpose")
	case "fatal":
		t.FailNow()
	}
	select {}
}

func TestE2E_Cleanup(t *testing.T) {
	if os.Getenv(victimEnv) != "" {
		t.SkipNow()
	}
	if os.Getenv("CDC_RELAY_TEST_POSTGRES") != "" || os.Getenv("CDC_RELAY_TEST_KAFKA") != "" || e2e.Containers() {
		t.Skip("needs servers of its own")
	}
	ended := 0
	ways := []string{"panic", "panic in a goroutine", "fatal", "SIGKILL"}
	for _, how := range ways {
		if endBadly(t, how) {
			ended++
		}
	}
	e2e.Result(t, "cleanup", ended == len(ways), "ways", len(ways), "clean", ended)
}

// endBadly runs the victim to its bad end and tells whether neither processes nor files of it are left 20 s later.
func endBadly(t *testing.T, how string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestVictim$")
	cmd.Env = append(os.Environ(), victimEnv+"="+how)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	var log strings.Builder
	for sc := bufio.NewScanner(out); sc.Scan(); {
		log.WriteString(sc.Text() + "\n")
		if d, ok := strings.CutPrefix(sc.Text(), "READY "); ok {
			dir = d
			if how == "SIGKILL" {
				_ = cmd.Process.Signal(syscall.SIGKILL)
			}
		}
	}
	_ = cmd.Wait() // it fails, on purpose
	if dir == "" {
		t.Fatalf("%s: the victim never got ready:\n%s", how, log.String())
	}
	var left []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		left = processesOf(dir)
		if _, err := os.Stat(dir); err == nil {
			left = append(left, dir)
		}
		if len(left) == 0 {
			return true
		}
	}
	t.Logf("%s: left behind: %q", how, left)
	return false
}

// processesOf lists the processes whose command line or working directory names dir.
func processesOf(dir string) []string {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, p := range procs {
		cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		cwd, _ := os.Readlink(filepath.Join(p, "cwd"))
		if strings.Contains(string(cmdline), dir) || strings.HasPrefix(cwd, dir) {
			found = append(found, p+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}
