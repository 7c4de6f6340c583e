package e2e_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

// produce writes one record with the client that the relay is built on.
func produce(ctx context.Context, tr *kafka.Transport, addr, topic, value string) error {
	cl := &kafka.Client{Addr: kafka.TCP(addr), Transport: tr}
	resp, err := cl.Produce(ctx, &kafka.ProduceRequest{Topic: topic, Partition: 0, RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte(value))})})
	if err != nil {
		return err
	}
	return resp.Error
}

func TestE2E_KafkaProxy(t *testing.T) {
	proxy, k := e2e.KafkaBehindProxy(t, kafkaserver.Options{})
	held, free := k.Topic(t, "held", 1), k.Topic(t, "free", 1)
	tr := &kafka.Transport{}
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := produce(ctx, tr, proxy.Addr(), held, "before"); err != nil {
		t.Fatal(err)
	}

	proxy.WithholdAcks(held)
	acked := make(chan error, 1)
	go func() { acked <- produce(ctx, tr, proxy.Addr(), held, "withheld") }()
	e2e.Eventually(t, 10*time.Second, "an answer is withheld", func() bool { return proxy.Held() == 1 })
	othersPass := produce(ctx, tr, proxy.Addr(), free, "passes") == nil
	brokerHasIt := len(k.Consume(t, held)) == 2
	unacked := false
	select {
	case <-acked:
	default:
		unacked = true
	}
	proxy.Release()
	released := <-acked == nil

	// A reset while an answer is withheld: the client sees an error, the broker has the record.
	proxy.WithholdAcks()
	go func() { acked <- produce(ctx, tr, proxy.Addr(), held, "lost answer") }()
	e2e.Eventually(t, 10*time.Second, "an answer is withheld", func() bool { return proxy.Held() == 1 })
	proxy.Reset()
	resetSeen := <-acked != nil && len(k.Consume(t, held)) == 3
	proxy.Release()

	tr.CloseIdleConnections() // the pool does not know yet that they are dead
	before := proxy.Produced()
	proxy.WithholdProduce(held)
	short, stop := context.WithTimeout(ctx, 500*time.Millisecond)
	err := produce(short, tr, proxy.Addr(), held, "never")
	stop()
	n := len(k.Consume(t, held))
	var timeout net.Error // which context.DeadlineExceeded is too
	withheldRequest := errors.As(err, &timeout) && timeout.Timeout() && n == 3 && proxy.Produced() == before
	if !withheldRequest {
		t.Logf("a withheld request: %v; %d records", err, n)
	}
	proxy.Reset()
	proxy.Release()
	tr.CloseIdleConnections()

	proxy.Freeze()
	short, stop = context.WithTimeout(ctx, 500*time.Millisecond)
	frozen := produce(short, tr, proxy.Addr(), free, "frozen") != nil
	stop()
	proxy.Restore()
	again := produce(ctx, tr, proxy.Addr(), free, "after") == nil

	// franz-go speaks newer versions of the protocol.
	cl, err := kgo.NewClient(kgo.SeedBrokers(proxy.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	proxy.WithholdAcks()
	go func() { acked <- cl.ProduceSync(ctx, &kgo.Record{Topic: free, Value: []byte("x")}).FirstErr() }()
	e2e.Eventually(t, 10*time.Second, "an answer is withheld", func() bool { return proxy.Held() == 1 })
	proxy.Release()
	newer := <-acked == nil

	ok := othersPass && brokerHasIt && unacked && released && resetSeen && withheldRequest && frozen && again && newer
	e2e.Result(t, "kafka_proxy", ok, "others_pass", othersPass, "broker_has_it", brokerHasIt, "unacked", unacked,
		"released", released, "reset_seen", resetSeen, "request_withheld", withheldRequest, "frozen", frozen,
		"again", again, "newer_protocol", newer)
}

func TestE2E_PostgresProxy(t *testing.T) {
	pg := e2e.Postgres(t)
	if pg.Server == nil {
		t.Skip("needs a server's address")
	}
	proxy := e2e.NewProxy(t)
	proxy.SetTarget(pg.Server.Addr())
	c := pg.ConnTo(t, pg.DSNThrough(proxy))
	ask := func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		var one int
		return c.QueryRow(ctx, "SELECT 1").Scan(&one)
	}
	passes := ask(10*time.Second) == nil
	proxy.Freeze()
	freezes := errors.Is(ask(300*time.Millisecond), context.DeadlineExceeded)
	proxy.Restore()
	c = pg.ConnTo(t, pg.DSNThrough(proxy))
	back := ask(10*time.Second) == nil
	proxy.Cut()
	cuts := ask(10*time.Second) != nil
	proxy.Restore()
	c = pg.ConnTo(t, pg.DSNThrough(proxy))
	restored := ask(10*time.Second) == nil
	e2e.Result(t, "postgres_proxy", passes && freezes && back && cuts && restored,
		"passes", passes, "freezes", freezes, "back", back, "cuts", cuts, "restored", restored)
}
