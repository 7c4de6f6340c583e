package kafkaserver

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// pom names the jars of the broker, pinned.
//
//go:embed pom.xml
var pom []byte

// ErrNoJars says that what the broker needs, its jars or Java, is not here and could not be fetched.
var ErrNoJars = errors.New("Apache Kafka is not available")

// EnsureJars is the directory of the broker's jars. It runs Maven when they are missing, one process at a time; the
// error matches ErrNoJars when that is not possible. CDC_RELAY_KAFKA_JARS names a directory to take instead, such as libs/
// of an unpacked release.
func EnsureJars(ctx context.Context) (string, error) {
	if dir := os.Getenv("CDC_RELAY_KAFKA_JARS"); dir != "" {
		return dir, nil
	}
	cache, err := proc.CacheDir()
	if err != nil {
		return "", err
	}
	h := fnv.New32a()
	h.Write(pom)
	dir := filepath.Join(cache, "kafka", fmt.Sprintf("jars-%08x", h.Sum32())) // another pom, another directory
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
		return "", fmt.Errorf("%w: %w", ErrNoJars, err)
	}
	return dir, nil
}

// Prepare does all that the first Start would do once: fetch the jars and write the class archive.
func Prepare(ctx context.Context) error {
	jars, err := EnsureJars(ctx)
	if err != nil {
		return err
	}
	return ensureArchive(ctx, jars)
}

func fetch(ctx context.Context, dir string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return fmt.Errorf("%w: install Maven, or set CDC_RELAY_KAFKA_JARS", err)
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return err
	}
	pomPath := filepath.Join(filepath.Dir(dir), "pom.xml")
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

// classpath lists the jars in a fixed order, since a class archive is only good for the very class path it was made with.
func classpath(jars string) (string, error) {
	names, err := filepath.Glob(filepath.Join(jars, "*.jar"))
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", fmt.Errorf("%w: no jar in %s", ErrNoJars, jars)
	}
	return strings.Join(names, ":"), nil // Glob sorts
}

// archive is the JVM flag that writes or uses the class archive, which halves the time of a start. Where the archive does
// not fit, the JVM goes on without it.
func (b *Broker) archive() string {
	if b.training {
		return "-XX:ArchiveClassesAtExit=" + b.jars + ".jsa.part"
	}
	return "-XX:SharedArchiveFile=" + b.jars + ".jsa"
}

// ensureArchive starts and stops a broker once to write the class archive.
func ensureArchive(ctx context.Context, jars string) error {
	path := jars + ".jsa"
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	unlock, err := proc.Lock(path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	_ = os.Remove(path + ".part")
	b, err := Start(ctx, Options{training: true})
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Stop(ctx); err != nil {
		return err
	}
	if err := os.Rename(path+".part", path); err != nil {
		return os.WriteFile(path, nil, 0o644) // this JVM writes none: do not try again
	}
	return nil
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

func findJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		return filepath.Join(home, "bin", "java"), nil
	}
	path, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("%w: it needs Java 17 (apt-get install openjdk-17-jre-headless): %w", ErrNoJars, err)
	}
	return path, nil
}

// formatStorage makes dir the data directory of a new cluster. What Kafka's storage tool writes is kept beside the jars and
// copied with fresh ids, which saves the start of a JVM. A directory that is formatted already keeps its ids and its data.
func formatStorage(ctx context.Context, jars, dir, java string) error {
	if isDir(dir) {
		return nil
	}
	template := jars + ".format"
	unlock, err := proc.Lock(jars + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if !isDir(template) {
		if err := formatTemplate(ctx, jars, template, java); err != nil {
			return fmt.Errorf("format Kafka's storage: %w", err)
		}
	}
	if out, err := exec.CommandContext(ctx, "cp", "-R", template, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", template, err, out)
	}
	meta := fmt.Sprintf("version=1\nnode.id=1\ncluster.id=%s\ndirectory.id=%s\n", newID(), newID())
	return os.WriteFile(filepath.Join(dir, "meta.properties"), []byte(meta), 0o644)
}

func formatTemplate(ctx context.Context, jars, template, java string) error {
	tmp, err := proc.TempDir("format")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	data, conf := filepath.Join(tmp, "data"), filepath.Join(tmp, "format.properties")
	props := "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n" +
		"controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n" +
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\nlog.dirs=" + data + "\n"
	if err := os.WriteFile(conf, []byte(props), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, java, "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(jars, "*"),
		"kafka.tools.StorageTool", "format", "-t", newID(), "-c", conf)
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	part := template + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-R", data, part).CombinedOutput(); err != nil {
		return fmt.Errorf("copy: %w: %s", err, out)
	}
	return os.Rename(part, template)
}

// newID is a random UUID in Kafka's notation; one that begins with a dash would be read as an option by Kafka's tools.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[0] &= 0x7f
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func pingWith(ctx context.Context, cl *kgo.Client) error {
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	if len(resp.Brokers) == 0 {
		return errors.New("the broker has not registered yet")
	}
	return nil
}
