// Package maven fetches jars that the benchmark runs.
package maven

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// ErrNotAvailable says that jars are not here and could not be fetched, or that there is no Java to run them.
var ErrNotAvailable = errors.New("jars are not available")

// Dir is the directory of the jars of a pom, by the name of a directory in the cache. It runs Maven when they are missing, one process at
// a time.
func Dir(ctx context.Context, name string, pom []byte) (string, error) {
	cache, err := proc.CacheDir()
	if err != nil {
		return "", err
	}
	h := fnv.New32a()
	h.Write(pom)
	dir := filepath.Join(cache, name, fmt.Sprintf("jars-%08x", h.Sum32())) // another pom, another directory
	unlock, err := proc.Lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err != nil {
		if err := fetch(ctx, dir, pom); err != nil {
			return "", fmt.Errorf("%w: %s: %w", ErrNotAvailable, name, err)
		}
	}
	return dir, nil
}

// Classpath names all jars of a directory.
func Classpath(dir string) (string, error) {
	jars, err := filepath.Glob(filepath.Join(dir, "*.jar"))
	if err != nil || len(jars) == 0 {
		return "", fmt.Errorf("%w: no jar in %s", ErrNotAvailable, dir)
	}
	return strings.Join(jars, ":"), nil
}

// fetch lets Maven copy the jars into a directory that gets its name when it is complete.
func fetch(ctx context.Context, dir string, pom []byte) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return fmt.Errorf("%w: install Maven", err)
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return err
	}
	path := dir + ".pom.xml"
	if err := os.WriteFile(path, pom, 0o644); err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", "-f", path, "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+part)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run Maven: %w: %s", err, out.Bytes()[max(0, out.Len()-2000):])
	}
	return os.Rename(part, dir)
}

// Java is the path of java.
func Java() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		return filepath.Join(home, "bin", "java"), nil
	}
	path, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("%w: Java 17 is needed (apt-get install openjdk-17-jre-headless): %w", ErrNotAvailable, err)
	}
	return path, nil
}
