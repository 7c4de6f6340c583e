package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// Containers tells whether CDC_RELAY_TEST_CONTAINERS asks for containers.
func Containers() bool { return os.Getenv("CDC_RELAY_TEST_CONTAINERS") == "1" }

// containerLabel marks every container that a test made, so that scripts/containers.sh finds what a killed run left.
const containerLabel = "cdc-relay-e2e"

// Container is a server in a container. One port of it is bound to a fixed one on loopback, so that its address stays the same
// over stops, kills and cuts of its network.
type Container struct {
	c       testcontainers.Container
	docker  *testcontainers.DockerClient
	id      string
	image   string
	port    int    // on loopback
	network string // that Disconnect takes it from
	// ready asks the server once whether it takes requests.
	ready func(context.Context) error
}

// Container is the server's container, nil when it is a process.
func (pg *PG) Container() *Container {
	if c, ok := pg.PGControl.(*pgContainer); ok {
		return c.Container
	}
	return nil
}

// Container is the broker's container, nil when it is a process.
func (k *Cluster) Container() *Container {
	if c, ok := k.KafkaControl.(*kafkaContainer); ok {
		return c.Container
	}
	return nil
}

// createContainer makes a container of req, whose inner port of TCP is bound to port on loopback. It does not start it.
func createContainer(ctx context.Context, req testcontainers.ContainerRequest, inner string, port int) (*Container, error) {
	binding, err := network.ParsePort(inner)
	if err != nil {
		return nil, err
	}
	tclog.SetDefault(tclog.NewNoopLogger()) // no banner between the results
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return nil, fmt.Errorf("find a Docker engine (make e2e-containers starts one): %w", err)
	}
	req.ExposedPorts = []string{inner}
	req.Labels = map[string]string{containerLabel: strconv.Itoa(os.Getpid())}
	req.HostConfigModifier = func(h *container.HostConfig) {
		h.PortBindings = network.PortMap{binding: {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: strconv.Itoa(port)}}}
	}
	c, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{ContainerRequest: req})
	k := &Container{c: c, docker: docker, image: req.Image, port: port}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a container of %s: %w", req.Image, err), k.Close())
	}
	k.id = c.GetContainerID()
	info, err := c.Inspect(ctx)
	if err == nil && len(info.NetworkSettings.Networks) != 1 {
		err = fmt.Errorf("it is in %d networks, want one", len(info.NetworkSettings.Networks))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look at the container of %s: %w", req.Image, err), k.Close())
	}
	k.network = slices.Collect(maps.Keys(info.NetworkSettings.Networks))[0]
	return k, nil
}

// Addr is the server's host:port on loopback.
func (c *Container) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

// Start starts the container and returns when the server in it takes requests. Starting a running one is no error.
func (c *Container) Start(ctx context.Context) error {
	if _, err := c.docker.ContainerStart(ctx, c.id, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start the container of %s: %w", c.image, err)
	}
	return c.awaitReady(ctx)
}

