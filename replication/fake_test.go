package replication

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"
)

// The thread that starts real servers lasts as long as the process, so that they
// die with it.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cdc-relay/cdc-relay/e2e/proc.startOnLastingThread.func1.1"))
}

// startLSN is where the tests start their streams.
const startLSN = pglogrepl.LSN(0x1_00000010)

// fakeServer is a PostgreSQL that takes one connection, greets, answers
// IDENTIFY_SYSTEM, and gives a stream to a script.
type fakeServer struct {
	t       *testing.T
	conn    net.Conn
	wire    *halvingConn // below TLS, if there is any
	tls     *tls.Config
	startup map[string]string // parameters of the client
	query   string            // START_REPLICATION as it came
	refuse  *pgproto3.ErrorResponse
	// first goes out in one write with the answer to START_REPLICATION.
	first []byte
}

// halvingConn sends half of what is written, and the rest when the gate, if there
// is one, is closed.
type halvingConn struct {
	net.Conn
	gate chan struct{}
}

func (c *halvingConn) Write(b []byte) (int, error) {
	if c.gate == nil {
		return c.Conn.Write(b)
	}
	n, err := c.Conn.Write(b[:len(b)/2])
	if err != nil {
		return n, err
	}
	<-c.gate
	m, err := c.Conn.Write(b[n:])
	return n + m, err
}

// status is a standby status update.
type status struct {
	write, flush, apply pglogrepl.LSN
	sent                time.Time
	ask                 bool
}

// serve starts the server; script runs once the stream has begun. The connection
// is closed when script returns.
func serve(t *testing.T, s *fakeServer, script func(*fakeServer)) *pgconn.Config {
	t.Helper()
	s.t = t
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		s.wire = &halvingConn{Conn: conn}
		s.conn = s.wire
		defer func() { s.conn.Close() }()
		if err := s.greet(); err != nil {
			t.Errorf("fake server: %v", err)
			return
		}
		if s.commands() && script != nil {
			script(s)
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=u dbname=d sslmode=disable", ln.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func (s *fakeServer) greet() error {
	b := pgproto3.NewBackend(s.conn, s.conn)
	m, err := b.ReceiveStartupMessage()
	if _, ok := m.(*pgproto3.SSLRequest); ok && s.tls != nil {
		s.write([]byte{'S'})
		s.conn = tls.Server(s.conn, s.tls)
		b = pgproto3.NewBackend(s.conn, s.conn)
		m, err = b.ReceiveStartupMessage()
	}
	if err != nil {
		return err
	}
	s.startup = m.(*pgproto3.StartupMessage).Parameters
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "15.0"})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 42, SecretKey: []byte{1, 2, 3, 4}})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return b.Flush()
}

