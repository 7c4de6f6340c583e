package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// reaper waits for the end of its standard input, which is a pipe that only this process holds open, and then removes
// the directory, trying again while servers that are just ending still write into it.
const reaper = `read _; i=0; while [ -e "$1" ] && [ $i -lt 100 ]; do rm -rf -- "$1" 2>/dev/null; [ -e "$1" ] && sleep 0.1; i=$((i+1)); done`

var base struct {
	sync.Mutex
	path string
	pipe *os.File // held open until this process ends
}

// TempDir makes a new directory for one service, which any user can reach. It is removed when this process ends, in
// whatever way, if its owner has not removed it before. CDC_RELAY_TEST_KEEP=1 keeps it.
func TempDir(name string) (string, error) {
	root, err := baseDir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(root, name+"-")
	if err != nil {
		return "", fmt.Errorf("make a directory for %s: %w", name, err)
	}
	return dir, os.Chmod(dir, 0o755)
}

func baseDir() (string, error) {
	base.Lock()
	defer base.Unlock()
	if base.path != "" {
		return base.path, nil
	}
	var parent string
	for _, p := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if Traversable(p) {
			parent = p
			break
		}
	}
	if parent == "" {
		return "", errors.New("no temporary directory can be reached by every user; set TMPDIR to one that can")
	}
	dir, err := os.MkdirTemp(parent, "cdc-relay-")
	if err != nil {
		return "", fmt.Errorf("make the run directory: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	if os.Getenv("CDC_RELAY_TEST_KEEP") == "" {
		if base.pipe, err = startReaper(dir); err != nil {
			return "", err
		}
	}
	base.path = dir
	return dir, nil
}

func startReaper(dir string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", "-c", reaper, "sh", dir)
	cmd.Dir = "/"
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // not hit by Ctrl-C or by the end of a terminal
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the remover of %s: %w", dir, err)
	}
	return w, nil // never waited for: it ends after this process
}

// Traversable tells whether every user can reach path: each directory on the way lets others pass.
func Traversable(path string) bool {
	path, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	for p := path; ; p = filepath.Dir(p) {
		st, err := os.Stat(p)
		if err != nil || st.Mode().Perm()&0o001 == 0 {
			return false
		}
		if p == "/" {
			return true
		}
	}
}

// User is an account that a child runs as.
type User struct {
	Name     string
	UID, GID int
}

func (u *User) credential() *syscall.Credential {
	return &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID), Groups: []uint32{}}
}

// Unprivileged is the user that servers run as which refuse to run as root: postgres, else nobody. It is nil when this
// process is not root.
func Unprivileged() (*User, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil {
			return &User{Name: name, UID: uid, GID: gid}, nil
		}
	}
	return nil, errors.New("this process is root and there is neither a user postgres nor nobody to run PostgreSQL as")
}

// ChownTree gives path and all below it to u; nothing when u is nil.
func ChownTree(path string, u *User) error {
	if u == nil {
		return nil
	}
	return filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, u.UID, u.GID)
	})
}

// CacheDir is the directory under which downloads and templates are kept between runs: CDC_RELAY_CACHE, else .cache
// beside the nearest go.mod, else the user's cache directory.
func CacheDir() (string, error) {
	if dir := os.Getenv("CDC_RELAY_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	if root, err := ModuleRoot(); err == nil {
		return filepath.Join(root, ".cache"), nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache directory (set CDC_RELAY_CACHE): %w", err)
	}
	return filepath.Join(dir, "cdc-relay"), nil
}

// ModuleRoot is the nearest directory at or above the working directory that has a go.mod.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("no go.mod at or above the working directory")
		}
	}
}

// Lock holds an exclusive lock on a file until the returned function is called, so that two test binaries do not fill
// one cache at the same time.
func Lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
