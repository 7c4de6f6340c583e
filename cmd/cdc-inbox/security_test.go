package main

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha512"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

// The runner, its dead letters and the command work through TLS and SASL; a wrong
// password or authority ends all of them at once, and is not shown.
func TestSecurity_RunnerAndCommandThroughTLSAndSASL(t *testing.T) {
	const user, secret = "app", "s3cret-Pass"
	ca, other := e2e.NewCA(t), e2e.NewCA(t)
	sasl, settings := e2e.SecureListener(t, "SASL", ca, map[string]string{user: secret})
	mtls, more := e2e.SecureListener(t, "MTLS", ca, nil)
	maps.Copy(settings, more)
	w := newWorld(t, kafkaserver.Options{Listeners: []kafkaserver.Listener{sasl, mtls}, Settings: settings})
	salted, err := pbkdf2.Key(sha512.New, secret, []byte("salt"), 4096, 64)
	w.must(err)
	_, err = w.kafka.AlterUserScramCredentials(t.Context(), &kafka.AlterUserScramCredentialsRequest{Upsertions: []kafka.UserScramCredentialsUpsertion{
		{Name: user, Mechanism: kafka.ScramMechanismSha512, Iterations: 4096, Salt: []byte("salt"), SaltedPassword: salted}}})
	w.must(err)
	cert, key, _ := ca.Issue(t, "client")
	right, wrong := filepath.Join(t.TempDir(), "right"), filepath.Join(t.TempDir(), "wrong")
	w.must(os.WriteFile(right, []byte(secret+"\n"), 0o600))
	w.must(os.WriteFile(wrong, []byte(secret+"x\n"), 0o600))

	plainEnv := w.env
	failing := 0
	for _, c := range []struct {
		name, listener string
		tls            broker.TLS
		sasl           broker.SASL
		lets           bool
	}{
		{"PLAIN", "SASL", broker.TLS{CAFile: ca.CertFile}, broker.SASL{Mechanism: "plain", PasswordFile: right}, true},
		{"SCRAM", "SASL", broker.TLS{CAFile: ca.CertFile}, broker.SASL{Mechanism: "scram-sha-512", PasswordFile: right}, true},
		{"mutual TLS", "MTLS", broker.TLS{CAFile: ca.CertFile, CertFile: cert, KeyFile: key}, broker.SASL{}, true},
		{"PLAIN, wrong password", "SASL", broker.TLS{CAFile: ca.CertFile}, broker.SASL{Mechanism: "plain", PasswordFile: wrong}, false},
		{"SCRAM, wrong password", "SASL", broker.TLS{CAFile: ca.CertFile}, broker.SASL{Mechanism: "scram-sha-512", PasswordFile: wrong}, false},
		{"another authority", "SASL", broker.TLS{CAFile: other.CertFile}, broker.SASL{Mechanism: "plain", PasswordFile: right}, false},
		{"no client certificate", "MTLS", broker.TLS{CAFile: ca.CertFile}, broker.SASL{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			w.join.Brokers = []string{w.k.ListenerAddr(c.listener)}
			w.join.TLS, err = c.tls.Load()
			w.must(err)
			w.join.SASL = nil
			w.env = append(plainEnv[:len(plainEnv):len(plainEnv)], "BROKERS="+w.k.ListenerAddr(c.listener), "KAFKA_TLS=true",
				"KAFKA_TLS_CA_FILE="+c.tls.CAFile, "KAFKA_TLS_CERT_FILE="+c.tls.CertFile, "KAFKA_TLS_KEY_FILE="+c.tls.KeyFile)
			if c.sasl.Mechanism != "" {
				c.sasl.Username = user
				w.join.SASL, err = c.sasl.Load()
				w.must(err)
				w.env = append(w.env, "KAFKA_SASL_MECHANISM="+c.sasl.Mechanism, "KAFKA_SASL_USERNAME="+user, "KAFKA_SASL_PASSWORD_FILE="+c.sasl.PasswordFile)
			}
			if !c.lets {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				err := w.runner().Run(ctx)
				t.Log(err)
				out, code := w.shell("cdc-inbox show 1")
				if err == nil || code != exitFailure || strings.Contains(err.Error()+out, secret) {
					t.Errorf("the runner ended with %v, the command with %d", err, code)
				}
				return
			}
			id := "e-" + c.listener + c.sasl.Mechanism
			w.set(true, id)
			w.produce(id, id)
			stop := w.consume()
			failing++
			w.waitFor("the letter", func() bool { return w.in("open") == 1 && w.offset("orders") == int64(failing) })
			w.set(false, id)
			if _, code := w.shell(`cdc-inbox redrive --owner billing --all --yes --actor ann --note "mended"`); code != exitOK {
				t.Error("it was not redriven")
			}
			w.waitFor("its effect", func() bool { return w.in("done") == failing })
			stop()
		})
	}
	w.t = t
	if n := w.count("SELECT count(*) FROM invoices"); n != 3 {
		t.Errorf("%d invoices", n)
	}
}
