package main

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

// A worker reads from a broker that wants TLS, by an authority of its own, and SCRAM.
func TestWorker_ReadsOverTLSWithUserAndPassword(t *testing.T) {
	const user, password = "billing", "not for everybody"
	ca := e2e.NewCA(t)
	t.Setenv("SSL_CERT_FILE", ca.CertFile) // read once per process: no other test here uses TLS
	listener, more := e2e.SecureListener(t, "SECURE", ca, map[string]string{user: password})
	k := e2e.ExclusiveKafka(t, kafkaserver.Options{Listeners: []kafkaserver.Listener{listener}, Settings: more})
	k.SetScramUser(t, user, password)
	pg := e2e.Postgres(t)
	pg.Exec(t, read(t, "schema.sql"))
	k.CreateTopic(t, "orders", 1)
	start(t, "bill", map[string]string{"DATABASE_URL": pg.DSN(), "BROKERS": k.Broker.ListenerAddr("SECURE"), "TOPIC": "orders",
		"KAFKA_USER": user, "KAFKA_PASSWORD": password})
	event := &kgo.Record{Topic: "orders", Key: []byte("7"), Value: []byte(`{"order": 7, "customer": "ann", "cents": 1}`),
		Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("e7")}, {Key: "eventType", Value: []byte(typeOrderPlaced)}}}
	if err := k.Client(t).ProduceSync(t.Context(), event).FirstErr(); err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, time.Minute, "the invoice of the order", func() bool {
		n, err := pg.TryQuery("SELECT count(*) FROM invoices WHERE order_id = 7")
		return err == nil && n == "1"
	})
}
