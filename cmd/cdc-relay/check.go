package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/check"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/config"
)

func (a *app) checkCommand(o *options) *cobra.Command {
	var asJSON bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check everything that the relay needs",
		Long: `Check everything that the relay needs, on the database and on the brokers: each
passes, warns or fails, with what to do about it. Nothing is changed. The exit
code is 0 only when nothing fails.`,
		Example: "  cdc-relay check\n  cdc-relay check --json | jq '.results[] | select(.status == \"fail\")'",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usagef("--timeout must be longer than 0")
			}
			cfg, err := a.loadToConnect(o)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			results, err := runChecks(ctx, cfg, timeout)
			if err != nil {
				return err
			}
			write := check.WriteText
			if asJSON {
				write = check.WriteJSON
			}
			if err := write(a.out, results); err != nil {
				return err
			}
			if check.Failed(results) {
				return errFailed
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().DurationVar(&timeout, "timeout", 15*time.Second, "how long the database, the brokers and the mark may take, each")
	return cmd
}

func runChecks(ctx context.Context, cfg config.Config, timeout time.Duration) ([]check.Result, error) {
	src, closeAll, err := sources(cfg, timeout)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	w := checkWant(cfg)
	return check.Evaluate(w, check.Gather(ctx, w, src)), nil
}

// sources are where check and status look. closeAll is called when they are done.
func sources(cfg config.Config, timeout time.Duration) (src check.Sources, closeAll func(), err error) {
	cluster, err := openCluster(cfg)
	if err != nil {
		return check.Sources{}, nil, err
	}
	return check.Sources{
		Connect: cfg.Source.Connect,
		Cluster: func() (check.Cluster, error) { return cluster, nil },
		OpenStore: func(context.Context) (checkpoint.Store, error) {
			return openStore(cfg, cluster, zap.NewNop()), nil
		},
		Timeout: timeout,
	}, func() { closeCluster(cluster) }, nil
}

func closeCluster(c *broker.Cluster) {
	if c != nil {
		_ = c.Close()
	}
}
