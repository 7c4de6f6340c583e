// Package pgserver runs a real PostgreSQL server from binaries on this machine: a data directory, a port on loopback and
// a log of its own. It needs no testing package, so that the demo can use it too.
//
//	srv, err := pgserver.Start(ctx, pgserver.Options{Version: "15"})
//	if err != nil { ... }
//	defer srv.Close()
//	conn, err := srv.Connect(ctx, "postgres")
//
// As root the server runs as the user postgres, else nobody. It dies with this process.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// Superuser and Password are the bootstrap role of every server.
const (
	Superuser = "postgres"
	Password  = "postgres-secret"
)

// Options says what server to start. The zero value is PostgreSQL 15 that trusts every local client.
type Options struct {
	Version string // major version; "15" when empty
	// Dir is where data, socket and log go; a temporary directory when empty. A directory that has a data directory in it
	// is used as it is, and Close leaves it.
	Dir string
	// Settings go into postgresql.conf, after and over the defaults below.
	Settings map[string]string
	Port     int  // 0: a free one
	Scram    bool // ask for a password (SCRAM-SHA-256) over TCP; DSN carries that of the superuser
	// CertFile and KeyFile, where set, switch TLS on; CAFile then checks clients' certificates. The files are copied to where
	// the server's user may read them. DSN keeps sslmode=disable; HBA may ask for hostssl.
	CertFile, KeyFile, CAFile string
	// HBA lines come before the default ones in pg_hba.conf.
	HBA []string
	// StartTimeout bounds each start; one minute when zero.
	StartTimeout time.Duration
}

// defaults make a small server that decodes logically. fsync is off: a killed server loses nothing while the operating
// system lives. Torn pages are still possible, so full_page_writes stays on.
func defaults() map[string]string {
	return map[string]string{
		"listen_addresses":           "127.0.0.1",
		"wal_level":                  "logical",
		"max_replication_slots":      "20",
		"max_wal_senders":            "20",
		"max_connections":            "100",
		"shared_buffers":             "64MB",
		"fsync":                      "off",
		"log_line_prefix":            "%m [%p] %q%a %u@%d ",
		"log_replication_commands":   "on",
		"timezone":                   "UTC",
		"log_timezone":               "UTC",
		"dynamic_shared_memory_type": "mmap", // within the data directory, so that nothing is left in /dev/shm
	}
}

// Server is one PostgreSQL server, running or stopped.
type Server struct {
	version string
	binDir  string
	dir     string
	port    int
	opts    Options
	user    *proc.User
	temp    bool

	mu   sync.Mutex
	proc *proc.Process // nil while stopped
}

// Start makes a data directory and starts a server in it.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.Version == "" {
		opts.Version = "15"
	}
	if opts.StartTimeout == 0 {
		opts.StartTimeout = time.Minute
	}
	s := &Server{version: opts.Version, opts: opts, port: opts.Port, dir: opts.Dir}
	var err error
	if s.user, err = proc.Unprivileged(); err != nil {
		return nil, err
	}
	if s.binDir, err = FindBinaries(opts.Version); err != nil {
		return nil, err
	}
	if s.dir == "" {
		s.temp = true
		if s.dir, err = proc.TempDir("pg" + opts.Version); err != nil {
			return nil, err
		}
	}
	if err := s.prepare(ctx); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.startOnSomePort(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// startOnSomePort tries another port when somebody took the free one first.
func (s *Server) startOnSomePort(ctx context.Context) error {
	for try := 0; ; try++ {
		if s.opts.Port == 0 {
			port, err := proc.FreePort()
			if err != nil {
				return err
			}
			s.port = port
		}
		err := s.Start(ctx)
		if err == nil || s.opts.Port != 0 || try == 4 || !strings.Contains(err.Error(), "Address already in use") {
			return err
		}
	}
}

// Version is the major version, such as "15".
func (s *Server) Version() string { return s.version }

// BinDir is the directory of the server's binaries.
func (s *Server) BinDir() string { return s.binDir }

// DataDir is the data directory.
func (s *Server) DataDir() string { return filepath.Join(s.dir, "data") }

// SocketDir is the directory of the Unix socket.
func (s *Server) SocketDir() string { return filepath.Join(s.dir, "sock") }

// LogPath is the server's log file.
func (s *Server) LogPath() string { return filepath.Join(s.dir, "postgres.log") }

// Host is the loopback address that the server listens on.
func (s *Server) Host() string { return "127.0.0.1" }

// Port is the TCP port; it stays the same over restarts.
func (s *Server) Port() int { return s.port }

// Addr is host:port.
func (s *Server) Addr() string { return net.JoinHostPort(s.Host(), strconv.Itoa(s.port)) }

// DSN is a URL by which the superuser reaches db over TCP.
func (s *Server) DSN(db string) string { return s.DSNAs(Superuser, Password, db) }

// DSNAs is a URL by which user reaches db over TCP.
func (s *Server) DSNAs(user, password, db string) string {
	u := url.URL{Scheme: "postgres", Host: s.Addr(), Path: "/" + db, RawQuery: "sslmode=disable"}
	u.User = url.User(user)
	if s.opts.Scram {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

// Connect opens a superuser's session on db.
func (s *Server) Connect(ctx context.Context, db string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, s.DSN(db))
}

// WithSuperuser runs f with a superuser's session on db.
func (s *Server) WithSuperuser(ctx context.Context, db string, f func(*pgx.Conn) error) error {
	conn, err := s.Connect(ctx, db)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}

// Exec runs statements as superuser on db, each in its own implicit transaction.
func (s *Server) Exec(ctx context.Context, db string, statements ...string) error {
	return s.WithSuperuser(ctx, db, func(c *pgx.Conn) error {
		for _, q := range statements {
			if _, err := c.Exec(ctx, q); err != nil {
				return fmt.Errorf("%s: %w", firstLine(q), err)
			}
		}
		return nil
	})
}

// CreateDatabase makes an empty database; encoding may be empty (UTF8) or a name such as LATIN1.
func (s *Server) CreateDatabase(ctx context.Context, name, encoding string) error {
	q := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize()
	if encoding != "" {
		q += " TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' ENCODING '" + encoding + "'"
	}
	return s.Exec(ctx, "postgres", q)
}

// Start starts a stopped server again, on the same port and data, and returns when it takes connections.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil && s.proc.Alive() {
		return nil
	}
	logStart := fileSize(s.LogPath())
	p, err := proc.Start(proc.Spec{
		Path:    filepath.Join(s.binDir, "postgres"),
		Args:    []string{"-D", s.DataDir(), "-p", strconv.Itoa(s.port)},
		Env:     serverEnv(),
		Dir:     s.dir,
		LogFile: s.LogPath(),
		User:    s.user,
		// An immediate shutdown: the server ends its children and frees its shared memory, which SIGKILL would not.
		DeathSignal: syscall.SIGQUIT,
	})
	if err != nil {
		return err
	}
	s.proc = p
	if err := s.awaitReady(ctx, p); err != nil {
		p.KillTree()
		return fmt.Errorf("start PostgreSQL %s: %w; its log: %s", s.version, err, tail(s.LogPath(), logStart))
	}
	return nil
}

