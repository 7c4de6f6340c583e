package broker_test

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/fault"
)

const realSecret = "s3cret-Pass"

// realKafka starts Apache Kafka with a listener for each kind of security, and
// an authorizer that lets the user relay do nothing.
func realKafka(t *testing.T, dir string) *kafkaserver.Broker {
	t.Helper()
	const plain = `org.apache.kafka.common.security.plain.PlainLoginModule required user_relay="` + realSecret + `";`
	const scram = `org.apache.kafka.common.security.scram.ScramLoginModule required;`
	set := map[string]string{
		"ssl.keystore.type": "PEM", "ssl.keystore.location": filepath.Join(dir, "broker.pem"),
		"ssl.truststore.type": "PEM", "ssl.truststore.location": filepath.Join(dir, "ca.pem"),
		"listener.name.mtls.ssl.client.auth": "required",
		"authorizer.class.name":              "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                        "User:ANONYMOUS",
	}
	for _, l := range []string{"sasl", "sasltls"} {
		p := "listener.name." + l + "."
		set[p+"sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
		set[p+"plain.sasl.jaas.config"] = plain
		set[p+"scram-sha-256.sasl.jaas.config"] = scram
		set[p+"scram-sha-512.sasl.jaas.config"] = scram
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	k, err := kafkaserver.Start(ctx, kafkaserver.Options{Settings: set, Listeners: []kafkaserver.Listener{
		{Name: "TLS", Protocol: "SSL"}, {Name: "MTLS", Protocol: "SSL"},
		{Name: "SASL", Protocol: "SASL_PLAINTEXT"}, {Name: "SASLTLS", Protocol: "SASL_SSL"},
	}})
	if errors.Is(err, kafkaserver.ErrNoJars) {
		t.Skipf("NO REAL BROKER: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(k.LogPath())
			t.Logf("log of Kafka, the end:\n%s", log[max(0, len(log)-5000):])
		}
		_ = k.Close()
	})
	return k
}

// scramUser makes a user with SCRAM credentials of both kinds.
func scramUser(t *testing.T, c *broker.Cluster, name string) {
	t.Helper()
	salt := []byte("some salt")
	p256, err := pbkdf2.Key(sha256.New, realSecret, salt, 4096, 32)
	if err != nil {
		t.Fatal(err)
	}
	p512, err := pbkdf2.Key(sha512.New, realSecret, salt, 4096, 64)
	if err != nil {
		t.Fatal(err)
	}
	// One request each: a user must not appear twice in one.
	for _, u := range []kafka.UserScramCredentialsUpsertion{
		{Name: name, Mechanism: kafka.ScramMechanismSha256, Iterations: 4096, Salt: salt, SaltedPassword: p256},
		{Name: name, Mechanism: kafka.ScramMechanismSha512, Iterations: 4096, Salt: salt, SaltedPassword: p512},
	} {
		res, err := c.Client().AlterUserScramCredentials(seconds(t, 20),
			&kafka.AlterUserScramCredentialsRequest{Upsertions: []kafka.UserScramCredentialsUpsertion{u}})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range res.Results {
			if r.Error != nil {
				t.Fatal(r.Error)
			}
		}
	}
}

func seconds(t *testing.T, n int) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n)*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func realOpen(t *testing.T, cfg broker.Config) *broker.Cluster {
	t.Helper()
	cfg.DialTimeout = 5 * time.Second
	c, err := broker.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRealKafka_SecurityAndItsErrors(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Apache Kafka")
	}
	dir := t.TempDir()
	ca, other := broker.NewAuthority(t, "ca"), broker.NewAuthority(t, "other")
	copyFile(t, ca.File, filepath.Join(dir, "ca.pem"))
	ca.ServerFile(filepath.Join(dir, "broker.pem"))
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	ca.Client("relay", cert, key)
	badCert, badKey := filepath.Join(dir, "bc.pem"), filepath.Join(dir, "bk.pem")
	other.Client("relay", badCert, badKey)
	k := realKafka(t, dir)
	admin := realOpen(t, broker.Config{Brokers: []string{k.Addr()}})
	scramUser(t, admin, "relay")

	tls := broker.TLS{Enabled: true, CAFile: ca.File}
	mtls, badMTLS, otherCA := tls, tls, tls
	mtls.CertFile, mtls.KeyFile = cert, key
	badMTLS.CertFile, badMTLS.KeyFile = badCert, badKey
	otherCA.CAFile = other.File
	sasl := func(mechanism, password string) broker.SASL {
		return broker.SASL{Mechanism: mechanism, Username: "relay", Password: password}
	}
	for _, tt := range []struct {
		name     string
		listener string
		tls      broker.TLS
		sasl     broker.SASL
		want     fault.Class
		words    string // "" wants success
	}{
		{"TLS", "TLS", tls, broker.SASL{}, 0, ""},
		{"mTLS", "MTLS", mtls, broker.SASL{}, 0, ""},
		{"PLAIN", "SASL", broker.TLS{}, sasl("plain", realSecret), 0, ""},
		{"SCRAM-SHA-256", "SASL", broker.TLS{}, sasl("scram-sha-256", realSecret), 0, ""},
		{"SCRAM-SHA-512 over TLS", "SASLTLS", tls, sasl("scram-sha-512", realSecret), 0, ""},
		{"PLAIN over TLS", "SASLTLS", tls, sasl("plain", realSecret), 0, ""},

		{"PLAIN, wrong password", "SASL", broker.TLS{}, sasl("plain", realSecret+"x"), fault.Stop, "kafka.sasl.username"},
		{"SCRAM, wrong password", "SASL", broker.TLS{}, sasl("scram-sha-256", realSecret+"x"), fault.Stop, "kafka.sasl.username"},
		{"SCRAM over TLS, wrong password", "SASLTLS", tls, sasl("scram-sha-512", realSecret+"x"), fault.Stop, "kafka.sasl.username"},
		{"other authority", "TLS", otherCA, broker.SASL{}, fault.Stop, "kafka.tls.ca_file"},
		{"no client certificate", "MTLS", tls, broker.SASL{}, fault.Stop, "kafka.tls.cert_file"},
		{"client certificate of another authority", "MTLS", badMTLS, broker.SASL{}, fault.Stop, "kafka.tls.cert_file"},
		{"SASL to a listener without", "TLS", tls, sasl("plain", realSecret), fault.Stop, "kafka.sasl"},
		{"no SASL to a listener with", "SASL", broker.TLS{}, broker.SASL{}, fault.Retry, "kafka.sasl"},
		{"TLS to a plaintext listener", "SASL", tls, sasl("plain", realSecret), fault.Retry, "kafka.tls.enabled"},
		{"plaintext to a TLS listener", "TLS", broker.TLS{}, broker.SASL{}, fault.Stop, "kafka.tls.enabled"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := realOpen(t, broker.Config{Brokers: []string{k.ListenerAddr(tt.listener)}, TLS: tt.tls, SASL: tt.sasl})
			began := time.Now()
			err := c.Ping(seconds(t, 20))
			if tt.words == "" {
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Client().Metadata(seconds(t, 20), &kafka.MetadataRequest{}); err != nil {
					t.Fatalf("through the transport: %v", err)
				}
				return
			}
			t.Log(err)
			if err == nil || fault.ClassOf(err) != tt.want || !strings.Contains(err.Error(), tt.words) {
				t.Fatalf("ping: %v (%v); want %v and %q", err, fault.ClassOf(err), tt.want, tt.words)
			}
			if strings.Contains(err.Error(), realSecret) || time.Since(began) > 8*time.Second {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
		})
	}

	t.Run("missing privilege", func(t *testing.T) {
		spec := broker.TopicSpec{Name: "outbox", Partitions: 3, Replication: -1, Config: map[string]string{"retention.ms": "1234"}}
		for range 2 {
			if err := admin.CreateTopic(seconds(t, 20), spec); err != nil {
				t.Fatal(err)
			}
		}
		if cfg, err := admin.TopicConfig(seconds(t, 20), "outbox"); err != nil || cfg["retention.ms"] != "1234" || cfg["min.insync.replicas"] == "" {
			t.Errorf("configuration %v, %v", cfg["retention.ms"], err)
		}
		relay := realOpen(t, broker.Config{Brokers: []string{k.ListenerAddr("SASL")}, SASL: sasl("plain", realSecret)})
		topics, err := relay.Metadata(seconds(t, 20), "outbox")
		if err != nil || !errors.Is(topics["outbox"].Err, kafka.TopicAuthorizationFailed) {
			t.Errorf("metadata %+v, %v; want TOPIC_AUTHORIZATION_FAILED", topics, err)
		}
		for what, err := range map[string]error{
			"create": relay.CreateTopic(seconds(t, 20), broker.TopicSpec{Name: "new", Partitions: 1, Replication: -1}),
			"config": func() error { _, err := relay.TopicConfig(seconds(t, 20), "outbox"); return err }(),
		} {
			var e *fault.Error
			if !errors.As(err, &e) || e.Class != fault.Stop || e.Fix == "" {
				t.Errorf("%s: %v; want a stop with its fix", what, err)
			}
		}
		if _, _, err := relay.InitProducerID(seconds(t, 20)); !errors.Is(err, kafka.ClusterAuthorizationFailed) {
			t.Errorf("producer id: %v; want CLUSTER_AUTHORIZATION_FAILED", err)
		}
		mayWrite(t, admin, "relay", "outbox")
		began := time.Now()
		for { // WRITE on any topic is enough
			_, _, err := relay.InitProducerID(seconds(t, 20))
			if err == nil {
				break
			}
			if time.Since(began) > 20*time.Second {
				t.Fatalf("producer id with the privilege to write: %v", err)
			}
		}
		bad := broker.TopicSpec{Name: "no good", Partitions: 1, Replication: -1}
		if err := admin.CreateTopic(seconds(t, 20), bad); fault.ClassOf(err) != fault.Stop {
			t.Errorf("illegal name: %v; want a stop", err)
		}
		bad = broker.TopicSpec{Name: "good", Partitions: 1, Replication: -1, Config: map[string]string{"no.such": "1"}}
		if err := admin.CreateTopic(seconds(t, 20), bad); fault.ClassOf(err) != fault.Stop {
			t.Errorf("unknown setting: %v; want a stop", err)
		}
	})

	t.Run("away and back", func(t *testing.T) {
		k.Kill9()
		if err := admin.Ping(seconds(t, 20)); err == nil || fault.ClassOf(err) != fault.Retry {
			t.Fatalf("ping without a broker: %v; want retry", err)
		}
		if _, err := admin.Metadata(seconds(t, 20), "outbox"); err == nil || fault.ClassOf(err) == fault.Stop {
			t.Fatalf("metadata without a broker: %v; want an error to try again", err)
		}
		if err := k.Start(seconds(t, 120)); err != nil {
			t.Fatal(err)
		}
		if err := admin.Ping(seconds(t, 20)); err != nil {
			t.Fatal(err)
		}
		if topics, err := admin.Metadata(seconds(t, 20), "outbox"); err != nil || topics["outbox"].Err != nil {
			t.Fatalf("metadata after the restart: %v, %v", topics, err)
		}
	})
}

func mayWrite(t *testing.T, c *broker.Cluster, user, topic string) {
	t.Helper()
	res, err := c.Client().CreateACLs(seconds(t, 20), &kafka.CreateACLsRequest{ACLs: []kafka.ACLEntry{{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ResourcePatternType: kafka.PatternTypeLiteral,
		Principal: "User:" + user, Host: "*", Operation: kafka.ACLOperationTypeWrite, PermissionType: kafka.ACLPermissionTypeAllow,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range res.Errors {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
