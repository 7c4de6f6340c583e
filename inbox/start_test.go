package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
	"github.com/cdc-relay/cdc-relay/inbox"
)

// Both servers come when the runner has been waiting for them.
func TestRun_WaitsForServersThatComeLater(t *testing.T) {
	e := newKafkaEnv(t, 1)
	e.produce(0, "a", "b")
	ctx := t.Context()
	for name, away := range map[string]struct{ stop, start func() error }{
		"PostgreSQL": {func() error { return server.StopFast(ctx) }, func() error { return server.Start(ctx) }},
		"Kafka":      {func() error { broker.k.Kill9(); return nil }, func() error { return broker.k.Start(ctx) }},
	} {
		e.must(away.stop())
		r := e.run(bill, func(c *inbox.Config) { c.BackoffMax = 200 * time.Millisecond })
		waitFor(t, "some waiting", func() bool { return r.count(inbox.Waiting) > 2 || len(r.done) > 0 })
		e.must(away.start())
		waitFor(t, "the runner to go on after "+name+" has come", func() bool { return r.count(inbox.Assigned) > 0 || len(r.done) > 0 })
		e.must(r.stop())
	}
	r := e.run(bill)
	waitFor(t, "the offset", func() bool { return e.offset(e.topic, 0) == 2 })
	e.must(r.stop())
	if e.invoices() != 2 {
		t.Errorf("%d invoices", e.invoices())
	}

	// A bound, and the end of ctx, end the wait.
	nobody := func(context.Context) (pgx.Tx, error) {
		conn, err := pgx.Connect(ctx, "postgres://u@127.0.0.1:1/d")
		if err != nil {
			return nil, err
		}
		return conn.Begin(ctx)
	}
	runner, err := inbox.ForPGX(nobody, bill, e.config(func(c *inbox.Config) { c.StartTimeout = 500 * time.Millisecond }))
	e.must(err)
	began := time.Now()
	if err := runner.Run(ctx); err == nil || !strings.Contains(err.Error(), "StartTimeout") || !strings.Contains(err.Error(), "refused") || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	runner, err = inbox.ForPGX(nobody, bill, e.config())
	e.must(err)
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if err := runner.Run(short); err != nil {
		t.Errorf("the end of ctx is an error: %v", err)
	}
}

func TestRun_EndsAtOnceForMistakes(t *testing.T) {
	e := newKafkaEnv(t, 1)
	ctx := t.Context()
	const secret = "s3cret-Pass"
	locked, err := pgserver.Start(ctx, pgserver.Options{Scram: true})
	e.must(err)
	defer locked.Close()
	e.must(server.CreateDatabase(ctx, e.db+"empty", ""))
	e.must(server.Exec(ctx, e.db, "CREATE ROLE nobody_"+e.db+" LOGIN"))
	for name, c := range map[string]struct {
		dsn, says string
		change    func(*inbox.Config)
	}{
		"wrong password":   {dsn: locked.DSNAs("postgres", secret, "postgres"), says: "28P01"},
		"no such database": {dsn: server.DSN("nowhere"), says: "3D000"},
		"no tables":        {dsn: server.DSN(e.db + "empty"), says: "inbox.Schema"},
		"no privilege":     {dsn: server.DSNAs("nobody_"+e.db, "", e.db), says: "42501"},
		"no topic":         {dsn: server.DSN(e.db), says: "nowhere", change: func(c *inbox.Config) { c.Topics = []string{"nowhere"} }},
	} {
		cfg, err := pgxpool.ParseConfig(c.dsn)
		e.must(err)
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		e.must(err)
		if c.change == nil {
			c.change = func(*inbox.Config) {}
		}
		var waited int
		runner, err := inbox.ForPGX(pool.Begin, bill, e.config(c.change, func(c *inbox.Config) { c.Observe = func(inbox.Event) { waited++ } }))
		e.must(err)
		bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
		if err := runner.Run(bounded); err == nil || waited > 0 || !strings.Contains(fmt.Sprint(err), c.says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, after %d waits", name, err, waited)
		}
		cancel()
		pool.Close()
	}
}
