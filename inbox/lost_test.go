package inbox_test

import (
	"context"
	"database/sql"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// A connection that goes away under a handler, while the database answers others, is no
// attempt: with one attempt the record would be a dead letter, although nothing is wrong
// with it.
func TestRunner_ALostConnectionIsNoAttempt(t *testing.T) {
	for name, start := range map[string]func(cfg *pgxpool.Config, c inbox.Config, lose func()) (*inbox.Runner, func(), error){
		"pgx": func(cfg *pgxpool.Config, c inbox.Config, lose func()) (*inbox.Runner, func(), error) {
			pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
			if err != nil {
				return nil, nil, err
			}
			r, err := inbox.ForPGX(pool.Begin, func(ctx context.Context, tx pgx.Tx, r inbox.Record) error {
				lose()
				return bill(ctx, tx, r)
			}, c)
			return r, pool.Close, err
		},
		"sql": func(cfg *pgxpool.Config, c inbox.Config, lose func()) (*inbox.Runner, func(), error) {
			db := stdlib.OpenDB(*cfg.ConnConfig)
			r, err := inbox.ForSQL(func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
				func(ctx context.Context, tx *sql.Tx, r inbox.Record) error {
					lose()
					_, err := tx.ExecContext(ctx, "INSERT INTO invoices (order_id) VALUES ($1)", r.ID)
					return err
				}, c)
			return r, func() { _ = db.Close() }, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newKafkaEnv(t, 1)
			e.produce(0, "a")
			var letters, lost, told atomic.Int64
			c := e.config(func(c *inbox.Config) {
				c.Attempts = 1
				c.Observe = func(ev inbox.Event) {
					if ev.Kind == inbox.DeadLettered {
						letters.Add(1)
					}
					if ev.Kind == inbox.Waiting && strings.Contains(ev.Err.Error(), "lost at every try") {
						told.Add(1)
					}
				}
			})
			cfg := e.pool.Config()
			var mu sync.Mutex
			var open []net.Conn
			cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				mu.Lock()
				defer mu.Unlock()
				open = append(open, conn)
				return conn, err
			}
			runner, end, err := start(cfg, c, func() {
				if lost.Add(1) > 3 {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, conn := range open {
					_ = conn.Close()
				}
				open = nil
			})
			e.must(err)
			defer end()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- runner.Run(ctx) }()
			waitFor(t, "the effect or a dead letter", func() bool { return letters.Load() > 0 || e.offset(e.topic, 0) == 1 })
			cancel()
			e.must(<-done)
			if letters.Load() > 0 || e.invoices() != 1 || lost.Load() != 4 || told.Load() == 0 {
				t.Errorf("%d dead letters, %d invoices, %d tries, told %d times", letters.Load(), e.invoices(), lost.Load(), told.Load())
			}
		})
	}
}
