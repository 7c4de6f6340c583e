package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// Names in the demo's own server.
const (
	database  = "shop"
	relayRole = "cdc_relay"
)

// source is the database: one that was started, or one that was given.
type source struct {
	server *pgserver.Server // nil: given
	admin  string           // URL of a role that may create everything
	relay  string           // URL of the role that the relay runs as
	about  string
}

// startPostgres starts a server with a database, and a role for the relay that
// may do nothing but log in and replicate.
func startPostgres(ctx context.Context, preferred string) (*source, error) {
	version, err := chooseVersion(preferred)
	if err != nil {
		return nil, err
	}
	// Durable commits, so that the latency shown is an honest one.
	s, err := pgserver.Start(ctx, pgserver.Options{Version: version, Settings: map[string]string{"fsync": "on"}})
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL %s does not start: %w", version, err)
	}
	err = s.Exec(ctx, "postgres",
		"CREATE DATABASE "+pgx.Identifier{database}.Sanitize(),
		"CREATE ROLE "+pgx.Identifier{relayRole}.Sanitize()+" LOGIN REPLICATION")
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("prepare the database: %w", err)
	}
	return &source{
		server: s, admin: s.DSN(database), relay: s.DSNAs(relayRole, "", database),
		about: "PostgreSQL " + version + ", log " + s.LogPath(),
	}, nil
}

// chooseVersion is the preferred version if it is installed, else the newest
// that is.
func chooseVersion(preferred string) (string, error) {
	candidates := []string{"19", "18", "17", "16", "15", "14", "13"}
	if preferred != "" {
		candidates = append([]string{preferred}, candidates...)
	}
	for _, v := range candidates {
		_, err := pgserver.FindBinaries(v)
		if err == nil {
			return v, nil
		}
		if !errors.Is(err, pgserver.ErrNoBinaries) {
			return "", err
		}
	}
	return "", errors.New("PostgreSQL is not installed on this machine. Install the server (Debian, Ubuntu: sudo apt-get install postgresql; `make demo` does that when it runs as root) and try again, or name a database with -postgres URL")
}

// givenPostgres uses somebody's server, once it answers.
func givenPostgres(ctx context.Context, url string, patience time.Duration) (*source, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			cfg := conn.Config()
			_ = conn.Close(ctx)
			return &source{admin: url, relay: url, about: fmt.Sprintf("%s:%d, database %s (given)", cfg.Host, cfg.Port, cfg.Database)}, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the database named by -postgres cannot be used: %w", err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// createOrders makes the application's table.
func (s *source) createOrders(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.admin)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, ordersSchema); err != nil {
		return fmt.Errorf("create the table orders: %w", err)
	}
	return nil
}

// awaitOutbox waits until somebody's setup has made the outbox.
func (s *source) awaitOutbox(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.admin)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		var there bool
		err := conn.QueryRow(ctx, `SELECT to_regclass('public.outbox') IS NOT NULL AND EXISTS (SELECT FROM pg_replication_slots WHERE active AND database = current_database())`).Scan(&there)
		if err == nil && there {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("there is no table public.outbox, or no relay reads a slot of this database; waited %s", patience)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (s *source) done() <-chan struct{} {
	if s.server == nil {
		return nil
	}
	return s.server.Done()
}

func (s *source) close() {
	if s.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = s.server.StopFast(ctx)
	_ = s.server.Close()
}

// broker is the Kafka cluster: embedded, real, or given.
type broker struct {
	addrs string
	about string
	close func()
}

func startBroker(ctx context.Context, o options) (*broker, error) {
	switch {
	case o.Brokers != "":
		return &broker{addrs: o.Brokers, about: o.Brokers + " (given)", close: func() {}}, nil
	case o.Kafka == "real":
		b, err := kafkaserver.Start(ctx, kafkaserver.Options{})
		if err != nil {
			return nil, fmt.Errorf("Apache Kafka does not start: %w. It needs Java 17 and its jars, which Maven fetches once (make deps); the embedded broker needs neither: leave out -kafka real", err)
		}
		return &broker{addrs: b.Addr(), about: b.Addr() + " (Apache Kafka, log " + b.LogPath() + ")", close: func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = b.Stop(ctx)
			_ = b.Close()
		}}, nil
	}
	// An hour of events is kept, in memory.
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"log.retention.ms": "3600000"}))
	if err != nil {
		return nil, fmt.Errorf("the embedded broker does not start: %w", err)
	}
	addrs := strings.Join(c.ListenAddrs(), ",")
	return &broker{addrs: addrs, about: addrs + " (kfake, embedded)", close: c.Close}, nil
}

// inDir is the path of a file in the demo's directory.
func inDir(dir, name string) string { return filepath.Join(dir, name) }
