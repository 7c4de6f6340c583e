// Command orders is an example to copy: an order service, a billing worker and a mail
// worker, whose effects happen once per order although requests and events are repeated.
// Each role is a process of its own, of one binary:
//
//	orders serve      takes orders by HTTP; order and event in one transaction
//	orders bill       one invoice per order, in the transaction of the inbox
//	orders mail       one mail per order, which is outside of every transaction
//	orders provider   stands for the mail service of somebody else
//
// README.md says how to run them, and which key protects what.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// roles run until ctx ends, and return nil then.
var roles = map[string]func(context.Context, settings) error{
	"serve":    serve,
	"bill":     bill,
	"mail":     mail,
	"provider": provide,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Getenv))
}

// run returns the exit code: 0 after a clean stop, 1 for a failure, 2 for a mistake in
// arguments or environment.
func run(ctx context.Context, args []string, getenv func(string) string) int {
	if len(args) != 1 || roles[args[0]] == nil {
		fmt.Fprintln(os.Stderr, "usage: orders serve | bill | mail | provider")
		return 2
	}
	role := args[0]
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil)).With("role", role))
	s, err := load(role, getenv)
	if err != nil {
		slog.Error("the environment is not usable", "error", err)
		return 2
	}
	slog.Info("started")
	if err := roles[role](ctx, s); err != nil {
		slog.Error("ended", "error", err)
		return 1
	}
	slog.Info("stopped")
	return 0
}

// serveHTTP serves until ctx ends, and then lets open requests finish.
func serveHTTP(ctx context.Context, listen string, h http.Handler) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", listen, err)
	}
	slog.Info("listening", "address", l.Addr().String())
	server := &http.Server{Handler: h, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve on %s: %w", listen, err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			return fmt.Errorf("wait for open requests: %w", err)
		}
		return nil
	})
	return g.Wait()
}
