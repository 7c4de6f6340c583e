package broker

import (
	"context"
	"net"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/cdc-relay/cdc-relay/fault"
)

// control is one connection to any broker, for questions whose answers must be
// fresh and must show their cause: the Transport answers metadata requests from
// its cache, and goes on doing so while the whole cluster is away.
type control struct {
	dialer *dialer
	cfg    Config
	turn   chan struct{} // holds a token while the connection is free

	// Owned by the holder of the token.
	conn   net.Conn
	pc     *protocol.Conn
	peer   string
	next   int // bootstrap broker to try first
	closed bool
}

func newControl(d *dialer, cfg Config) *control {
	c := &control{dialer: d, cfg: cfg, turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c
}

// do sends req and returns its answer. A broker that closed the connection
// meanwhile, or does not answer within DialTimeout, is left for the next one,
// until each was asked. Errors are *fault.Error, but for the end of ctx while
// others hold the connection and for ErrClosed.
func (c *control) do(ctx context.Context, req protocol.Message) (protocol.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	select {
	case <-c.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { c.turn <- struct{}{} }()
	if c.closed {
		return nil, ErrClosed
	}
	tries := len(c.cfg.Brokers)
	if c.conn != nil {
		tries++ // the connection at hand may be a dead one
	}
	for {
		if err := c.connect(ctx); err != nil {
			return nil, err
		}
		res, err := c.attempt(ctx, req)
		if err == nil {
			return res, nil
		}
		// What was read so far is unknown: never use this connection again.
		peer := c.peer
		c.drop()
		if tries--; tries == 0 || ctx.Err() != nil {
			return nil, c.dialer.explain(stageUse, peer, err)
		}
	}
}

func (c *control) attempt(ctx context.Context, req protocol.Message) (protocol.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	return exchange(ctx, c.conn, c.pc, req)
}

// connect opens the connection when there is none, trying each bootstrap broker.
func (c *control) connect(ctx context.Context) error {
	if c.conn != nil {
		return nil
	}
	var first error
	for range c.cfg.Brokers {
		address := c.cfg.Brokers[c.next%len(c.cfg.Brokers)]
		conn, pc, err := c.dialer.open(ctx, "tcp", address)
		if err == nil {
			c.conn, c.pc, c.peer = conn, pc, address
			return nil
		}
		c.next++
		if first == nil || fault.ClassOf(err) == fault.Stop {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return first
}

func (c *control) drop() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn, c.pc = nil, nil
	}
	c.next++
}

func (c *control) close() {
	<-c.turn
	c.drop()
	c.closed = true
	c.turn <- struct{}{}
}

// probe makes a connection of its own to address and asks for the brokers.
func (c *control) probe(ctx context.Context, address string) *fault.Error {
	conn, pc, err := c.dialer.open(ctx, "tcp", address)
	if err != nil {
		return c.dialer.explain(stageTCP, address, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	// No topic is named, and none is asked for: an empty list is not a null one.
	if _, err := exchange(ctx, conn, pc, &metadata.Request{TopicNames: []string{}}); err != nil {
		return c.dialer.explain(stageAPI, address, err)
	}
	return nil
}

func exchange(ctx context.Context, conn net.Conn, pc *protocol.Conn, req protocol.Message) (res protocol.Message, err error) {
	err = bounded(ctx, conn, func() error {
		res, err = pc.RoundTrip(req)
		return err
	})
	return res, err
}

// bounded runs f, whose reads and writes on conn end with ctx.
func bounded(ctx context.Context, conn net.Conn, f func() error) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err := f()
	if !stop() && err == nil {
		err = ctx.Err() // the deadline in the past may land after f: give up the connection
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
