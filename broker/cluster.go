package broker

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/fault"
)

// ErrClosed is returned by calls on a closed Cluster.
var ErrClosed = errors.New("the Kafka connection is closed")

// refreshInterval is the shortest pause between two effective calls of Refresh.
const refreshInterval = 250 * time.Millisecond

// Cluster is a set of connections to one Kafka cluster. Its methods may be
// called from any goroutine.
type Cluster struct {
	cfg       Config
	dialer    *dialer
	transport *kafka.Transport
	client    *kafka.Client
	control   *control

	ctx    context.Context // ends at Close; stops the transport's discovery
	cancel context.CancelFunc

	mu        sync.Mutex
	refreshed time.Time
}

// Open checks cfg and reads its files; it does not touch the network. Its errors
// are fault.Stop and name every problem.
func Open(cfg Config) (*Cluster, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, dialer: &dialer{cfg: cfg}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.transport = &kafka.Transport{
		Dial: c.dialer.DialContext,
		// For all bootstrap brokers in turn; each is bounded by the dialer.
		DialTimeout: cfg.DialTimeout*time.Duration(len(cfg.Brokers)) + time.Second,
		IdleTimeout: 5 * time.Minute,
		MetadataTTL: cfg.MetadataTTL,
		ClientID:    cfg.ClientID,
		Context:     c.ctx,
	}
	c.control = newControl(c.dialer, cfg)
	c.client = &kafka.Client{
		Addr:      kafka.TCP(cfg.Brokers...),
		Timeout:   cfg.RequestTimeout,
		Transport: c.Transport(),
	}
	return c, nil
}

// Client returns a client with the cluster's address, transport and request
// time-out. While the cluster cannot be discovered its requests fail with "topic
// not found"; Ping tells the true cause.
func (c *Cluster) Client() *kafka.Client { return c.client }

// Addr is the address of the bootstrap brokers, for Transport's RoundTrip.
func (c *Cluster) Addr() net.Addr { return c.client.Addr }

// Transport returns the round tripper that pools connections and routes each
// request to its broker. A request whose context has no deadline gets
// Config.RequestTimeout: a request that waits for ever would hold its connection
// and its goroutine for ever.
func (c *Cluster) Transport() kafka.RoundTripper { return roundTripper{c} }

type roundTripper struct{ c *Cluster }

func (r roundTripper) RoundTrip(ctx context.Context, addr net.Addr, req kafka.Request) (kafka.Response, error) {
	if r.c.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.c.cfg.RequestTimeout)
		defer cancel()
	}
	return r.c.transport.RoundTrip(ctx, addr, req)
}

// Refresh drops the cached layout and every idle connection, so that the next
// request finds the leaders anew; connections in use are closed after their
// request. Calls within 250 ms of an effective one do nothing.
func (c *Cluster) Refresh() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.refreshed) < refreshInterval {
		return
	}
	c.transport.CloseIdleConnections()
	c.refreshed = time.Now()
}

// Ping makes a new connection to each bootstrap broker until one answers a
// metadata request, and returns nil then. Otherwise it returns a *fault.Error
// with the true cause: Stop where a person must act (wrong password, a
// certificate that does not verify), which wins over Retry of a broker that is
// away.
func (c *Cluster) Ping(ctx context.Context) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	var worst *fault.Error
	for _, address := range c.cfg.Brokers {
		err := c.control.probe(ctx, address)
		if err == nil {
			return nil
		}
		if worst == nil || err.Class == fault.Stop && worst.Class != fault.Stop {
			worst = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	if worst.Class == fault.Refresh {
		worst.Class = fault.Retry // a new connection was just tried
	}
	return worst
}

// Close releases every connection; requests in flight end with their time-outs.
// Closing twice is safe.
func (c *Cluster) Close() error {
	c.cancel()
	c.transport.CloseIdleConnections()
	c.control.close()
	return nil
}
