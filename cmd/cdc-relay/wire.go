package main

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/check"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/checkpoint/filestore"
	"github.com/cdc-relay/cdc-relay/checkpoint/kafkastore"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/history"
	"github.com/cdc-relay/cdc-relay/marking"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/sink"
	sinkkafka "github.com/cdc-relay/cdc-relay/sink/kafka"
	"github.com/cdc-relay/cdc-relay/sink/null"
)

// usesKafka reports whether anything is kept in or published to Kafka.
func usesKafka(cfg config.Config) bool {
	return cfg.Sink == "kafka" || cfg.Checkpoint.Store == "kafka"
}

// brokers are the bootstrap brokers that are connected to; nil without Kafka.
func brokers(cfg config.Config) []string {
	if !usesKafka(cfg) {
		return nil
	}
	return cfg.Kafka.Brokers
}

// openCluster returns the connections to Kafka, nil when none are needed. It does
// not touch the network; its errors are the configuration's.
func openCluster(cfg config.Config) (*broker.Cluster, error) {
	if !usesKafka(cfg) {
		return nil, nil
	}
	c, err := broker.Open(brokerConfig(cfg.Kafka))
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}

func brokerConfig(k config.Kafka) broker.Config {
	return broker.Config{
		Brokers: k.Brokers, ClientID: k.ClientID,
		TLS: broker.TLS{Enabled: k.TLS.Enabled, CAFile: k.TLS.CAFile, CertFile: k.TLS.CertFile, KeyFile: k.TLS.KeyFile,
			ServerName: k.TLS.ServerName, InsecureSkipVerify: k.TLS.Insecure},
		SASL: broker.SASL{Mechanism: k.SASL.Mechanism, Username: k.SASL.Username, Password: k.SASL.Password,
			PasswordFile: k.SASL.PasswordFile},
		DialTimeout: k.DialTimeout, RequestTimeout: k.RequestTimeout, MetadataTTL: k.MetadataTTL,
	}
}

// openStore returns the store of the marks. It does nothing yet. The cluster must
// outlive it.
func openStore(cfg config.Config, cluster *broker.Cluster, log *zap.Logger) checkpoint.Store {
	if cfg.Checkpoint.Store == "file" {
		return filestore.New(cfg.Checkpoint.File)
	}
	return kafkastore.New(cluster, kafkastore.Config{
		Topic: cfg.Checkpoint.Topic, Replication: cfg.Checkpoint.Replication, Log: log,
	})
}

// ensureStore makes what the store needs.
func ensureStore(ctx context.Context, st checkpoint.Store) error {
	if k, ok := st.(*kafkastore.Store); ok {
		return k.Ensure(ctx)
	}
	return nil
}

// openSink returns what relay.Deps.OpenSink asks for.
func openSink(cfg config.Config, cluster *broker.Cluster, log *zap.Logger) func(context.Context, sink.Refused) (sink.Sink, error) {
	return func(ctx context.Context, refused sink.Refused) (sink.Sink, error) {
		if cfg.Sink == "null" {
			return null.Open(), nil
		}
		return sinkkafka.Open(ctx, sinkkafka.Config{
			Cluster: cluster, ClientID: cfg.Kafka.ClientID,
			Compression: cfg.Kafka.Compression, MaxBatchBytes: int(cfg.Kafka.MaxBatchBytes), BudgetBytes: int64(cfg.Relay.MaxInFlight),
			RequestTimeout: cfg.Kafka.RequestTimeout, RetryMin: cfg.Kafka.RetryMin, RetryMax: cfg.Kafka.RetryMax,
			Refused: refused, Log: log,
		})
	}
}