// commands answers until the stream begins; false when it does not.
func (s *fakeServer) commands() bool {
	for {
		typ, body, err := s.read()
		if err != nil || typ != 'Q' {
			return false
		}
		q := strings.TrimRight(string(body), "\x00")
		switch {
		case q == laterTimeouts:
			s.write(encode(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 0")}, &pgproto3.ReadyForQuery{TxStatus: 'I'}))
		case q == "IDENTIFY_SYSTEM":
			s.write(encode(
				&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{
					{Name: []byte("systemid")}, {Name: []byte("timeline")}, {Name: []byte("xlogpos")}, {Name: []byte("dbname")}}},
				&pgproto3.DataRow{Values: [][]byte{[]byte("7001"), []byte("3"), []byte("1/20"), []byte("d")}},
				&pgproto3.CommandComplete{CommandTag: []byte("IDENTIFY_SYSTEM")},
				&pgproto3.ReadyForQuery{TxStatus: 'I'}))
		case strings.HasPrefix(q, "START_REPLICATION") && s.refuse != nil:
			s.write(encode(s.refuse, &pgproto3.ReadyForQuery{TxStatus: 'I'}))
		case strings.HasPrefix(q, "START_REPLICATION"):
			s.query = q
			s.write(append(encode(&pgproto3.CopyBothResponse{}), s.first...))
			return true
		default:
			s.t.Errorf("fake server: unexpected query %q", q)
			return false
		}
	}
}

// write ignores errors: a client may leave at any time.
func (s *fakeServer) write(b []byte) { _, _ = s.conn.Write(b) }

func (s *fakeServer) read() (byte, []byte, error) {
	var h [5]byte
	if _, err := io.ReadFull(s.conn, h[:]); err != nil {
		return 0, nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(h[1:])-4)
	_, err := io.ReadFull(s.conn, body)
	return h[0], body, err
}

// status reads the next standby status; false when the client ends the stream.
func (s *fakeServer) status() (status, bool) {
	typ, b, err := s.read()
	if err != nil || typ == 'c' {
		return status{}, false
	}
	if typ != 'd' || len(b) != 34 || b[0] != 'r' {
		s.t.Errorf("fake server: message %q of %d bytes is no standby status", typ, len(b))
		return status{}, false
	}
	lsn := func(i int) pglogrepl.LSN { return pglogrepl.LSN(binary.BigEndian.Uint64(b[i:])) }
	if b[33] > 1 {
		s.t.Errorf("fake server: reply flag %d", b[33])
	}
	return status{lsn(1), lsn(9), lsn(17), time.UnixMicro(int64(lsn(25)) + pgEpoch), b[33] == 1}, true
}

// drain reads until the client leaves, and answers the end of the stream.
func (s *fakeServer) drain() {
	for {
		typ, _, err := s.read()
		if err != nil || typ == 'X' {
			return
		}
		if typ == 'c' {
			s.end()
		}
	}
}

// end answers CopyDone as a walsender does.
func (s *fakeServer) end() {
	s.write(encode(&pgproto3.CopyDone{}, &pgproto3.CommandComplete{CommandTag: []byte("COPY 0")},
		&pgproto3.CommandComplete{CommandTag: []byte("START_REPLICATION")}, &pgproto3.ReadyForQuery{TxStatus: 'I'}))
}

func encode(msgs ...pgproto3.BackendMessage) []byte {
	var b []byte
	for _, m := range msgs {
		var err error
		if b, err = m.Encode(b); err != nil {
			panic(err)
		}
	}
	return b
}

// xlog is a frame with WAL data.
func xlog(lsn pglogrepl.LSN, data []byte) []byte {
	b := make([]byte, 0, msgHeader+xlogHeader+len(data))
	b = append(b, 'd')
	b = binary.BigEndian.AppendUint32(b, uint32(4+xlogHeader+len(data)))
	b = append(b, 'w')
	b = binary.BigEndian.AppendUint64(b, uint64(lsn))
	b = binary.BigEndian.AppendUint64(b, uint64(lsn)+1)
	b = binary.BigEndian.AppendUint64(b, 0)
	return append(b, data...)
}

func keepalive(end pglogrepl.LSN, reply byte) []byte {
	b := []byte{'d', 0, 0, 0, 22, 'k'}
	b = binary.BigEndian.AppendUint64(b, uint64(end))
	b = binary.BigEndian.AppendUint64(b, 0)
	return append(b, reply)
}

// connectTo opens a connection with time-outs that are long unless change says
// otherwise.
func connectTo(t *testing.T, pc *pgconn.Config, change func(*Config)) *Conn {
	t.Helper()
	cfg := Config{
		Postgres: pc, ApplicationName: "cdc-relay", StatusInterval: time.Minute,
		SilenceTimeout: 4 * time.Minute, CoalesceReads: true, MaxMessageBytes: 64 << 20,
	}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := Connect(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func startStream(t *testing.T, pc *pgconn.Config, change func(*Config)) *Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := connectTo(t, pc, change).Start(ctx, "relay", "pub", startLSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// within fails the test when f takes longer.
func within(t *testing.T, d time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // ends with f, which the test waits for unless it fails
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("%s took more than %s", what, d)
	}
}

func selfSigned(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}