func (s *Server) awaitReady(ctx context.Context, p *proc.Process) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.StartTimeout)
	defer cancel()
	cfg, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=%d user=%s dbname=postgres", s.SocketDir(), s.port, Superuser))
	if err != nil {
		return err
	}
	for {
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.Done():
			return errors.New("the server ended")
		case <-ctx.Done():
			return fmt.Errorf("no connection: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// StopFast asks for a fast shutdown, which waits for walsenders to flush, and waits for it until ctx ends; then it kills
// the server and errs.
func (s *Server) StopFast(ctx context.Context) error { return s.stop(ctx, syscall.SIGINT) }

// StopImmediate asks for an immediate shutdown: no checkpoint; the next start recovers.
func (s *Server) StopImmediate(ctx context.Context) error { return s.stop(ctx, syscall.SIGQUIT) }

// Signal sends sig to the postmaster without waiting.
func (s *Server) Signal(sig syscall.Signal) error {
	p := s.process()
	if p == nil {
		return errors.New("PostgreSQL is not running")
	}
	return p.Signal(sig)
}

// Done is closed when the server has ended; nil while it was never started.
func (s *Server) Done() <-chan struct{} {
	if p := s.process(); p != nil {
		return p.Done()
	}
	return nil
}

func (s *Server) stop(ctx context.Context, sig syscall.Signal) error {
	p := s.process()
	if p == nil {
		return nil
	}
	return p.Stop(ctx, sig)
}

// Kill9 kills the postmaster and all its children with SIGKILL, as the machine's crash would, and waits until they are
// gone.
func (s *Server) Kill9() {
	if p := s.process(); p != nil {
		p.KillTree()
	}
}

// Restart stops the server fast and starts it again.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.StopFast(ctx); err != nil {
		return err
	}
	return s.Start(ctx)
}

// Set writes settings into postgresql.conf; they hold from the next Restart on, or from Reload for those that need no
// restart.
func (s *Server) Set(settings map[string]string) error { return s.appendConf(settings) }

// Reload makes the server read its configuration again.
func (s *Server) Reload() error { return s.Signal(syscall.SIGHUP) }

// Alive tells whether the server process runs.
func (s *Server) Alive() bool {
	p := s.process()
	return p != nil && p.Alive()
}

// Pid is the postmaster's process id, 0 while stopped.
func (s *Server) Pid() int {
	if p := s.process(); p != nil && p.Alive() {
		return p.Pid()
	}
	return 0
}

// Close stops the server at once and removes its temporary directory. Closing twice is safe.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.StopImmediate(ctx)
	if s.temp && os.Getenv("CDC_RELAY_TEST_KEEP") == "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

func (s *Server) process() *proc.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

func (s *Server) appendConf(settings map[string]string) error {
	f, err := os.OpenFile(filepath.Join(s.DataDir(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	defer f.Close()
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "\n%s = '%s'", k, strings.ReplaceAll(settings[k], "'", "''"))
	}
	b.WriteByte('\n')
	if _, err := f.WriteString(b.String()); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return f.Close()
}

// serverEnv is the environment of the server and of initdb: none of the caller's PG* variables or locale.
func serverEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "TZ=UTC"}
}

func fileSize(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}

// tail is the end of a file, from offset on, at most 4 KiB.
func tail(path string, offset int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) <= offset {
		return "(empty)"
	}
	b = b[offset:]
	return string(b[max(0, len(b)-4096):])
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
