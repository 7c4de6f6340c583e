package main

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/cdc-relay/cdc-relay/check"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/setup"
)

func TestSetup_TellsWhetherATopicWasMade(t *testing.T) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	cfg := config.Default()
	cfg.Kafka.Brokers = fake.ListenAddrs()
	cluster, err := openCluster(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeCluster(cluster) })
	for _, want := range []struct {
		name       string
		made       bool
		partitions int
	}{{"orders", false, 3}, {"new", true, 6}, {"new", false, 6}} {
		made, partitions, err := createTopic(t.Context(), cluster, setup.Topic{Name: want.name, Partitions: 6, Replication: 1})
		if err != nil || made != want.made || partitions != want.partitions {
			t.Errorf("%s: made %t, %d partitions, %v", want.name, made, partitions, err)
		}
	}
}

func TestChecks_LookAtTopics(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	cfg := config.Default()
	cfg.Kafka.RequestTimeout = 5 * time.Second
	cfg.Source.URL = "postgres://u@127.0.0.1:1/d?sslmode=disable"
	cfg.Kafka.Brokers = cluster.ListenAddrs()
	cfg.Kafka.Topics.Names = []string{"orders", "missing"}
	results, err := runChecks(t.Context(), cfg, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]check.Result)
	for _, r := range results {
		got[r.Name] = r
	}
	for name, want := range map[string]struct {
		status check.Status
		says   string
	}{
		"brokers":                       {check.Pass, "reachable"},
		"topic orders":                  {check.Pass, "partitions: 3"},
		"topic orders replication":      {check.Warn, ""},
		"topic missing":                 {check.Warn, "may create it"},
		"topic cdc-relay-marks":         {check.Warn, "may create it"},
		"topic orders retention":        {check.Pass, ""},
		"topic orders unclean election": {check.Pass, "off"},
	} {
		if r := got[name]; r.Status != want.status || !strings.Contains(r.Detail, want.says) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
