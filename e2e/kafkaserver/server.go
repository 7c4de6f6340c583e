// Package kafkaserver runs a real single-node Apache Kafka, broker and controller in one process (KRaft), from jars that
// Maven fetched. It needs no testing package, so that the demo can use it too.
//
//	k, err := kafkaserver.Start(ctx, kafkaserver.Options{})
//	if err != nil { ... }
//	defer k.Close()
//	fmt.Println(k.Addr())
//
// The broker dies with this process.
package kafkaserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// Options says what broker to start.
type Options struct {
	// Settings go into server.properties, after and over the defaults.
	Settings map[string]string
	Heap     string // the JVM's -Xmx; "384m" when empty
	// JVMFlags replace the default flags, which favour a fast start over peak speed.
	JVMFlags []string
	// Dir is where data and log go; a temporary directory when empty.
	Dir  string
	Port int // 0: a free one
	// Advertised, where set, is the host:port that the broker tells its clients to connect to: a proxy's.
	Advertised string
	// Listeners are further ones, by the name that Settings may refer to in listener.name.<name>.*.
	Listeners []Listener
	// StartTimeout bounds each start; two minutes when zero.
	StartTimeout time.Duration

	training bool
}

// Listener is a further listener on loopback.
type Listener struct {
	Name     string // upper case, such as SASL
	Protocol string // PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
	Port     int    // 0: a free one
	// Advertised, where set, is the host:port that clients of this listener are told to connect to: a proxy's.
	Advertised string
}

// fastStart makes the JVM compile little.
var fastStart = []string{"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}

// Broker is one Kafka broker, running, paused or stopped.
type Broker struct {
	opts           Options
	dir            string
	temp           bool
	jars           string
	classpath      string
	training       bool // this broker runs to write the class archive
	java           string
	port           int
	controllerPort int
	listeners      map[string]int

	mu   sync.Mutex
	proc *proc.Process // nil while it was never started
}

// Start formats a storage directory and starts a broker in it. It fetches the jars when they are missing.
func Start(ctx context.Context, opts Options) (*Broker, error) {
	if opts.Heap == "" {
		opts.Heap = "384m"
	}
	if opts.StartTimeout == 0 {
		opts.StartTimeout = 2 * time.Minute
	}
	if opts.JVMFlags == nil {
		opts.JVMFlags = fastStart
	}
	b := &Broker{opts: opts, dir: opts.Dir, training: opts.training}
	var err error
	if b.jars, err = EnsureJars(ctx); err != nil {
		return nil, err
	}
	if b.java, err = findJava(); err != nil {
		return nil, err
	}
	if b.classpath, err = classpath(b.jars); err != nil {
		return nil, err
	}
	if !opts.training {
		if err := ensureArchive(ctx, b.jars); err != nil {
			return nil, err
		}
	}
	if b.dir == "" {
		b.temp = true
		if b.dir, err = proc.TempDir("kafka"); err != nil {
			return nil, err
		}
	}
	if err := b.startOnSomePorts(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// startOnSomePorts tries again with other ports when somebody took the free ones first.
func (b *Broker) startOnSomePorts(ctx context.Context) error {
	for try := 0; ; try++ {
		if err := b.choosePorts(); err != nil {
			return err
		}
		if err := b.format(ctx); err != nil {
			return err
		}
		err := b.Start(ctx)
		if err == nil || try == 4 || !strings.Contains(err.Error(), "BindException") {
			return err
		}
	}
}

func (b *Broker) choosePorts() error {
	b.port = b.opts.Port
	b.listeners = map[string]int{}
	ports := []*int{&b.controllerPort}
	b.controllerPort = 0
	if b.port == 0 {
		ports = append(ports, &b.port)
	}
	for _, p := range ports {
		free, err := proc.FreePort()
		if err != nil {
			return err
		}
		*p = free
	}
	for _, l := range b.opts.Listeners {
		port := l.Port
		if port == 0 {
			free, err := proc.FreePort()
			if err != nil {
				return err
			}
			port = free
		}
		b.listeners[l.Name] = port
	}
	return nil
}

// Addr is the host:port of the plain listener; it stays the same over restarts.
func (b *Broker) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// ListenerAddr is the host:port of one of Options.Listeners.
func (b *Broker) ListenerAddr(name string) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.listeners[name]))
}

