package debezium

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// pom names the jars of Kafka Connect and Debezium, pinned.
//
//go:embed pom.xml
var pom []byte

// ErrNotAvailable says that what Debezium needs, its jars or Java, is not here and could not be fetched.
var ErrNotAvailable = errors.New("Debezium is not available")

// Ensure is the directory of the jars of Kafka Connect and Debezium. It runs Maven when they are missing, one process at a time;
// the error matches ErrNotAvailable when that is not possible.
func Ensure(ctx context.Context) (string, error) {
	cache, err := proc.CacheDir()
	if err != nil {
		return "", err
	}
	h := fnv.New32a()
	h.Write(pom)
	dir := filepath.Join(cache, "debezium", fmt.Sprintf("jars-%08x", h.Sum32())) // another pom, another directory
	if isDir(dir) {
		return dir, nil
	}
	unlock, err := proc.Lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDir(dir) {
		return dir, nil
	}
	if err := fetch(ctx, dir); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotAvailable, err)
	}
	return dir, nil
}

// fetch lets Maven copy the jars into a directory that gets its name when it is complete.
func fetch(ctx context.Context, dir string) error {
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
	pomPath := dir + ".pom.xml"
	if err := os.WriteFile(pomPath, pom, 0o644); err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", "-f", pomPath, "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+part)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run Maven: %w: %s", err, out.Bytes()[max(0, out.Len()-2000):])
	}
	return os.Rename(part, dir)
}

func classpath(jars string) (string, error) {
	names, err := filepath.Glob(filepath.Join(jars, "*.jar"))
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", fmt.Errorf("%w: no jar in %s", ErrNotAvailable, jars)
	}
	return strings.Join(names, ":"), nil
}

func findJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		return filepath.Join(home, "bin", "java"), nil
	}
	path, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("%w: it needs Java 17 (apt-get install openjdk-17-jre-headless): %w", ErrNotAvailable, err)
	}
	return path, nil
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}
