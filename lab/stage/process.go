package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/netproxy"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// Hold keeps what passes one arrow until Release; see netproxy.Hold.
type Hold = netproxy.Hold

// Point is an arrow of the path at which a process can be held.
type Point string

// The points. Each belongs to some processes only; Process.Points lists them.
const (
	BeforeProduce      Point = "before produce"       // relay: the records are not at the broker
	ProduceAnswer      Point = "produce answer"       // relay: the broker has the records, the relay does not know
	Confirm            Point = "confirm"              // relay: it knows, and PostgreSQL has no confirmation
	BeforeCommit       Point = "before commit"        // serve, bill, mail: COMMIT has not reached PostgreSQL
	CommitAnswer       Point = "commit answer"        // serve, bill, mail: PostgreSQL has committed, the process does not know
	HTTPAnswer         Point = "http answer"          // serve: it has answered, the client does not know
	ProviderAnswer     Point = "provider answer"      // mail: the provider has sent the mail, the worker does not know
	BeforeOffsetCommit Point = "before offset commit" // bill, mail: committed in PostgreSQL, the offset is not at the broker
	OffsetAnswer       Point = "offset answer"        // bill, mail: the broker has the offset, the worker does not know
)

// Process is one process of the stage, running or not. Nobody starts it again but the caller. Its methods may be called from
// any goroutine, but Kill and Start of one process not at the same time.
type Process struct {
	Name string

	run     runner
	proxies []abandoner
	points  map[Point]func() *Hold

	mu     sync.Mutex
	starts int
}

// runner starts and kills.
type runner interface {
	start(ctx context.Context) error
	kill()
	pid() int // 0: not running
	done() <-chan struct{}
	log() string
}

// abandoner is a proxy.
type abandoner interface{ Abandon() }

// Up tells whether the process runs.
func (p *Process) Up() bool { return p.Pid() != 0 }

// Pid is the process id, 0 while it does not run.
func (p *Process) Pid() int { return p.run.pid() }

// Starts is how often the process was started.
func (p *Process) Starts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

// Done is closed when the process of the last start has ended, by Kill or by itself.
func (p *Process) Done() <-chan struct{} { return p.run.done() }

// ExitCode is that of the last start, 128 plus the signal where one ended it, -1 while it runs; of a server always -1.
func (p *Process) ExitCode() int {
	if c, ok := p.run.(*child); ok && c.current() != nil {
		return c.current().ExitCode()
	}
	return -1
}

// Log is the end of what the process wrote, over all its starts, at most 64 KiB.
func (p *Process) Log() string { return p.run.log() }

// Start starts the process and returns when it answers; a worker, which answers nobody, when it runs. A process that runs
// is left alone.
func (p *Process) Start(ctx context.Context) error {
	if p.Up() {
		return nil
	}
	p.mu.Lock()
	p.starts++
	p.mu.Unlock()
	if err := p.run.start(ctx); err != nil {
		return fmt.Errorf("start %s: %w; the end of its log:\n%s", p.Name, err, lastLines(p.Log(), 12))
	}
	return nil
}

// Kill kills the process with SIGKILL and returns when it is gone, and with it all that it had sent and that a hold still
// kept. Killing what does not run is no error.
func (p *Process) Kill() {
	p.run.kill()
	for _, proxy := range p.proxies {
		proxy.Abandon()
	}
}

// Points lists where the process can be held.
func (p *Process) Points() []Point {
	var points []Point
	for point := range p.points {
		points = append(points, point)
	}
	slices.Sort(points)
	return points
}

// Hold keeps what passes the point, from now on. It panics for a point that is none of this process.
func (p *Process) Hold(point Point) *Hold {
	hold, ok := p.points[point]
	if !ok {
		panic(fmt.Sprintf("stage: %s has no point %q", p.Name, point))
	}
	return hold()
}

// Setenv changes the environment of later starts, by NAME=value. It panics for PostgreSQL and Kafka.
func (p *Process) Setenv(variables ...string) {
	c := p.run.(*child)
	c.env = append(slices.Clone(c.env), variables...) // of two values, the later one counts
}

// child is a process that the stage starts from a binary.
type child struct {
	path, dir string
	args, env []string
	ready     func(ctx context.Context) error // nil: as soon as it runs
	before    func(ctx context.Context) error // each start but the first; nil: nothing

	mu   sync.Mutex
	proc *proc.Process
	out  tail
}

func (c *child) start(ctx context.Context) error {
	if c.before != nil && c.current() != nil {
		if err := c.before(ctx); err != nil {
			return err
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	p, err := proc.Start(proc.Spec{Path: c.path, Args: c.args, Env: c.env, Dir: c.dir, Stdout: w, Stderr: w})
	w.Close() // the child has its own
	if err != nil {
		r.Close()
		return err
	}
	go c.out.readFrom(r) // ends with the child, which alone holds the other end
	c.mu.Lock()
	c.proc = p
	c.mu.Unlock()
	if c.ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := c.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("it ended with exit code %d", p.ExitCode())
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (c *child) current() *proc.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proc
}

func (c *child) kill() {
	if p := c.current(); p != nil {
		p.KillTree()
	}
}

func (c *child) pid() int {
	if p := c.current(); p != nil && p.Alive() {
		return p.Pid()
	}
	return 0
}

func (c *child) done() <-chan struct{} {
	if p := c.current(); p != nil {
		return p.Done()
	}
	return nil
}

func (c *child) log() string { return c.out.String() }

// answers is ready when the URL is answered by 200.
func answers(url string) func(context.Context) error {
	// A connection of its own each time: one to a process that was killed is of no use.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	}
}

// tail keeps the end of what is written.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 64 << 10

func (t *tail) readFrom(r *os.File) {
	defer r.Close()
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		t.mu.Lock()
		t.b = append(t.b, buf[:n]...)
		if len(t.b) > 2*tailBytes {
			t.b = append([]byte(nil), t.b[len(t.b)-tailBytes:]...)
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b[max(0, len(t.b)-tailBytes):])
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func fileTail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b[max(0, len(b)-tailBytes):])
}

func freeAddr() (string, error) {
	port, err := proc.FreePort()
	if err != nil {
		return "", err
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(port)), nil
}
