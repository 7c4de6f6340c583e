package broker

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl"
)

// stage is how far a connection came; it decides what its error may mean.
type stage string

const (
	stageTCP   stage = "connect to"
	stageFiles stage = "read the credentials for"
	stageTLS   stage = "make a TLS connection to"
	stageAPI   stage = "send a first request to"
	stageSASL  stage = "authenticate by SASL to"
	stageUse   stage = "send a request to"
)

// dialer makes connections that are ready for requests.
type dialer struct {
	cfg Config
}

// keepAlive finds a peer that vanished on a connection where nothing is sent:
// within about 30 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// DialContext returns a connection after TLS, one request and SASL, without a
// deadline. The whole takes no longer than DialTimeout. Its errors are
// *fault.Error. The request, for the broker's versions, is asked again by
// kafka-go; here it finds a broker that accepts connections and says nothing, so
// that the next one is tried.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, _, err := d.open(ctx, network, address)
	return conn, err
}

// open also returns the protocol's side of the connection, which knows the
// broker's versions. Only one of the two may be used from then on.
func (d *dialer) open(ctx context.Context, network, address string) (net.Conn, *protocol.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.DialTimeout)
	defer cancel()
	raw, err := (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext(ctx, network, address)
	if err != nil {
		return nil, nil, d.explain(stageTCP, address, err)
	}
	// Invariant: from here on every read and write has an absolute deadline, and
	// the end of ctx interrupts it, until the handshake is over.
	deadline, _ := ctx.Deadline()
	if err := raw.SetDeadline(deadline); err != nil {
		_ = raw.Close()
		return nil, nil, d.explain(stageTCP, address, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	conn, pc, st, err := d.handshake(ctx, raw, address)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = raw.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = raw.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, d.explain(st, address, err)
	}
	return conn, pc, nil
}

func (d *dialer) handshake(ctx context.Context, raw net.Conn, address string) (net.Conn, *protocol.Conn, stage, error) {
	conn := raw
	if d.cfg.TLS.Enabled {
		tc, err := d.cfg.TLS.Load()
		if err != nil {
			return nil, nil, stageFiles, err
		}
		if tc.ServerName == "" {
			tc.ServerName, _, _ = net.SplitHostPort(address)
		}
		t := tls.Client(raw, tc)
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, nil, stageTLS, err
		}
		conn = t
	}
	guarded := &answerConn{Conn: conn, plain: !d.cfg.TLS.Enabled, first: true}
	pc := protocol.NewConn(guarded, d.cfg.ClientID)
	if err := negotiate(pc); err != nil {
		return nil, nil, stageAPI, err
	}
	if d.cfg.SASL.Mechanism == "" {
		return guarded, pc, stageUse, nil
	}
	m, err := d.cfg.SASL.Load()
	if err != nil {
		return nil, nil, stageFiles, err
	}
	if err := authenticate(ctx, pc, m, address); err != nil {
		return nil, nil, stageSASL, err
	}
	return guarded, pc, stageUse, nil
}

// negotiate asks for the versions of the broker's requests, and sets them.
func negotiate(pc *protocol.Conn) error {
	r, err := pc.RoundTrip(new(apiversions.Request))
	if err != nil {
		return err
	}
	res, ok := r.(*apiversions.Response)
	if !ok {
		return fmt.Errorf("unexpected answer %T", r)
	}
	if res.ErrorCode != 0 {
		return kafka.Error(res.ErrorCode)
	}
	versions := make(map[protocol.ApiKey]int16, len(res.ApiKeys))
	for _, k := range res.ApiKeys {
		key := protocol.ApiKey(k.ApiKey)
		versions[key] = key.SelectVersion(k.MinVersion, k.MaxVersion)
	}
	pc.SetVersions(versions)
	return nil
}

func authenticate(ctx context.Context, pc *protocol.Conn, m sasl.Mechanism, address string) error {
	r, err := pc.RoundTrip(&saslhandshake.Request{Mechanism: m.Name()})
	if err != nil {
		return err
	}
	if res, ok := r.(*saslhandshake.Response); ok && res.ErrorCode != 0 {
		return &refusedMechanism{offered: res.Mechanisms, err: kafka.Error(res.ErrorCode)}
	}
	host, _, _ := net.SplitHostPort(address)
	sess, out, err := startSASL(sasl.WithMetadata(ctx, &sasl.Metadata{Host: host}), m)
	if err != nil {
		return err
	}
	for done := false; !done; {
		r, err := pc.RoundTrip(&saslauthenticate.Request{AuthBytes: out})
		if err != nil {
			return err
		}
		res, ok := r.(*saslauthenticate.Response)
		if !ok {
			return fmt.Errorf("unexpected answer %T", r)
		}
		if res.ErrorCode != 0 {
			return kafka.Error(res.ErrorCode)
		}
		if done, out, err = sess.Next(ctx, res.AuthBytes); err != nil {
			// Most often: the broker does not know the password either.
			return fmt.Errorf("%w: the broker's answer does not prove that it knows the password", errServerProof)
		}
	}
	return nil
}

// refusedMechanism is a SASL mechanism that the broker does not take.
type refusedMechanism struct {
	offered []string
	err     error
}

func (e *refusedMechanism) Error() string {
	if len(e.offered) == 0 {
		return e.err.Error()
	}
	return fmt.Sprintf("%v (it offers %v)", e.err, e.offered)
}

func (e *refusedMechanism) Unwrap() error { return e.err }

var errServerProof = errors.New("SASL exchange failed")

// errSpeaksTLS is a TLS alert where a Kafka answer was due.
var errSpeaksTLS = errors.New("the broker answered with a TLS alert: this port speaks TLS")

// errNotKafka is an answer that cannot be one of Kafka's.
var errNotKafka = errors.New("what answered does not speak Kafka's protocol")

const (
	// maxFirstAnswer bounds the answer to the first request, in bytes: the versions
	// of a broker's requests take less than a kilobyte.
	maxFirstAnswer = 1 << 20
	// maxAnswer bounds any other; the layout of a very large cluster takes some MiB.
	maxAnswer = 128 << 20
)

// answerConn looks at the length of each answer, and at the number of the request
// that the first one is for, before kafka-go believes them: the text of an HTTP
// server would be an array of 808 million elements, and it panics for a negative
// length. It also recognises the one provable sign of plaintext sent to a TLS
// port, an alert. One goroutine reads.
type answerConn struct {
	net.Conn
	plain bool
	first bool    // no answer has come yet
	head  []byte  // of the answer in hand: read, and not handed out yet
	room  [8]byte // of head
	left  int64   // bytes of the answer in hand that are not read yet
}

func (c *answerConn) Read(p []byte) (int, error) {
	if len(c.head) == 0 && c.left == 0 {
		if err := c.begin(); err != nil {
			return 0, err
		}
	}
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// begin reads the head of the next answer.
func (c *answerConn) begin() error {
	room, limit := c.room[:4], int64(maxAnswer)
	if c.first {
		room, limit = c.room[:8], maxFirstAnswer
	}
	n, err := io.ReadFull(c.Conn, room)
	if c.first && c.plain && n >= 2 && room[0] == 21 && room[1] == 3 { // type 21, major version 3
		return errSpeaksTLS
	}
	if err != nil {
		return err
	}
	size := int64(int32(binary.BigEndian.Uint32(room)))
	if size < 0 || size > limit || c.first && (size < 4 || binary.BigEndian.Uint32(room[4:]) != 1) {
		return errNotKafka
	}
	c.head, c.left, c.first = room, size-int64(len(room)-4), false
	return nil
}
