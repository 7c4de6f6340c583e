// Package rig is what the benchmark measures with: a PostgreSQL server, a Kafka broker, and the systems that are compared, each
// a process of its own. All of it dies with the benchmark.
package rig

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/bench/record"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// peakJVM lets a JVM compile fully, as in production.
var peakJVM = []string{"-XX:+UseSerialGC", "-XX:+TieredCompilation"}

// BrokerHeap is the heap of the broker.
const BrokerHeap = "1g"

// kafkaVersion is that of the jars that e2e/kafkaserver starts.
const kafkaVersion = "4.4.0"

// Env is what all groups of cells share.
type Env struct {
	Dir     string // of this process, removed with it
	Binary  string // the relay
	Build   string // a hash of it
	Commit  string
	Machine record.Machine

	// Broker is nil where Kafka cannot be had; NoBroker then says why.
	Broker   *kafkaserver.Broker
	NoBroker error
	client   *kgo.Client
	admin    *kadm.Client

	programs map[string]string
	topics   int
}

// Open builds the relay, unless binary names one, and starts the broker.
func Open(ctx context.Context, binary string) (*Env, error) {
	dir, err := proc.TempDir("bench")
	if err != nil {
		return nil, err
	}
	e := &Env{Dir: dir, Binary: binary, Machine: record.Here(), programs: map[string]string{}}
	if binary == "" {
		if e.Binary, err = e.Program(ctx, "./cmd/cdc-relay"); err != nil {
			return nil, err
		}
	}
	if e.Build, err = hashOf(e.Binary); err != nil {
		return nil, err
	}
	e.Commit = commit()
	e.Broker, err = kafkaserver.Start(ctx, kafkaserver.Options{JVMFlags: peakJVM, Heap: BrokerHeap})
	if errors.Is(err, kafkaserver.ErrNoJars) {
		e.NoBroker = err
		return e, nil
	}
	if err != nil {
		return nil, err
	}
	e.Machine.Kafka = kafkaVersion
	if e.client, err = kgo.NewClient(kgo.SeedBrokers(e.Broker.Addr()), kgo.ClientID("bench")); err != nil {
		e.Close()
		return nil, err
	}
	e.admin = kadm.NewClient(e.client)
	return e, nil
}

// Close stops the broker.
func (e *Env) Close() {
	if e.client != nil {
		e.client.Close()
	}
	if e.Broker != nil {
		_ = e.Broker.Close() // killed with this process at the latest
	}
}

// Program builds a command of this module once and returns its path. The build does not depend on the commit, so that equal
// code has an equal hash.
func (e *Env) Program(ctx context.Context, pkg string) (string, error) {
	if path, ok := e.programs[pkg]; ok {
		return path, nil
	}
	root, err := proc.ModuleRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(e.Dir, filepath.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", path, pkg)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w:\n%s", pkg, err, out)
	}
	e.programs[pkg] = path
	return path, nil
}

func hashOf(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:12], nil
}

// commit names the commit that is checked out, with -dirty where Go files differ from it.
func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(out))
	if changed, err := exec.Command("git", "status", "--porcelain", "--", "*.go", "go.mod").Output(); err == nil && len(changed) > 0 {
		name += "-dirty"
	}
	return name
}

// NewTopic makes a topic of a new name and returns when all its partitions have leaders.
func (e *Env) NewTopic(ctx context.Context, partitions int) (string, error) {
	e.topics++
	name := fmt.Sprintf("bench-%d", e.topics)
	if _, err := e.admin.CreateTopic(ctx, int32(partitions), 1, nil, name); err != nil {
		return "", fmt.Errorf("create topic %s: %w", name, err)
	}
	return name, Poll(ctx, time.Minute, 20*time.Millisecond, "leaders of topic "+name, func() (bool, error) {
		ends, err := e.admin.ListEndOffsets(ctx, name)
		return err == nil && ends.Error() == nil && len(ends[name]) == partitions, nil
	})
}

// DeleteTopic frees the disk of a topic.
func (e *Env) DeleteTopic(ctx context.Context, name string) error {
	if _, err := e.admin.DeleteTopic(ctx, name); err != nil {
		return fmt.Errorf("delete topic %s: %w", name, err)
	}
	return nil
}

// Records is how many records a topic holds, on all partitions.
func (e *Env) Records(ctx context.Context, topic string) (int64, error) {
	ends, err := e.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("end offsets of topic %s: %w", topic, err)
	}
	var n int64
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n, nil
}

// WaitRecords waits until a topic holds n records.
func (e *Env) WaitRecords(ctx context.Context, topic string, n int, limit time.Duration) error {
	return Poll(ctx, limit, 10*time.Millisecond, fmt.Sprintf("%d records in the topic", n), func() (bool, error) {
		have, err := e.Records(ctx, topic)
		return have >= int64(n), err
	})
}

// Poll asks until done says so.
func Poll(ctx context.Context, limit, every time.Duration, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok && err == nil {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}
