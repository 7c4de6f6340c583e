package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/proc"
)

// PollingTable is the outbox of the polling relay; PollingClient is its application_name.
const (
	PollingTable  = "outbox_polling"
	PollingClient = "bench-polling"
)

// CreatePollingTable makes the polling relay's outbox anew: as the other one, with an ordinal, a mark, and an index on the rows that are not
// marked.
func (s *Session) CreatePollingTable(ctx context.Context) error {
	return s.Exec(ctx, "DROP TABLE IF EXISTS outbox_polling",
		`CREATE TABLE outbox_polling (
			id text PRIMARY KEY, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text,
			type text NOT NULL DEFAULT 'created', payload text,
			ordinal bigint GENERATED ALWAYS AS IDENTITY, published_at timestamptz)`,
		"CREATE INDEX outbox_polling_unpublished ON outbox_polling (ordinal) WHERE published_at IS NULL")
}

// FillPolling makes that outbox anew with rows in it. Statistics are up to date, as they would be.
func (s *Session) FillPolling(ctx context.Context, rows, size int) error {
	if err := s.CreatePollingTable(ctx); err != nil {
		return err
	}
	return s.Exec(ctx, fmt.Sprintf(`INSERT INTO outbox_polling (id, aggregateid, payload)
		SELECT n::text, 'k' || n %% 997, left(repeat(lpad(n::text, 10, '0'), %d), %d) FROM generate_series(0, %d) n`, size/10+1, size, rows-1),
		"VACUUM ANALYZE outbox_polling", "CHECKPOINT")
}

// Vacuum turns autovacuum on, for that outbox alone, or off again. A polling relay leaves dead entries in the index that it polls, and would
// have to read them all again in each poll.
func (s *Session) Vacuum(ctx context.Context, on bool) error {
	state := "off"
	if on {
		state = "on"
	}
	return s.Exec(ctx, "ALTER TABLE outbox SET (autovacuum_enabled = false)", "ALTER SYSTEM SET autovacuum_naptime = '1s'",
		"ALTER SYSTEM SET autovacuum = "+state, "SELECT pg_reload_conf()")
}

// Polling is a running polling relay.
type Polling struct {
	*proc.Process
	log string
}

// StartPolling starts the polling relay.
func (r *Rig) StartPolling(ctx context.Context, topic string) (*Polling, error) {
	path, err := r.Program(ctx, "./bench/polling")
	if err != nil {
		return nil, err
	}
	p := &Polling{log: filepath.Join(r.Dir, topic+".polling.log")}
	p.Process, err = proc.Start(proc.Spec{Path: path, Args: []string{"-dsn", r.DSN(), "-broker", r.Broker.Addr(), "-topic", topic}, Env: cleanEnv(), LogFile: p.log})
	return p, err
}

// WaitPublished waits until no row is unpublished, while the polling relay lives.
func (r *Rig) WaitPublished(ctx context.Context, limit time.Duration, p *Polling) error {
	return Poll(ctx, limit, 200*time.Millisecond, "the polling relay to publish all", func() (bool, error) {
		if !p.Alive() {
			return false, p.Failure()
		}
		n, err := r.Number(ctx, "SELECT count(*) FROM (SELECT FROM outbox_polling WHERE published_at IS NULL LIMIT 1) x")
		return n == 0, err
	})
}

// Failure is an error with the end of the log.
func (p *Polling) Failure() error {
	b, _ := os.ReadFile(p.log)
	return fmt.Errorf("the polling relay ended with %d:\n%s", p.ExitCode(), b[max(0, len(b)-2000):])
}
