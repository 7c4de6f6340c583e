package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/setup"
	"github.com/cdc-relay/cdc-relay/sink"
)

// rowsWiring is what backfill and recover publish rows with. Close it.
type rowsWiring struct {
	a        *app
	cfg      config.Config
	log      *zap.Logger
	cluster  *broker.Cluster // nil without Kafka
	openSink func(context.Context, sink.Refused) (sink.Sink, error)
	store    checkpoint.Store // nil before options
}

// forRows connects to nothing yet.
func (a *app) forRows(cfg config.Config) (*rowsWiring, error) {
	log, err := newLogger(cfg.Log, a.err)
	if err != nil {
		return nil, err
	}
	cluster, err := openCluster(cfg)
	if err != nil {
		return nil, err
	}
	return &rowsWiring{a: a, cfg: cfg, log: log, cluster: cluster, openSink: openSink(cfg, cluster, log)}, nil
}

// options are those of the setup's functions, once the brokers and the store of the
// marks have answered.
func (w *rowsWiring) options(ctx context.Context, f backfillFlags) (setup.Options, error) {
	so := w.a.setupOptions(w.cfg)
	so.DryRun, so.SlotTimeout, so.Replicate = f.dryRun, f.slotTimeout, replicate(w.cfg)
	if w.cluster != nil {
		if err := reach(ctx, w.cfg, w.cluster); err != nil {
			return so, err
		}
		so.CreateTopic = func(ctx context.Context, t setup.Topic) (bool, int, error) { return createTopic(ctx, w.cluster, t) }
	}
	if f.createTopics {
		so.Topics = w.a.topicsToMake(w.cfg)
	}
	w.store = openStore(w.cfg, w.cluster, w.log)
	so.Store = w.store
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Kafka.RequestTimeout)
	defer cancel()
	return so, ensureStore(ctx, w.store)
}

func (w *rowsWiring) Close() {
	if w.store != nil {
		_ = w.store.Close()
	}
	closeCluster(w.cluster)
	_ = w.log.Sync()
}