func relayConfig(cfg config.Config) relay.Config {
	params := make(map[string]string)
	if v := cfg.Source.LogicalDecodingMem; v != "" {
		params["logical_decoding_work_mem"] = v
	}
	if v := cfg.Source.WalSenderTimeout; v > 0 {
		params["wal_sender_timeout"] = fmt.Sprintf("%dms", v.Milliseconds())
	}
	rc := relay.Config{
		Connect: cfg.Source.Connect, Slot: cfg.Source.Slot, Publication: cfg.Source.Publication,
		ApplicationName: cfg.Source.ApplicationName, AllowSynchronous: cfg.Source.AllowSynchronous,
		Tables:         cfg.Tables(),
		Messages:       cfg.LogicalMessages(),
		CoalesceReads:  cfg.Source.CoalesceReads == "auto",
		StatusInterval: cfg.Source.StatusInterval, SilenceTimeout: cfg.Source.SilenceTimeout, WatchInterval: cfg.Source.WatchInterval,
		SaveInterval: cfg.Relay.SaveInterval, ShutdownTimeout: cfg.Relay.ShutdownTimeout, StandbyInterval: cfg.Relay.StandbyInterval,
		ReconnectMin: cfg.Relay.ReconnectMin, ReconnectMax: cfg.Relay.ReconnectMax, StallTimeout: cfg.Relay.StallTimeout,
		MaxRowBytes: int64(cfg.Relay.MaxRowBytes), MaxAheadTx: cfg.Relay.MaxAheadTx, MaxAheadWAL: int64(cfg.Relay.MaxAheadWAL),
		RuntimeParams: params, Retention: retention(cfg), Marking: markSettings(cfg),
	}
	if h := cfg.History; h.On() {
		rc.History = relay.HistoryConfig{Slot: cfg.HistorySlot(), Window: history.Window{
			MaxBytes: int64(h.MaxBytes), MaxAge: h.MaxAge, HardMaxBytes: int64(h.HardLimit())}}
	}
	return rc
}

func retention(cfg config.Config) relay.Retention {
	r := cfg.Retention
	if !r.On() {
		return relay.Retention{}
	}
	out := relay.Retention{After: r.After, Interval: r.Interval, BatchRows: r.BatchRows, Pause: r.BatchPause,
		LockTimeout: r.LockTimeout, Columns: cfg.AgeColumns()}
	if r.DropsPartitions() {
		out.Partitions = &relay.Partitions{Interval: r.PartitionInterval, Ahead: r.PartitionAhead, Name: r.PartitionName}
	}
	return out
}

// markSettings say how published rows are marked.
func markSettings(cfg config.Config) marking.Settings {
	m := cfg.Mark
	return marking.Settings{Column: m.Column, Value: m.Value, BatchRows: m.BatchRows, LockTimeout: m.LockTimeout, MaxBytes: int64(m.MaxBytes)}
}

func tableNames(cfg config.Config) []catalog.TableName {
	var names []catalog.TableName
	for _, t := range cfg.Tables() {
		names = append(names, catalog.TableName{Schema: t.Schema, Name: t.Name})
	}
	return names
}

func checkWant(cfg config.Config) check.Want {
	w := check.Want{
		Preflight: preflight.Want{Slot: cfg.Source.Slot, Publication: cfg.Source.Publication, Tables: tableNames(cfg),
			ApplicationName: cfg.Source.ApplicationName, AllowSynchronous: cfg.Source.AllowSynchronous, Messages: cfg.LogicalMessages() != nil},
		Tables: cfg.Tables(), Messages: cfg.LogicalMessages(), Topics: cfg.Kafka.Topics.Names,
		Brokers: usesKafka(cfg), Publish: cfg.Sink == "kafka",
		Partitions: cfg.Kafka.Topics.Partitions, Replication: cfg.Kafka.Topics.Replication,
		MarkReplication: cfg.Checkpoint.Replication, MaxBatchBytes: int64(cfg.Kafka.MaxBatchBytes),
		HistorySlot: cfg.HistorySlot(), History: cfg.History.On(), HistoryHardMax: int64(cfg.History.HardLimit()),
		Warnings: cfg.Warnings(),
	}
	if cfg.Retention.On() {
		w.AgeColumns = cfg.AgeColumns()
		w.DropPartitions, w.PartitionInterval = cfg.Retention.DropsPartitions(), cfg.Retention.PartitionInterval
	}
	if m := markSettings(cfg); m.On() {
		w.Marking = m.Of(cfg.Tables())
	}
	if cfg.Checkpoint.Store == "kafka" {
		w.MarkTopic = cfg.Checkpoint.Topic
	}
	return w
}
