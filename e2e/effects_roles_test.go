package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// ordersBinary builds examples/orders once.
var ordersBinary = sync.OnceValues(func() (string, error) {
	root, err := proc.ModuleRoot()
	if err != nil {
		return "", err
	}
	dir, err := proc.TempDir("orders")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "orders"), "./examples/orders")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build examples/orders: %w:\n%s", err, out)
	}
	return filepath.Join(dir, "orders"), nil
})

// plainEnv is the environment without what would change relay or roles, and more.
func plainEnv(more ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "CDC_RELAY_") {
			env = append(env, kv)
		}
	}
	return append(env, more...)
}

// role is a process that is started again whenever it has ended, as an orchestrator
// does it: killed by the test, or by itself, since a role may end at its start while a
// server is away.
type role struct {
	name string // what is counted together
	spec proc.Spec

	mu      sync.Mutex
	p       *proc.Process // nil until the first start
	kills   atomic.Int64
	endings atomic.Int64 // by itself

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func startRole(t testing.TB, name string, spec proc.Spec) *role {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &role{name: name, spec: spec, cancel: cancel}
	r.wg.Go(func() { r.keep(ctx, t) })
	t.Cleanup(func() {
		r.stop()
		if log, err := os.ReadFile(spec.LogFile); t.Failed() && err == nil {
			t.Logf("log of %s, the end:\n%s", name, log[max(0, len(log)-3000):])
		}
	})
	return r
}

func (r *role) keep(ctx context.Context, t testing.TB) {
	const shortest, longest = 300 * time.Millisecond, 3 * time.Second
	pause := shortest
	for ctx.Err() == nil {
		p, err := proc.Start(r.spec)
		if err != nil {
			t.Errorf("start %s: %v", r.name, err)
			return
		}
		r.mu.Lock()
		r.p = p
		r.mu.Unlock()
		select {
		case <-p.Done():
			if p.ExitCode() != 128+int(syscall.SIGKILL) {
				r.endings.Add(1)
				pause = min(2*pause, longest) // as an orchestrator does, if shorter
			} else {
				pause = shortest
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		case <-ctx.Done():
			end, cancel := context.WithTimeout(context.Background(), 40*time.Second)
			defer cancel()
			if err := p.Stop(end, syscall.SIGTERM); err != nil {
				t.Errorf("stop %s: %v", r.name, err)
			}
			return
		}
	}
}

// kill kills the process, if one runs.
func (r *role) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.p == nil || !r.p.Alive() {
		return
	}
	_ = r.p.Signal(syscall.SIGKILL)
	<-r.p.Done()
	r.kills.Add(1)
}

// stop ends the role by SIGTERM, which it must answer by exit code 0.
func (r *role) stop() {
	r.cancel()
	r.wg.Wait()
}

// killer kills at random moments, until stop.
type killer struct {
	stop   func()
	counts func() string // by victim
	total  func() int64
}

// startKiller kills roles, and beside them each server, which stays away for a while.
// Stop returns when the servers run.
func startKiller(t testing.TB, roles []*role, servers map[string]server) killer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	pause := func(least, most time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(least + rand.N(most-least)):
			return true
		}
	}
	wg.Go(func() {
		for pause(200*time.Millisecond, 2*time.Second) {
			victim := roles[rand.N(len(roles))]
			if rand.N(4) == 0 {
				victim = roles[0] // the relay, of which there is one
			}
			victim.kill()
		}
	})
	counts := map[string]*atomic.Int64{}
	for name, server := range servers {
		n := &atomic.Int64{}
		counts[name] = n
		wg.Go(func() {
			// Each is killed once, however soon the end.
			for pause(3*time.Second, 20*time.Second) || n.Load() == 0 {
				server.Kill9()
				n.Add(1)
				pause(200*time.Millisecond, 3*time.Second)
				start, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				err := server.Start(start)
				cancel()
				if err != nil {
					t.Errorf("start %s again: %v", name, err)
					return
				}
			}
		})
	}
	stop := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	sums := func() map[string]int64 {
		sums := map[string]int64{}
		for _, r := range roles {
			sums[r.name] += r.kills.Load()
		}
		for name, n := range counts {
			sums[name] += n.Load()
		}
		return sums
	}
	return killer{stop: stop,
		total: func() (n int64) {
			for _, k := range sums() {
				n += k
			}
			return n
		},
		counts: func() string {
			s := sums()
			var parts []string
			for _, name := range []string{"relay", "serve", "bill", "mail", "postgres", "kafka"} {
				parts = append(parts, fmt.Sprintf("%s:%d", name, s[name]))
			}
			return strings.Join(parts, ",")
		},
	}
}

type server interface {
	Kill9()
	Start(context.Context) error
}

// logged adds up what the roles of a name have logged of a kind of inbox.Event.
func logged(t testing.TB, roles []*role, name, kind string) (n int64) {
	t.Helper()
	for _, r := range roles {
		if r.name != name {
			continue
		}
		f, err := os.Open(r.spec.LogFile)
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var line struct {
				Kind string
				N    int64
			}
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Kind == kind {
				n += max(1, line.N)
			}
		}
		f.Close()
	}
	return n
}
