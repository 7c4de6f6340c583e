package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/fault"
)

const secret = "s3cret-Pass"

func fakeKafka(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func open(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 2 * time.Second
	}
	c, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// usable pings, and asks through the transport, which is what records take.
func usable(t *testing.T, c *Cluster) {
	t.Helper()
	if err := c.Ping(within(t, 10*time.Second)); err != nil {
		t.Fatalf("ping: %v", err)
	}
	if _, err := c.Client().Metadata(within(t, 10*time.Second), &kafka.MetadataRequest{}); err != nil {
		t.Fatalf("metadata through the transport: %v", err)
	}
}

// refused pings and wants an error of the class that holds the words, and never
// the secret.
func refused(t *testing.T, c *Cluster, class fault.Class, words ...string) {
	t.Helper()
	began := time.Now()
	err := c.Ping(within(t, 10*time.Second))
	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("ping took %s", took)
	}
	var e *fault.Error
	if !errors.As(err, &e) || e.Class != class {
		t.Fatalf("ping: %v; want an error of class %v", err, class)
	}
	t.Log(err)
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("error %q holds the password", err)
	}
	_, err = c.Metadata(within(t, 10*time.Second), "t")
	if fault.ClassOf(err) == fault.Stop != (class == fault.Stop) || err == nil {
		t.Errorf("metadata: %v; want class %v", err, class)
	}
}

func saslOpts(method string) []kfake.Opt {
	return []kfake.Opt{kfake.EnableSASL(), kfake.Superuser(method, "relay", secret)}
}

func TestCluster_AuthenticatesBySASL(t *testing.T) {
	for _, m := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(m, func(t *testing.T) {
			k := fakeKafka(t, saslOpts(m)...)
			sasl := SASL{Mechanism: strings.ToLower(m), Username: "relay", Password: secret}
			usable(t, open(t, Config{Brokers: k.ListenAddrs(), SASL: sasl}))
			// kfake closes the connection for a wrong password, which proves nothing. A
			// real broker says why: see TestRealKafka.
			sasl.Password = secret + "x"
			refused(t, open(t, Config{Brokers: k.ListenAddrs(), SASL: sasl}), fault.Retry, "may not accept these credentials")
			k.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
				k.KeepControl()
				res := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
				res.ErrorCode = kerr.SaslAuthenticationFailed.Code
				return res, nil, true
			})
			refused(t, open(t, Config{Brokers: k.ListenAddrs(), SASL: sasl}), fault.Stop, "kafka.sasl.username", `"relay"`)
		})
	}
}

func TestCluster_AuthenticatesByTLS(t *testing.T) {
	ca, other := NewAuthority(t, "ca"), NewAuthority(t, "other")
	k := fakeKafka(t, append(saslOpts("SCRAM-SHA-512"), kfake.TLS(ca.server(time.Now().Add(time.Hour))))...)
	sasl := SASL{Mechanism: "scram-sha-512", Username: "relay", Password: secret}
	cfg := func(tls TLS) Config {
		tls.Enabled = true
		return Config{Brokers: k.ListenAddrs(), TLS: tls, SASL: sasl}
	}
	usable(t, open(t, cfg(TLS{CAFile: ca.File})))
	usable(t, open(t, cfg(TLS{CAFile: ca.File, ServerName: "localhost"})))
	usable(t, open(t, cfg(TLS{InsecureSkipVerify: true})))
	refused(t, open(t, cfg(TLS{CAFile: other.File})), fault.Stop, "kafka.tls.ca_file")
	refused(t, open(t, cfg(TLS{CAFile: ca.File, ServerName: "kafka.example"})), fault.Stop, "kafka.tls.server_name")
	expired := fakeKafka(t, kfake.TLS(ca.server(time.Now().Add(-time.Hour))))
	refused(t, open(t, Config{Brokers: expired.ListenAddrs(), TLS: TLS{Enabled: true, CAFile: ca.File}}), fault.Stop, "renew")
}

