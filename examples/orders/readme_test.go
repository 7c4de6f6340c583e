package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// The commands of README.md are run as they stand there, in one shell, from the top of
// the repository. Only those of docker compose are not (scripts/containers.sh runs that
// file): the same servers run as processes, at the same addresses.
func TestReadme_CommandsDoWhatItSays(t *testing.T) {
	for _, port := range []string{"15432", "19092", "8080", "8025", "9464"} { // the last is the relay's own
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Skipf("the README's commands were NOT run: port %s is taken, which they use", port)
		}
		l.Close()
	}
	pg := e2e.Postgres(t, pgserver.Options{Port: 15432})
	pg.ExecOn(t, "postgres", "CREATE DATABASE shop") // as docker-compose.yml says to the image
	e2e.ExclusiveKafka(t, kafkaserver.Options{Port: 19092}).RequireReal(t)

	sh := startShell(t)
	blocks := commands(t, read(t, "README.md"))
	if len(blocks) != 3 {
		t.Fatalf("README.md has %d blocks of commands; this test knows start, use and stop", len(blocks))
	}
	for _, line := range blocks[0] {
		sh.run(line)
	}
	e2e.Eventually(t, 30*time.Second, "the order service answers", func() bool {
		resp, err := http.Get("http://127.0.0.1:8080/healthz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})

	order, look := blocks[1][0], blocks[1][1]
	first, again := sh.run(order), sh.run(order)
	if !strings.Contains(first, "201 Created") || strings.Contains(first, "Idempotency-Replayed") || !strings.Contains(again, "201 Created") ||
		!strings.Contains(again, "Idempotency-Replayed: true") || lastLine(again) != lastLine(first) {
		t.Errorf("the first answer is %q, and the second %q", first, again)
	}
	counted := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		counted = sh.run(look)
		if strings.Contains(counted, "1 |        1") && strings.Contains(counted, `"to":"ann@example.com"`) {
			break
		}
	}
	if !strings.Contains(counted, "1 |        1") || strings.Count(counted, `"to"`) != 1 {
		t.Errorf("no single order, invoice and mail within a minute: %s", counted)
	}

	for _, line := range blocks[2] {
		sh.run(line)
	}
	if left := sh.run("jobs -pr"); strings.TrimSpace(left) != "" {
		t.Errorf("processes that the README's commands leave: %s", left)
	}
}

// commands are the lines of each block of sh, without those of docker compose.
func commands(t *testing.T, readme string) (blocks [][]string) {
	t.Helper()
	compose := 0
	for _, part := range strings.Split(readme, "```sh\n")[1:] {
		text, _, _ := strings.Cut(part, "```")
		var lines []string
		for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
			if strings.HasPrefix(line, "docker compose ") {
				compose++
				continue
			}
			lines = append(lines, line)
		}
		blocks = append(blocks, lines)
	}
	if compose != 2 {
		t.Errorf("README.md has %d commands of docker compose; this test stands in for up and down", compose)
	}
	return blocks
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// shell is a bash to which commands are typed.
type shell struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
	n   int
}

func startShell(t *testing.T) *shell {
	t.Helper()
	root, err := proc.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "--noprofile", "--norc")
	cmd.Dir = root
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "CDC_RELAY_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // and what it has started
		_ = cmd.Wait()
		if b, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("what the commands wrote to standard error:\n%s", b)
		}
		log.Close()
	})
	return &shell{t: t, in: in, out: bufio.NewReader(out)}
}

// run types a line, and returns what it wrote; it must end with 0.
func (s *shell) run(line string) string {
	s.t.Helper()
	s.n++
	end := fmt.Sprintf("--- %d ended with ", s.n)
	if _, err := fmt.Fprintf(s.in, "%s\ncode=$?; echo; echo '%s'$code\n", line, end); err != nil {
		s.t.Fatalf("type %q: %v", line, err)
	}
	limit := time.AfterFunc(3*time.Minute, func() { panic("the shell does not come back from " + line) })
	defer limit.Stop()
	var written strings.Builder
	for {
		l, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("read what %q wrote: %v", line, err)
		}
		if code, done := strings.CutPrefix(l, end); done {
			if code != "0\n" {
				s.t.Errorf("%q ended with %s", line, code)
			}
			return written.String()
		}
		written.WriteString(l)
	}
}
