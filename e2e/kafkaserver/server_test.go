package kafkaserver_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

func TestBroker_KeepsDataAndPortOverKillPauseAndStop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	began := time.Now()
	b, err := kafkaserver.Start(ctx, kafkaserver.Options{})
	if errors.Is(err, kafkaserver.ErrNoJars) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	t.Logf("started in %v", time.Since(began))
	if os.Getenv("SHOWLOG") != "" {
		log, _ := os.ReadFile(b.LogPath())
		t.Logf("%s", log)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.DefaultProduceTopic("t"), kgo.ConsumeTopics("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "t", 1, 1
	req.Topics = append(req.Topics, topic)
	if _, err := req.RequestWith(ctx, cl); err != nil {
		t.Fatal(err)
	}
	produce := func() {
		t.Helper()
		if err := cl.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	produce()

	began = time.Now()
	b.Kill9()
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("kill and start in %v", time.Since(began))
	produce()

	if err := b.Pause(); err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	if err := cl.Ping(short); err == nil {
		t.Fatal("a paused broker answered")
	}
	stop()
	if err := b.Resume(); err != nil {
		t.Fatal(err)
	}
	produce()

	began = time.Now()
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("stop in %v", time.Since(began))
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	produce()
	for n := 0; n < 4; {
		f := cl.PollFetches(ctx)
		if err := f.Err0(); err != nil {
			t.Fatal(err)
		}
		n += f.NumRecords()
	}
}
