package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/lab/stage"
	"github.com/cdc-relay/cdc-relay/live"
	"github.com/cdc-relay/cdc-relay/live/page"
)

// runPage runs the whole path as processes and serves the page about it until ctx ends. What it started has ended when it
// returns.
func runPage(ctx context.Context, o options, out *screen) error {
	l, err := live.Listen(o.Port)
	if err != nil {
		return err
	}
	defer l.Close()
	out.title("cdc-relay demo: the whole path of an order, in a browser")
	version, err := chooseVersion(o.Version)
	if err != nil {
		return err
	}
	so := stage.Options{PostgresVersion: version, DeadLetters: true, RelayBinary: o.Relay,
		Progress: func(what string) { out.print("  %s", out.style(dim, what+" ...")) }}
	if so.RelayBinary == "" {
		so.RelayBinary = stage.Beside("cdc-relay")
	}
	so.OrdersBinary = stage.Beside("orders")
	s, err := stage.Start(ctx, so)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("it was told to stop before everything had started")
		}
		if !errors.Is(err, kafkaserver.ErrNoJars) && !errors.Is(err, exec.ErrNotFound) {
			return err
		}
		return fmt.Errorf("%w\nKafka needs Java 17, and its jars, which Maven fetches once (make deps). The demo in the terminal needs neither: make demo-terminal", err)
	}
	defer s.Close()
	e, err := live.Start(ctx, s)
	if err != nil {
		return err
	}
	defer e.Close()
	out.print("\nOpen %s\n\nEverything on it is real: PostgreSQL, Apache Kafka, the relay, the order service and two workers run as processes of their own.\nCtrl-C ends them.", out.style(bold, "http://"+l.Addr().String()+"/"))
	if err := live.Serve(ctx, l, e, page.Handler()); err != nil {
		return err
	}
	out.print("stopped")
	return nil
}
