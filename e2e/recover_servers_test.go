package e2e_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// clone is a base backup that is not started yet.
type clone struct {
	x        *lostSlot
	dir      string
	settings map[string]string
}

// copyOf takes a base backup of a running server by copying its files, without the
// contents of the directories that are named.
func (x *lostSlot) copyOf(s *pgserver.Server, without ...string) *clone {
	t := x.t
	t.Helper()
	dir, err := proc.TempDir("clone")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx := context.Background()
	conn := x.pg.Conn(t)
	if _, err := conn.Exec(ctx, "SELECT pg_backup_start('e2e', true)"); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	// Files may go while they are copied, which a base backup allows.
	out, err := exec.Command("cp", "-R", "--reflink=auto", s.DataDir(), data).CombinedOutput()
	if err != nil && strings.Count(string(out), "\n") != strings.Count(string(out), "No such file or directory") {
		t.Fatalf("copy the server's files: %v: %s", err, out)
	}
	var label string
	if err := conn.QueryRow(ctx, "SELECT labelfile FROM pg_backup_stop(false)").Scan(&label); err != nil {
		t.Fatal(err)
	}
	c := &clone{x: x, dir: dir, settings: map[string]string{}}
	c.file("backup_label", label)
	_ = os.Remove(filepath.Join(data, "postmaster.pid"))
	for _, name := range without {
		entries, _ := filepath.Glob(filepath.Join(data, name, "*"))
		for _, e := range entries {
			_ = os.RemoveAll(e)
		}
	}
	return c
}

func (c *clone) file(name, content string) {
	c.x.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, "data", name), []byte(content), 0o600); err != nil {
		c.x.t.Fatal(err)
	}
}

func (c *clone) start() *pgserver.Server {
	c.x.t.Helper()
	s, err := pgserver.Start(context.Background(), pgserver.Options{Version: c.x.pg.Version, Dir: c.dir, Settings: c.settings})
	if err != nil {
		c.x.t.Fatal(err)
	}
	c.x.t.Cleanup(func() { _ = s.Close() })
	return s
}

// use makes another server the source.
func (x *lostSlot) use(s *pgserver.Server) {
	x.pg = &e2e.PG{PGControl: s, Server: s, Version: x.pg.Version, Database: x.pg.Database}
	x.dsn = x.pg.DSN()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func freshServer(t testing.TB, version string) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(context.Background(), pgserver.Options{Version: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// pgUpgrade upgrades the server to a new cluster of the same version.
func (x *lostSlot) pgUpgrade(bin string) {
	t, old := x.t, x.pg.Server
	fresh := freshServer(t, x.pg.Version)
	ctx := context.Background()
	for _, s := range []*pgserver.Server{old, fresh} {
		if err := s.StopFast(ctx); err != nil {
			t.Fatal(err)
		}
	}
	user, err := proc.Unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	work, err := proc.TempDir("up") // short, since its sockets are there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(work) })
	if err := proc.ChownTree(work, user); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(bin, "-b", old.BinDir(), "-B", fresh.BinDir(), "-d", old.DataDir(), "-D", fresh.DataDir(), "-U", pgserver.Superuser)
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, &out, &out
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "HOME=" + work}
	if user != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user.UID), Gid: uint32(user.GID), Groups: []uint32{}}}
	}
	if err := cmd.Run(); err != nil {
		t.Fatalf("pg_upgrade: %v\n%s", err, out.String())
	}
	if err := fresh.Start(ctx); err != nil {
		t.Fatal(err)
	}
	x.use(fresh)
}

// dumpAndRestore copies the table into a new cluster.
func (x *lostSlot) dumpAndRestore() {
	t, ctx := x.t, context.Background()
	fresh := freshServer(t, x.pg.Version)
	var rows bytes.Buffer
	from := x.pg.Conn(t)
	if _, err := from.PgConn().CopyTo(ctx, &rows, "COPY outbox TO STDOUT"); err != nil {
		t.Fatal(err)
	}
	if err := fresh.CreateDatabase(ctx, x.pg.Database, ""); err != nil {
		t.Fatal(err)
	}
	x.pg.StopFastIn(t, e2e.Timeout)
	x.use(fresh)
	x.pg.Exec(t, orderedTable)
	err := fresh.WithSuperuser(ctx, x.pg.Database, func(c *pgx.Conn) error {
		_, err := c.PgConn().CopyFrom(ctx, &rows, "COPY outbox FROM STDIN")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
