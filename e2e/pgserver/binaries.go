package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// ErrNoBinaries says that a version is not installed on this machine.
var ErrNoBinaries = errors.New("no PostgreSQL binaries")

const debianRoot = "/usr/lib/postgresql"

// FindBinaries is the directory of initdb and postgres of a major version: Debian's, that of pg_config on the PATH, or
// that which `make deps` unpacked from npm into the cache.
func FindBinaries(version string) (string, error) {
	candidates := []string{filepath.Join(debianRoot, version, "bin")}
	if dir, ok := pgConfigBinDir(version); ok {
		candidates = append(candidates, dir)
	}
	cache, err := proc.CacheDir()
	if err != nil {
		return "", err
	}
	npm := filepath.Join(cache, "postgres", version)
	candidates = append(candidates, filepath.Join(npm, "bin"))
	for _, dir := range candidates {
		if !hasServer(dir) {
			continue
		}
		if u, err := proc.Unprivileged(); err != nil {
			return "", err
		} else if u == nil || proc.Traversable(dir) {
			return dir, nil
		}
		return reachableCopy(filepath.Dir(dir))
	}
	return "", fmt.Errorf("%w of version %s in %v: `make deps PG=%s` installs them (from npm for 16 to 18), or apt-get install postgresql",
		ErrNoBinaries, version, candidates, version)
}

// ClientBinary is the path of a client program, such as psql, pgbench or pg_recvlogical: the newest Debian has, else the
// one on the PATH. Clients of another version than the server's work.
func ClientBinary(name string) (string, error) {
	found, _ := filepath.Glob(filepath.Join(debianRoot, "*", "bin", name))
	if len(found) > 0 {
		return found[len(found)-1], nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s: %w: apt-get install postgresql", name, ErrNoBinaries)
	}
	return path, nil
}

func hasServer(dir string) bool {
	for _, name := range []string{"postgres", "initdb"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm()&0o100 == 0 {
			return false
		}
	}
	return true
}

var versionRE = regexp.MustCompile(`^PostgreSQL (\d+)`)

func pgConfigBinDir(version string) (string, bool) {
	out, err := exec.Command("pg_config", "--version").Output()
	if err != nil {
		return "", false
	}
	if m := versionRE.FindSubmatch(out); m == nil || string(m[1]) != version {
		return "", false
	}
	out, err = exec.Command("pg_config", "--bindir").Output()
	if err != nil {
		return "", false
	}
	return string(out[:max(0, len(out)-1)]), true
}

var copies struct {
	sync.Mutex
	of map[string]string
}

// reachableCopy copies an installation, which the unprivileged user cannot reach (a checkout below a closed home
// directory, say), into this process's run directory, once.
func reachableCopy(root string) (string, error) {
	copies.Lock()
	defer copies.Unlock()
	if dir, ok := copies.of[root]; ok {
		return dir, nil
	}
	tmp, err := proc.TempDir("postgres")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("cp", "-R", "--reflink=auto", root, filepath.Join(tmp, "pg")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("copy %s: %w: %s", root, err, out)
	}
	if out, err := exec.Command("chmod", "-R", "a+rX", tmp).CombinedOutput(); err != nil {
		return "", fmt.Errorf("open %s to every user: %w: %s", tmp, err, out)
	}
	if copies.of == nil {
		copies.of = map[string]string{}
	}
	copies.of[root] = filepath.Join(tmp, "pg", "bin")
	return copies.of[root], nil
}