// LogPath is the broker's log.
func (b *Broker) LogPath() string { return filepath.Join(b.dir, "kafka.log") }

func (b *Broker) dataDir() string { return filepath.Join(b.dir, "data") }

func (b *Broker) propertiesPath() string { return filepath.Join(b.dir, "server.properties") }

func (b *Broker) properties() map[string]string {
	listeners := []string{"PLAINTEXT://127.0.0.1:" + strconv.Itoa(b.port)}
	advertised := []string{"PLAINTEXT://" + b.Addr()}
	if b.opts.Advertised != "" {
		advertised[0] = "PLAINTEXT://" + b.opts.Advertised
	}
	protocols := []string{"PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"}
	for _, l := range b.opts.Listeners {
		listeners = append(listeners, l.Name+"://127.0.0.1:"+strconv.Itoa(b.listeners[l.Name]))
		address := b.ListenerAddr(l.Name)
		if l.Advertised != "" {
			address = l.Advertised
		}
		advertised = append(advertised, l.Name+"://"+address)
		protocols = append(protocols, l.Name+":"+l.Protocol)
	}
	controller := "127.0.0.1:" + strconv.Itoa(b.controllerPort)
	p := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        "1",
		"controller.quorum.voters":       "1@" + controller,
		"controller.listener.names":      "CONTROLLER",
		"inter.broker.listener.name":     "PLAINTEXT",
		"listener.security.protocol.map": strings.Join(protocols, ","),
		"listeners":                      strings.Join(append(listeners, "CONTROLLER://"+controller), ","),
		"advertised.listeners":           strings.Join(advertised, ","),
		"log.dirs":                       b.dataDir(),

		"auto.create.topics.enable":                        "false",
		"num.partitions":                                   "1",
		"default.replication.factor":                       "1",
		"min.insync.replicas":                              "1",
		"offsets.topic.replication.factor":                 "1",
		"offsets.topic.num.partitions":                     "1",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"group.initial.rebalance.delay.ms":                 "0",

		// A single node has nobody to hand its partitions to.
		"controlled.shutdown.enable": "false",
		// A killed broker must register again at once, not when its old session has run out.
		"broker.session.timeout.ms":    "3000",
		"broker.heartbeat.interval.ms": "500",

		"num.network.threads":                             "2",
		"num.io.threads":                                  "4",
		"background.threads":                              "2",
		"num.recovery.threads.per.data.dir":               "2",
		"log.cleaner.dedupe.buffer.size":                  "2097152",
		"log.index.size.max.bytes":                        "1048576",
		"metadata.log.max.record.bytes.between.snapshots": "20971520",
	}
	maps.Copy(p, b.opts.Settings)
	return p
}

// format writes the configuration and, where there is none yet, the data directory.
func (b *Broker) format(ctx context.Context) error {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	props := b.properties()
	var s strings.Builder
	for _, k := range slices.Sorted(maps.Keys(props)) {
		fmt.Fprintf(&s, "%s=%s\n", k, escape(props[k]))
	}
	if err := os.WriteFile(b.propertiesPath(), []byte(s.String()), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.dir, "log4j2.properties"), []byte(log4j2), 0o644); err != nil {
		return err
	}
	return formatStorage(ctx, b.jars, b.dataDir(), b.java)
}

// escape makes v one line of a Java properties file.
func escape(v string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(v)
}

const log4j2 = `rootLogger.level = warn
rootLogger.appenderRef.out.ref = OUT
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
`