func TestCluster_AuthenticatesByClientCertificate(t *testing.T) {
	ca, other := NewAuthority(t, "ca"), NewAuthority(t, "other")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			server := ca.server(time.Now().Add(time.Hour))
			server.ClientAuth, server.ClientCAs, server.MaxVersion = tls.RequireAndVerifyClientCert, ca.pool(), version
			k := fakeKafka(t, kfake.TLS(server))
			dir := t.TempDir()
			cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
			ca.Client("relay", cert, key)
			c := open(t, Config{Brokers: k.ListenAddrs(), TLS: TLS{Enabled: true, CAFile: ca.File, CertFile: cert, KeyFile: key}})
			usable(t, c)
			refused(t, open(t, Config{Brokers: k.ListenAddrs(), TLS: TLS{Enabled: true, CAFile: ca.File}}), fault.Stop, "kafka.tls.cert_file")
			// Certificates are read again at each connect.
			other.Client("relay", cert, key)
			if err := c.Ping(within(t, 5*time.Second)); fault.ClassOf(err) != fault.Stop {
				t.Fatalf("ping with a certificate of another authority: %v; want a stop", err)
			}
			ca.Client("relay", cert, key)
			usable(t, c)
		})
	}
}

func TestCluster_ReadsThePasswordAtEachConnect(t *testing.T) {
	k := fakeKafka(t, saslOpts("PLAIN")...)
	file := filepath.Join(t.TempDir(), "password")
	write(t, file, []byte("old\n"))
	c := open(t, Config{Brokers: k.ListenAddrs(), SASL: SASL{Mechanism: "plain", Username: "relay", PasswordFile: file}})
	refused(t, c, fault.Retry)
	write(t, file, []byte(secret+"\n"))
	usable(t, c)
}

func TestCluster_NobodyAtTheAddressIsExplained(t *testing.T) {
	c := open(t, Config{Brokers: []string{"127.0.0.1:1"}})
	refused(t, c, fault.Retry, "Kafka broker 127.0.0.1:1 cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused. "+
		"To fix it: start it, or correct kafka.brokers, now 127.0.0.1:1")
	if fix := c.dialer.explain(stageTCP, "kafka-0.internal:9092", syscall.ECONNREFUSED).Fix; !strings.Contains(fix, "advertised.listeners") {
		t.Error(fix)
	}
}

func TestCluster_MismatchedSecurityIsExplained(t *testing.T) {
	ca := NewAuthority(t, "ca")
	plaintext := fakeKafka(t)
	encrypted := fakeKafka(t, kfake.TLS(ca.server(time.Now().Add(time.Hour))))
	withSASL := fakeKafka(t, saslOpts("PLAIN")...)
	tlsOn := TLS{Enabled: true, CAFile: ca.File}
	sasl := SASL{Mechanism: "plain", Username: "relay", Password: secret}
	t.Run("plaintext to TLS", func(t *testing.T) {
		refused(t, open(t, Config{Brokers: encrypted.ListenAddrs()}), pingClass(t, encrypted.ListenAddrs()), "kafka.tls")
	})
	t.Run("TLS to plaintext", func(t *testing.T) {
		refused(t, open(t, Config{Brokers: plaintext.ListenAddrs(), TLS: tlsOn}), fault.Retry, "kafka.tls.enabled")
	})
	t.Run("nothing to SASL", func(t *testing.T) {
		refused(t, open(t, Config{Brokers: withSASL.ListenAddrs()}), fault.Retry, "kafka.sasl")
	})
	t.Run("other mechanism", func(t *testing.T) {
		other := sasl
		other.Mechanism = "scram-sha-256"
		withSASL.ControlKey(int16(kmsg.SASLHandshake), func(r kmsg.Request) (kmsg.Response, error, bool) {
			withSASL.KeepControl()
			res := r.ResponseKind().(*kmsg.SASLHandshakeResponse)
			res.ErrorCode, res.SupportedMechanisms = kerr.UnsupportedSaslMechanism.Code, []string{"PLAIN"}
			return res, nil, true
		})
		refused(t, open(t, Config{Brokers: withSASL.ListenAddrs(), SASL: other}), fault.Stop, "kafka.sasl.mechanism", "PLAIN")
	})
}

// pingClass is Stop when a TLS port answers plaintext with an alert, which
// proves it, and Retry when it only closes the connection.
func pingClass(t *testing.T, addrs []string) fault.Class {
	t.Helper()
	conn, err := net.Dial("tcp", addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte{0, 0, 0, 17, 0, 18, 0, 0, 0, 0, 0, 1, 0, 7, 'a', 'b', 'c', 'd', 'e', 'f', 'g'})
	b := make([]byte, 1)
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, _ := conn.Read(b); n == 1 && b[0] == 21 {
		return fault.Stop
	}
	return fault.Retry
}

