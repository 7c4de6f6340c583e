// Package debezium runs Debezium as its users do, as the opponent of the benchmark: Kafka Connect, standalone, in one JVM, with
// the PostgreSQL connector and the outbox event router. Jars come from Maven.
//
//	w, err := debezium.Start(ctx, debezium.Options{Host: "127.0.0.1", Port: 5432, ...})
//	if err != nil { ... }
//	defer w.Close()
//
// The worker dies with this process.
package debezium

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/maven"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// Options says what Debezium reads and where it writes.
type Options struct {
	Host           string
	Port           int
	User, Password string
	Database       string
	// Slot and Publication exist already. Debezium streams from where the slot stands.
	Slot, Publication string
	Table             string // such as public.outbox
	Topic             string // where every event goes; it exists already
	Bootstrap         string // Kafka's host:port
	Heap              string // the JVM's -Xmx; "512m" when empty
	// Dir is where the configuration, the stored offset and the log go; a temporary directory when empty. Whoever starts
	// again in the same directory goes on from the stored offset.
	Dir     string
	Profile Profile
	// Worker and Connector go into the two properties files, after and over the defaults.
	Worker, Connector map[string]string
	// JVMFlags replace those of the profile.
	JVMFlags []string
	// StartTimeout bounds the start; two minutes when zero.
	StartTimeout time.Duration
}

// Worker is a running Connect worker with its connector.
type Worker struct {
	proc *proc.Process
	dir  string
	temp bool
	port int // of the REST API
}

// Start starts a worker and returns when the REST API says that the connector and its task are running. It streams once the
// slot is active, a moment later. It fetches the jars when they are missing.
func Start(ctx context.Context, o Options) (*Worker, error) {
	if o.Heap == "" {
		o.Heap = "512m"
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 2 * time.Minute
	}
	if o.JVMFlags == nil {
		o.JVMFlags = o.Profile.jvmFlags()
	}
	jars, err := Ensure(ctx)
	if err != nil {
		return nil, err
	}
	java, err := maven.Java()
	if err != nil {
		return nil, err
	}
	w := &Worker{dir: o.Dir}
	if w.dir == "" {
		w.temp = true
		if w.dir, err = proc.TempDir("debezium"); err != nil {
			return nil, err
		}
	}
	if err := w.start(ctx, &o, java, jars); err != nil {
		log, _ := os.ReadFile(w.LogPath())
		_ = w.Close() // the start failed, and that is the error to tell
		return nil, fmt.Errorf("start Debezium: %w; its log: %s", err, log[max(0, len(log)-4096):])
	}
	return w, nil
}

func (w *Worker) start(ctx context.Context, o *Options, java, jars string) error {
	cp, err := maven.Classpath(jars)
	if err != nil {
		return err
	}
	if w.port, err = proc.FreePort(); err != nil {
		return err
	}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(w.dir, name) }
	for name, text := range map[string]string{
		"worker.properties":    propertiesFile(o.workerProperties(w.port, file("offsets"))),
		"connector.properties": propertiesFile(o.connectorProperties()),
		"log4j2.properties":    log4j2,
	} {
		if err := os.WriteFile(file(name), []byte(text), 0o600); err != nil { // one has the password
			return err
		}
	}
	args := append([]string{"-Xmx" + o.Heap}, o.JVMFlags...)
	args = append(args, "-Djava.io.tmpdir="+w.dir, "-Dlog4j2.configurationFile="+file("log4j2.properties"),
		"-cp", cp, "org.apache.kafka.connect.cli.ConnectStandalone", file("worker.properties"), file("connector.properties"))
	if w.proc, err = proc.Start(proc.Spec{Path: java, Args: args, Dir: w.dir, LogFile: w.LogPath()}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.StartTimeout)
	defer cancel()
	return w.awaitRunning(ctx)
}

// awaitRunning asks the REST API until connector and task are running, or one has failed.
func (w *Worker) awaitRunning(ctx context.Context) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		s, err := askStatus(ctx, client, "http://127.0.0.1:"+strconv.Itoa(w.port)+"/connectors/"+connectorName+"/status")
		if err == nil {
			if s.running() {
				return nil
			}
			if trace, failed := s.failed(); failed {
				return fmt.Errorf("the connector failed: %s", trace)
			}
			err = fmt.Errorf("the connector is %s and has %d tasks", s.Connector.State, len(s.Tasks))
		}
		select {
		case <-w.proc.Done():
			return errors.New("the worker ended")
		case <-ctx.Done():
			return fmt.Errorf("not running in time: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// PID is the process id of the JVM.
func (w *Worker) PID() int { return w.proc.Pid() }

// Done is closed when the JVM has ended.
func (w *Worker) Done() <-chan struct{} { return w.proc.Done() }

// CPU is the user and system time of the JVM, its start included.
func (w *Worker) CPU() time.Duration { return w.proc.CPU() }

// PeakRSS is the highest resident set so far, in bytes.
func (w *Worker) PeakRSS() int64 { return w.proc.PeakRSS() }

// RSS is the resident set now, in bytes; 0 when the JVM has ended.
func (w *Worker) RSS() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", w.PID()))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// LogPath is the worker's log.
func (w *Worker) LogPath() string { return filepath.Join(w.dir, "connect.log") }

// Stop stops the worker cleanly, so that it stores its offset, and kills it when ctx ends first.
func (w *Worker) Stop(ctx context.Context) error { return w.proc.Stop(ctx, syscall.SIGTERM) }

// Kill kills the worker with SIGKILL and waits until it is gone.
func (w *Worker) Kill() {
	if w.proc != nil {
		w.proc.KillTree()
	}
}

// Close kills the worker and removes its temporary directory. Closing twice is safe.
func (w *Worker) Close() error {
	w.Kill()
	if w.temp && os.Getenv("CDC_RELAY_TEST_KEEP") == "" {
		return os.RemoveAll(w.dir)
	}
	return nil
}
