package kafkastore

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/fault"
)

// Ensure makes the topic when it does not exist, and returns when it can be
// used. It refuses a topic whose settings would let marks expire. It is for
// setup: run never makes a topic.
func (s *Store) Ensure(ctx context.Context) error {
	if err := s.create(ctx); err != nil {
		return fmt.Errorf("make the topic with the marks: %w", err)
	}
	if err := s.checkSettings(ctx); err != nil {
		return err
	}
	for {
		_, _, err := s.bounds(ctx)
		if err == nil {
			return nil
		}
		err = s.failed(ctx, fmt.Sprintf("use topic %s with the marks", s.cfg.Topic), err)
		if c := fault.ClassOf(err); c == fault.Stop || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// settings of the topic that Ensure makes. min.insync.replicas stays the
// brokers' choice.
var settings = map[string]string{
	"cleanup.policy": "compact",
	// Small segments are compacted soon, so that Load reads little.
	"segment.ms":                "600000",
	"segment.bytes":             "16777216",
	"min.cleanable.dirty.ratio": "0.1",
	// See the package's comment: late writes.
	"min.compaction.lag.ms": "600000",
	// A leader that lacks the last marks would make the slot look ahead.
	"unclean.leader.election.enable": "false",
}

// create makes the topic, with compaction alone where the brokers refuse the
// rest of the settings, as some services do.
func (s *Store) create(ctx context.Context) error {
	spec := broker.TopicSpec{Name: s.cfg.Topic, Partitions: 1, Replication: s.cfg.Replication, Config: settings}
	err := s.cluster.CreateTopic(ctx, spec)
	if _, code := broker.Classify(err); code != "INVALID_CONFIG" && code != "POLICY_VIOLATION" {
		return err
	}
	s.log.Warn("the brokers refuse some settings of the topic with the marks; making it with cleanup.policy=compact alone", zap.Error(err))
	spec.Config = map[string]string{"cleanup.policy": "compact"}
	return s.cluster.CreateTopic(ctx, spec)
}

func (s *Store) checkSettings(ctx context.Context) error {
	cfg, err := s.cluster.TopicConfig(ctx, s.cfg.Topic)
	if err != nil {
		if _, code := broker.Classify(err); code == "TOPIC_AUTHORIZATION_FAILED" || code == "CLUSTER_AUTHORIZATION_FAILED" {
			s.log.Warn("the settings of the topic with the marks cannot be read, see that its cleanup.policy is compact", zap.Error(err))
			return nil
		}
		return err
	}
	if p := cfg["cleanup.policy"]; p != "compact" {
		return fault.Stopped(fmt.Sprintf("set cleanup.policy=compact on topic %s, or name another in checkpoint.topic", s.cfg.Topic),
			"topic %s has cleanup.policy=%s: it would delete the marks of a slot that rests, and the relay would refuse to start", s.cfg.Topic, p)
	}
	return nil
}
