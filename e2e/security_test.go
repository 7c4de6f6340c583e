package e2e_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// The environment's secured listeners let in who may and nobody else.
func TestE2E_SecureListeners(t *testing.T) {
	ca := e2e.NewCA(t)
	sasl, settings := e2e.SecureListener(t, "SASL", ca, map[string]string{"app": "right"})
	mtls, more := e2e.SecureListener(t, "MTLS", ca, nil)
	for k, v := range more {
		settings[k] = v
	}
	k := e2e.ExclusiveKafka(t, kafkaserver.Options{Listeners: []kafkaserver.Listener{sasl, mtls}, Settings: settings})
	k.RequireReal(t)
	if k.Broker == nil {
		t.Skip("needs the broker's process")
	}
	k.SetScramUser(t, "app", "right")

	pem, err := os.ReadFile(ca.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	certFile, keyFile, _ := ca.Issue(t, "client")
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	lets := func(listener string, conf *tls.Config, opts ...kgo.Opt) bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(k.Broker.ListenerAddr(listener)), kgo.DialTLSConfig(conf),
			kgo.RequestRetries(0))...)
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		return cl.Ping(ctx) == nil
	}
	trust := &tls.Config{RootCAs: roots}
	p := lets("SASL", trust, kgo.SASL(plain.Auth{User: "app", Pass: "right"}.AsMechanism()))
	pWrong := lets("SASL", trust, kgo.SASL(plain.Auth{User: "app", Pass: "wrong"}.AsMechanism()))
	s256 := lets("SASL", trust, kgo.SASL(scram.Auth{User: "app", Pass: "right"}.AsSha256Mechanism()))
	s512 := lets("SASL", trust, kgo.SASL(scram.Auth{User: "app", Pass: "right"}.AsSha512Mechanism()))
	sWrong := lets("SASL", trust, kgo.SASL(scram.Auth{User: "app", Pass: "wrong"}.AsSha512Mechanism()))
	untrusted := lets("SASL", &tls.Config{RootCAs: x509.NewCertPool()}, kgo.SASL(plain.Auth{User: "app", Pass: "right"}.AsMechanism()))
	withCert := lets("MTLS", &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}})
	noCert := lets("MTLS", trust)
	e2e.Result(t, "secure_listeners", p && s256 && s512 && withCert && !pWrong && !sWrong && !untrusted && !noCert,
		"plain", p, "scram256", s256, "scram512", s512, "mtls", withCert, "plain_wrong", pWrong, "scram_wrong", sWrong,
		"untrusted", untrusted, "no_cert", noCert)
}

func TestE2E_PostgresTls(t *testing.T) {
	ca := e2e.NewCA(t)
	cert, key, _ := ca.Issue(t, "server", "127.0.0.1")
	pg := e2e.Postgres(t, pgserver.Options{CertFile: cert, KeyFile: key})
	verified := strings.Replace(pg.DSN(), "sslmode=disable", "sslmode=verify-full&sslrootcert=", 1)
	trusted := connects(t, verified+ca.CertFile)
	untrusted := connects(t, verified+e2e.NewCA(t).CertFile)
	e2e.Result(t, "postgres_tls", trusted && !untrusted, "trusted", trusted, "untrusted", untrusted)
}

func connects(t *testing.T, dsn string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return false
	}
	return c.Close(ctx) == nil
}