// silent accepts connections and never says a word.
func silent(t *testing.T) (addr string, accepted *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				for _, c := range conns {
					_ = c.Close()
				}
				return
			}
			accepted.Add(1)
			conns = append(conns, c)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String(), accepted
}

func TestCluster_SilentBrokerIsGivenUp(t *testing.T) {
	addr, _ := silent(t)
	for name, cfg := range map[string]Config{
		"plaintext": {},
		"TLS":       {TLS: TLS{Enabled: true}},
		"SASL":      {SASL: SASL{Mechanism: "plain", Username: "relay", Password: secret}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Brokers, cfg.DialTimeout = []string{addr}, 500*time.Millisecond
			refused(t, open(t, cfg), fault.Retry, "no answer in time")
		})
	}
}

func TestCluster_UnreachableIsRetried(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	refused(t, open(t, Config{Brokers: []string{addr}}), fault.Retry, addr)
	refused(t, open(t, Config{Brokers: []string{"no-such-host.invalid:9092"}}), fault.Retry, "no-such-host.invalid")
}

func TestCluster_OneBrokerOfManyIsEnough(t *testing.T) {
	k := fakeKafka(t)
	addr, _ := silent(t)
	c := open(t, Config{Brokers: []string{addr, k.ListenAddrs()[0]}, DialTimeout: 300 * time.Millisecond})
	usable(t, c)
	if _, err := c.Metadata(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
}

// A broker that hangs in the middle of SASL must not stop the discovery of the
// cluster for ever.
func TestCluster_HangInSASLHeals(t *testing.T) {
	k := fakeKafka(t, saslOpts("PLAIN")...)
	var hung atomic.Int64
	k.ControlKey(int16(kmsg.SASLAuthenticate), func(kmsg.Request) (kmsg.Response, error, bool) {
		if hung.Add(1) < 3 {
			k.KeepControl()
		} else {
			k.DropControl()
		}
		return nil, nil, true // never an answer
	})
	c := open(t, Config{
		Brokers: k.ListenAddrs(), DialTimeout: 300 * time.Millisecond, MetadataTTL: time.Second,
		SASL: SASL{Mechanism: "plain", Username: "relay", Password: secret},
	})
	deadline := time.Now().Add(15 * time.Second)
	for {
		_, err := c.Client().Metadata(within(t, 2*time.Second), &kafka.MetadataRequest{})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still %v", err)
		}
	}
	if hung.Load() < 3 {
		t.Fatalf("only %d handshakes hung", hung.Load())
	}
}

func TestCluster_CloseLeavesNothing(t *testing.T) {
	k := fakeKafka(t, saslOpts("SCRAM-SHA-256")...)
	before := goleak.IgnoreCurrent()
	c, err := Open(Config{Brokers: k.ListenAddrs(), SASL: SASL{Mechanism: "scram-sha-256", Username: "relay", Password: secret}})
	if err != nil {
		t.Fatal(err)
	}
	usable(t, c)
	if _, err := c.Metadata(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Metadata(within(t, time.Second)); !errors.Is(err, ErrClosed) {
		t.Errorf("metadata after close: %v", err)
	}
	if err := c.Ping(within(t, time.Second)); !errors.Is(err, ErrClosed) {
		t.Errorf("ping after close: %v", err)
	}
	if _, err := c.Client().Metadata(within(t, time.Second), &kafka.MetadataRequest{}); !errors.Is(err, ErrClosed) {
		t.Errorf("request after close: %v", err)
	}
	// The broker's side of the connections ends with them.
	goleak.VerifyNone(t, before)
}

func TestOpen_ReportsEveryProblem(t *testing.T) {
	_, err := Open(Config{
		Brokers: []string{"kafka", "kafka:0", "ok:9092", "a,b:1"},
		TLS:     TLS{Enabled: true, CAFile: "/no/such/ca.pem", CertFile: ""},
		SASL:    SASL{Mechanism: "gssapi", Password: secret},
	})
	if fault.ClassOf(err) != fault.Stop {
		t.Fatalf("%v; want a stop", err)
	}
	for _, w := range []string{`"kafka"`, `"kafka:0"`, `"a,b:1"`, "/no/such/ca.pem", "gssapi", "user name"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not name %s", err, w)
		}
	}
	if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "ok:9092") {
		t.Errorf("error %q says too much", err)
	}
	if _, err := Open(Config{}); err == nil {
		t.Error("no broker is no problem")
	}
}
