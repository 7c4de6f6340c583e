package rig

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/bench/maven"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

//go:embed perftool.pom.xml
var perfPom []byte

// PerfTool says why Kafka's producer performance tool cannot be run, or nothing.
func (e *Env) PerfTool(ctx context.Context) error {
	if e.NoBroker != nil {
		return e.NoBroker
	}
	if _, err := maven.Java(); err != nil {
		return err
	}
	_, err := maven.Dir(ctx, "kafka-perf-tool", perfPom)
	return err
}

// perfSettings: as the relay, all acks and no compression; batches that are large enough not to be the brake.
var perfSettings = []string{"acks=all", "compression.type=none", "batch.size=262144", "linger.ms=5", "buffer.memory=67108864"}

// RunPerfTool lets Kafka's producer performance tool write n records of size bytes, after a quarter as many that it does not count. It
// returns the process, which has ended, and the rate that the tool itself prints.
func (e *Env) RunPerfTool(ctx context.Context, topic string, n, size int) (*proc.Process, float64, error) {
	java, err := maven.Java()
	if err != nil {
		return nil, 0, err
	}
	jars, err := maven.Dir(ctx, "kafka-perf-tool", perfPom)
	if err != nil {
		return nil, 0, err
	}
	classpath, err := maven.Classpath(jars)
	if err != nil {
		return nil, 0, err
	}
	payloads, err := e.payloadFile(size)
	if err != nil {
		return nil, 0, err
	}
	log := filepath.Join(e.Dir, topic+".perf.log")
	args := append([]string{"-Xmx512m"}, peakJVM...)
	args = append(args, "-cp", classpath, "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", e.Broker.Addr(), "--topic", topic,
		"--num-records", strconv.Itoa(n+n/4), "--warmup-records", strconv.Itoa(n/4), "--throughput", "-1", "--payload-file", payloads, "--command-property")
	p, err := proc.Start(proc.Spec{Path: java, Args: append(args, perfSettings...), Env: cleanEnv(), LogFile: log})
	if err != nil {
		return nil, 0, err
	}
	err = p.Wait(ctx)
	p.KillTree()
	out, _ := os.ReadFile(log)
	if err != nil {
		return nil, 0, fmt.Errorf("producer performance tool: %w:\n%s", err, out[max(0, len(out)-2000):])
	}
	rate, err := perfRate(string(out))
	return p, rate, err
}

var perfLine = regexp.MustCompile(`steady state records sent, ([0-9.]+) records/sec`)

// perfRate is the rate in the tool's summary of what it sent after its warm-up.
func perfRate(out string) (float64, error) {
	all := perfLine.FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		return 0, fmt.Errorf("producer performance tool: no summary in its output:\n%s", out[max(0, len(out)-1000):])
	}
	return strconv.ParseFloat(all[len(all)-1][1], 64)
}

// payloadFile has lines of size bytes: making up a payload for each record would cost the tool as much as sending it.
func (e *Env) payloadFile(size int) (string, error) {
	path := filepath.Join(e.Dir, fmt.Sprintf("payloads-%d", size))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	rnd := rand.New(rand.NewPCG(1, uint64(size)))
	var b strings.Builder
	for range 1000 {
		for range size {
			b.WriteByte(byte('A' + rnd.IntN(26)))
		}
		b.WriteByte('\n')
	}
	return path, os.WriteFile(path, []byte(b.String()), 0o644)
}

// RecordSize is the mean number of bytes of key, value and headers in the first records of a topic.
func (e *Env) RecordSize(ctx context.Context, topic string) (int, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(e.Broker.Addr()), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	var records, bytes int
	for records < 100 {
		fetches := cl.PollRecords(ctx, 1000)
		if err := fetches.Err(); err != nil {
			return 0, fmt.Errorf("read topic %s: %w", topic, err)
		}
		for _, r := range fetches.Records() {
			records++
			bytes += len(r.Key) + len(r.Value)
			for _, h := range r.Headers {
				bytes += len(h.Key) + len(h.Value) + 2 // and their lengths
			}
		}
	}
	if bytes == 0 {
		return 0, errors.New("empty records in topic " + topic)
	}
	return bytes / records, nil
}
