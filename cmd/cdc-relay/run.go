package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/admin"
	"github.com/cdc-relay/cdc-relay/config"
	"github.com/cdc-relay/cdc-relay/relay"
)

// overhead is what the process needs beside the in-flight budget.
const overhead = 32 << 20

func (a *app) runCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Stream the outbox to Kafka until stopped",
		Long: `Stream the outbox to Kafka until stopped. It makes nothing: run cdc-relay setup
first. When the slot is in use by another instance, it stands by and takes over.

SIGTERM or SIGINT stops cleanly: the transaction in hand is finished, everything
is published and confirmed, and a restart repeats nothing. It may take as long as
relay.shutdown_timeout; a second signal leaves at once. SIGHUP is ignored.

With log.format: json every line from the start on is JSON, also the last one:
level error, message "stopped by an error", with error and fix. With console it is
a plain line. A configuration that cannot be read is told in plain lines.

Go's memory limit is set to relay.max_in_flight_bytes and 32 MiB more, unless
GOMEMLIMIT is set.`,
		Example: "  cdc-relay run\n  cdc-relay run --config /etc/cdc-relay.yaml --set log.format=console",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.loadToConnect(o)
			if err != nil {
				return err
			}
			log, err := newLogger(cfg.Log, a.err)
			if err != nil {
				return err
			}
			defer func() { _ = log.Sync() }()
			return logged(a.run(cmd.Context(), cfg, log), cfg.Log, log)
		},
	}
}

func (a *app) run(ctx context.Context, cfg config.Config, log *zap.Logger) error {
	signals := make(chan os.Signal, 2) // never closed; Notify drops what does not fit
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	signal.Ignore(syscall.SIGHUP)
	a.limitMemory(cfg)
	for _, w := range cfg.Warnings() {
		log.Warn("the configuration is rarely meant so", zap.String("what", w))
	}

	cluster, err := openCluster(cfg)
	if err != nil {
		return err
	}
	defer closeCluster(cluster)
	b := buildInfo()
	metrics := admin.NewMetrics(b.version, b.revision)
	r := relay.New(relayConfig(cfg), relay.Deps{
		Log: log, OpenSink: openSink(cfg, cluster, log), Store: openStore(cfg, cluster, log),
		ObserveAck: metrics.ObserveAck,
	})
	metrics.Watch(r.Status)
	var server *admin.Server
	if cfg.Admin.Listen != "" {
		if server, err = admin.Listen(cfg.Admin.Listen, r.Status, metrics, b.version); err != nil {
			return err
		}
		log.Info("serving health and metrics", zap.Stringer("address", server.Addr()))
	}
	addresses, err := cfg.Source.Addresses()
	if err != nil {
		return &usageError{fmt.Errorf("source: %w", err)}
	}
	log.Info("starting", zap.String("version", b.version), zap.String("slot", cfg.Source.Slot),
		zap.String("publication", cfg.Source.Publication), zap.String("sink", cfg.Sink),
		zap.Stringer("max_in_flight", cfg.Relay.MaxInFlight), zap.Strings("postgresql", addresses),
		zap.Strings("kafka", brokers(cfg)))
	return a.supervise(ctx, r, server, signals, log)
}

// runner is the relay as supervise sees it.
type runner interface {
	Run(ctx context.Context) error
	Stop()
}

// supervise runs the relay beside its HTTP server until it ends, and turns
// signals into a stop. It returns the relay's error.
func (a *app) supervise(ctx context.Context, r runner, server *admin.Server, signals <-chan os.Signal, log *zap.Logger) error {
	side, endSide := context.WithCancel(ctx)
	defer endSide()
	var g errgroup.Group
	var serveErr error
	if server != nil {
		g.Go(func() error {
			if serveErr = server.Serve(side); serveErr != nil {
				r.Stop() // a relay that nobody can see is not left running
			}
			return nil
		})
	}
	g.Go(func() error {
		a.watchSignals(side, r, signals, log)
		return nil
	})
	err := r.Run(ctx)
	endSide()
	_ = g.Wait()
	return errors.Join(err, serveErr)
}

// signalEcho is for how long after the first signal another is taken for the
// same: timeout(1) and some supervisors signal the process and then its group.
const signalEcho = 300 * time.Millisecond

// watchSignals stops the relay at the first signal and leaves at the second.
func (a *app) watchSignals(ctx context.Context, r runner, signals <-chan os.Signal, log *zap.Logger) {
	var first time.Time
	for {
		select {
		case s := <-signals:
			if first.IsZero() {
				first = time.Now()
				log.Info("stopping cleanly; a second signal leaves at once", zap.Stringer("signal", s))
				r.Stop()
				continue
			}
			if time.Since(first) < a.signalEcho {
				continue
			}
			log.Error("left at once by a second signal; what was not confirmed will be published again")
			a.exit(exitFailure)
			return
		case <-ctx.Done():
			return
		}
	}
}

// limitMemory keeps the garbage collector from letting the heap grow to twice
// the in-flight budget.
func (a *app) limitMemory(cfg config.Config) {
	if a.getenv("GOMEMLIMIT") == "" {
		limit := int64(cfg.Relay.MaxInFlight) + overhead
		if cfg.Mark.Column != "" {
			limit += int64(cfg.Mark.MaxBytes)
		}
		debug.SetMemoryLimit(limit)
	}
}