// Start starts a stopped broker again, on the same ports and data, and returns when it answers a metadata request.
func (b *Broker) Start(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.proc != nil && b.proc.Alive() {
		return nil
	}
	args := append([]string{"-Xms64m", "-Xmx" + b.opts.Heap}, b.opts.JVMFlags...)
	args = append(args, b.archive(), "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-XX:-UsePerfData",
		"-Djava.awt.headless=true", "-Djava.io.tmpdir="+b.dir,
		"-Dlog4j2.configurationFile="+filepath.Join(b.dir, "log4j2.properties"),
		"-cp", b.classpath, "kafka.Kafka", b.propertiesPath())
	p, err := proc.Start(proc.Spec{Path: b.java, Args: args, Dir: b.dir, LogFile: b.LogPath()})
	if err != nil {
		return err
	}
	b.proc = p
	if err := b.awaitReady(ctx, p); err != nil {
		p.KillTree()
		log, _ := os.ReadFile(b.LogPath())
		return fmt.Errorf("start Kafka: %w; its log: %s", err, log[max(0, len(log)-4096):])
	}
	return nil
}

// awaitReady asks for metadata until the broker names itself as one that takes requests.
func (b *Broker) awaitReady(ctx context.Context, p *proc.Process) error {
	ctx, cancel := context.WithTimeout(ctx, b.opts.StartTimeout)
	defer cancel()
	for {
		err := ping(ctx, b.Addr())
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return errors.New("the broker ended")
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Stop stops the broker cleanly, kills it when ctx ends first, and returns when it is gone. It resumes a paused one.
func (b *Broker) Stop(ctx context.Context) error {
	p := b.process()
	if p == nil || !p.Alive() {
		return nil
	}
	_ = p.Signal(syscall.SIGCONT)
	return p.Stop(ctx, syscall.SIGTERM)
}

// Kill9 kills the broker with SIGKILL and waits until it is gone.
func (b *Broker) Kill9() {
	if p := b.process(); p != nil {
		p.KillTree()
	}
}

// Pause freezes the broker (SIGSTOP): connections stay open and nothing answers.
func (b *Broker) Pause() error { return b.signal(syscall.SIGSTOP) }

// Resume lets a paused broker go on.
func (b *Broker) Resume() error { return b.signal(syscall.SIGCONT) }

// Alive tells whether the broker's process exists.
func (b *Broker) Alive() bool {
	p := b.process()
	return p != nil && p.Alive()
}

// Version is the broker's, such as "4.4.0".
func (b *Broker) Version() (string, error) {
	const prefix = "kafka-clients-"
	jars, err := filepath.Glob(filepath.Join(b.jars, prefix+"*.jar"))
	if err != nil || len(jars) != 1 {
		return "", fmt.Errorf("find %s*.jar in %s: %w", prefix, b.jars, cmp.Or(err, errors.New("not exactly one")))
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(jars[0]), prefix), ".jar"), nil
}

// Pid is the broker's process id, 0 while it does not run.
func (b *Broker) Pid() int {
	if p := b.process(); p != nil && p.Alive() {
		return p.Pid()
	}
	return 0
}

// Done is closed when the broker of the last start has ended; nil while it was never started.
func (b *Broker) Done() <-chan struct{} {
	if p := b.process(); p != nil {
		return p.Done()
	}
	return nil
}

// CPU is the processor time that the broker has used since its last start.
func (b *Broker) CPU() time.Duration {
	if p := b.process(); p != nil {
		return p.CPU()
	}
	return 0
}

func (b *Broker) signal(sig syscall.Signal) error {
	p := b.process()
	if p == nil {
		return errors.New("Kafka was never started")
	}
	return p.Signal(sig)
}

// Close kills the broker and removes its temporary directory. Closing twice is safe.
func (b *Broker) Close() error {
	b.Kill9()
	if b.temp && os.Getenv("CDC_RELAY_TEST_KEEP") == "" {
		return os.RemoveAll(b.dir)
	}
	return nil
}

func (b *Broker) process() *proc.Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proc
}

// ping asks the broker at addr for metadata once.
func ping(ctx context.Context, addr string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RequestRetries(0), kgo.DialTimeout(time.Second))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return pingWith(ctx, cl)
}