func (c *Container) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := c.ready(ctx)
		if err == nil {
			return nil
		}
		if !c.running(ctx) {
			return fmt.Errorf("the container of %s ended; its log: %s", c.image, c.Log())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the container of %s takes no requests: %w; its log: %s", c.image, err, c.Log())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// running is true also where the engine does not answer.
func (c *Container) running(ctx context.Context) bool {
	state, err := c.c.State(ctx)
	return err != nil || state.Running
}

// signal sends a signal and waits until the container has ended; after ctx it is killed, and that is an error. A container
// that has ended already is none.
func (c *Container) signal(ctx context.Context, sig string) error {
	_ = c.Resume() // a paused one takes no signal; the error says that it was not paused
	if !c.running(ctx) {
		return nil
	}
	wait := c.docker.ContainerWait(ctx, c.id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	if _, err := c.docker.ContainerKill(ctx, c.id, client.ContainerKillOptions{Signal: sig}); err != nil && c.running(ctx) {
		return fmt.Errorf("send %s to the container of %s: %w", sig, c.image, err)
	}
	select {
	case <-wait.Result:
		return nil
	case err := <-wait.Error:
		if ctx.Err() != nil && sig != "KILL" {
			c.Kill9()
		}
		return fmt.Errorf("wait until the container of %s has ended after %s: %w", c.image, sig, err)
	}
}

// Kill9 kills all processes in the container with SIGKILL and waits until they are gone.
func (c *Container) Kill9() {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	if err := c.signal(ctx, "KILL"); err != nil {
		panic(err) // a test that goes on with a server it believes dead proves nothing
	}
}

// Pause freezes all processes in the container: connections stay open and nothing answers.
//
// With cgroups of version 1 the kernel freezes threads one by one, and those that start meanwhile or wait for a disk are missed:
// runc then thaws all, tries a bounded number of times, and gives up ("unable to freeze", libcontainer/cgroups/fs/freezer.go). A
// busy JVM can outlast that, so it is asked again here.
func (c *Container) Pause() error {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	for {
		_, err := c.docker.ContainerPause(ctx, c.id, client.ContainerPauseOptions{})
		if err == nil || !strings.Contains(err.Error(), "unable to freeze") {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Resume lets a paused container go on.
func (c *Container) Resume() error {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	_, err := c.docker.ContainerUnpause(ctx, c.id, client.ContainerUnpauseOptions{})
	return err
}

// Disconnect takes the container from its network, while the server goes on.
func (c *Container) Disconnect() error {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	_, err := c.docker.NetworkDisconnect(ctx, c.network, client.NetworkDisconnectOptions{Container: c.id})
	return err
}

// Connect undoes Disconnect and returns when the server takes requests again at the same address.
func (c *Container) Connect() error {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	if _, err := c.docker.NetworkConnect(ctx, c.network, client.NetworkConnectOptions{Container: c.id}); err != nil {
		return err
	}
	return c.awaitReady(ctx)
}

// Log is the end of what the server wrote.
func (c *Container) Log() string {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	r, err := c.c.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-6000):])
}

// Close kills and removes the container. Closing twice is safe.
func (c *Container) Close() error {
	var err error
	if c.id != "" {
		_ = c.Resume()
		err = c.c.Terminate(context.Background(), testcontainers.StopTimeout(0))
		c.id = ""
	}
	return errors.Join(err, c.docker.Close())
}

// imageOf is the image that the environment names, or the default.
func imageOf(variable, otherwise string) string {
	if v := os.Getenv(variable); v != "" {
		return v
	}
	return otherwise
}

type pgContainer struct{ *Container }

func startPGContainer(ctx context.Context, o pgserver.Options) (*pgContainer, error) {
	version := "17"
	if v := os.Getenv("CDC_RELAY_TEST_PG_VERSION"); v != "" {
		version = v
	}
	settings := map[string]string{
		"wal_level":                "logical",
		"max_replication_slots":    "20",
		"max_wal_senders":          "20",
		"shared_buffers":           "64MB",
		"fsync":                    "off", // a killed server loses nothing while the machine lives
		"log_replication_commands": "on",
		"timezone":                 "UTC",
	}
	maps.Copy(settings, o.Settings)
	var args []string
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", k+"="+settings[k])
	}
	port, err := proc.FreePort()
	if err != nil {
		return nil, err
	}
	c, err := createContainer(ctx, testcontainers.ContainerRequest{
		Image: imageOf("CDC_RELAY_TEST_POSTGRES_IMAGE", "postgres:"+version),
		Env:   map[string]string{"POSTGRES_USER": pgserver.Superuser, "POSTGRES_PASSWORD": pgserver.Password},
		Cmd:   args,
	}, "5432/tcp", port)
	if err != nil {
		return nil, err
	}
	pg := &pgContainer{c}
	c.ready = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, pg.DSN("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	}
	if err := c.Start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return pg, nil
}

// DSN carries the superuser's password, which the official image asks for.
func (pg *pgContainer) DSN(db string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(pgserver.Superuser, pgserver.Password), Host: pg.Addr(), Path: "/" + db,
		RawQuery: "sslmode=disable"}
	return u.String()
}

// StopFast asks for a fast shutdown and waits for it until ctx ends; then it kills the server and errs.
func (pg *pgContainer) StopFast(ctx context.Context) error { return pg.signal(ctx, "INT") }

// StopImmediate asks for an immediate shutdown.
func (pg *pgContainer) StopImmediate(ctx context.Context) error { return pg.signal(ctx, "QUIT") }

// unsupportedPG names what only a process can be given; "" when there is none of it.
func unsupportedPG(o pgserver.Options) string {
	switch {
	case len(o.HBA) > 0:
		return "lines in pg_hba.conf"
	case o.CertFile != "":
		return "TLS"
	case o.Dir != "" || o.Port != 0:
		return "a directory and port of its own"
	}
	return ""
}

type kafkaContainer struct{ *Container }

func startKafkaContainer(ctx context.Context, opts kafkaserver.Options) (*kafkaContainer, error) {
	port := opts.Port
	if port == 0 {
		var err error
		if port, err = proc.FreePort(); err != nil {
			return nil, err
		}
	}
	advertised := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if opts.Advertised != "" {
		advertised = opts.Advertised
	}
	c, err := createContainer(ctx, testcontainers.ContainerRequest{
		Image: imageOf("CDC_RELAY_TEST_KAFKA_IMAGE", "apache/kafka:4.0.0"),
		Env:   kafkaEnv(opts, advertised),
	}, "9092/tcp", port)
	if err != nil {
		return nil, err
	}
	c.ready = func(ctx context.Context) error { return pingKafka(ctx, c.Addr()) }
	if err := c.Start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &kafkaContainer{c}, nil
}

// kafkaEnv is the configuration of a single node, as the official image takes it. The inner listener lets the broker reach
// itself, whatever happens to its network.
func kafkaEnv(opts kafkaserver.Options, advertised string) map[string]string {
	properties := map[string]string{
		"node.id":                                  "1",
		"process.roles":                            "broker,controller",
		"controller.quorum.voters":                 "1@localhost:9093",
		"controller.listener.names":                "CONTROLLER",
		"listeners":                                "OUTSIDE://:9092,INSIDE://localhost:9094,CONTROLLER://localhost:9093",
		"advertised.listeners":                     "OUTSIDE://" + advertised + ",INSIDE://localhost:9094",
		"listener.security.protocol.map":           "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name":               "INSIDE",
		"auto.create.topics.enable":                "false",
		"offsets.topic.replication.factor":         "1",
		"offsets.topic.num.partitions":             "1",
		"transaction.state.log.replication.factor": "1",
		"transaction.state.log.min.isr":            "1",
		"transaction.state.log.num.partitions":     "1",
		"group.initial.rebalance.delay.ms":         "0",
		"controlled.shutdown.enable":               "false",
		"broker.session.timeout.ms":                "3000",
		"broker.heartbeat.interval.ms":             "500",
	}
	maps.Copy(properties, opts.Settings)
	heap := opts.Heap
	if heap == "" {
		heap = "384m"
	}
	env := map[string]string{
		"KAFKA_HEAP_OPTS":            "-Xms64m -Xmx" + heap,
		"KAFKA_JVM_PERFORMANCE_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
	}
	for k, v := range properties {
		k = strings.NewReplacer("_", "__", "-", "___", ".", "_").Replace(k)
		env["KAFKA_"+strings.ToUpper(k)] = v
	}
	return env
}

// Stop stops the broker cleanly, kills it when ctx ends first, and returns when it is gone.
func (k *kafkaContainer) Stop(ctx context.Context) error { return k.signal(ctx, "TERM") }

// pingKafka asks the broker at addr for metadata once.
func pingKafka(ctx context.Context, addr string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RequestRetries(0), kgo.DialTimeout(time.Second))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	if len(resp.Brokers) == 0 {
		return errors.New("the broker has not registered yet")
	}
	return nil
}
