// Package catalog owns all ordinary SQL against the source database: what the
// server, the slot, the publication and the outbox tables are, the few commands
// that setup and adopt need, and the classes of PostgreSQL errors. It runs on
// PostgreSQL 13 and newer.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/fault"
)

// MinVersion is the oldest server_version_num that is supported.
const MinVersion = 130000

// MessagesVersion is the oldest one that sends logical messages by pgoutput.
const MessagesVersion = 140000

// closeTimeout bounds the goodbye to a server that may be gone.
const closeTimeout = 2 * time.Second

// startupParams are known to every supported server, and beat what ALTER
// DATABASE and ALTER ROLE set.
var startupParams = map[string]string{
	"client_encoding":                     "UTF8",
	"datestyle":                           "ISO",
	"timezone":                            "UTC",
	"intervalstyle":                       "postgres",
	"bytea_output":                        "hex",
	"extra_float_digits":                  "1",
	"standard_conforming_strings":         "on",
	"search_path":                         "pg_catalog",
	"client_min_messages":                 "warning",
	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
	"default_transaction_read_only":       "off",
	"default_transaction_isolation":       "read committed",
}

// laterParams exist only on newer servers, which an older one would refuse at
// the start: they are set after connecting, where they exist.
const laterParams = `SELECT set_config(name, '0', false) FROM pg_settings
	WHERE name IN ('idle_session_timeout', 'transaction_timeout') AND setting <> '0'`

// Session is one ordinary SQL connection. It is not safe for concurrent use.
type Session struct {
	conn    *pgx.Conn
	version int
}

// SessionConfig returns a copy of cfg for an ordinary session: what the database
// or the role sets does not reach it. applicationName "" keeps what cfg has.
func SessionConfig(cfg *pgx.ConnConfig, applicationName string) *pgx.ConnConfig {
	c := cfg.Copy()
	if c.RuntimeParams == nil {
		c.RuntimeParams = map[string]string{}
	}
	for name, value := range startupParams {
		c.RuntimeParams[name] = value
	}
	// A replication parameter would make this a walsender, which takes no SQL
	// with parameters.
	delete(c.RuntimeParams, "replication")
	if applicationName != "" {
		c.RuntimeParams["application_name"] = applicationName
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	c.StatementCacheCapacity = 0
	c.DescriptionCacheCapacity = 0
	return c
}

// Open connects. cfg is copied, not changed; applicationName is what
// pg_stat_activity shows. Errors are as the driver gives them: see Classify and
// Explain.
func Open(ctx context.Context, cfg *pgx.ConnConfig, applicationName string) (*Session, error) {
	conn, err := pgx.ConnectConfig(ctx, SessionConfig(cfg, applicationName))
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	s := &Session{conn: conn}
	if err := s.prepare(ctx); err != nil {
		s.Close(ctx)
		return nil, err
	}
	return s, nil
}

// prepare learns the version and sets what could not be set at the start.
func (s *Session) prepare(ctx context.Context) error {
	err := s.conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&s.version)
	if err != nil {
		return fmt.Errorf("read server version: %w", err)
	}
	if s.version < MinVersion {
		return fault.Stopped("upgrade the server",
			"the server is PostgreSQL %d, which is too old: 13 is the oldest supported", s.version/10000)
	}
	if _, err := s.conn.Exec(ctx, laterParams); err != nil {
		return fmt.Errorf("turn off session timeouts: %w", err)
	}
	return nil
}

// Close says goodbye to the server, for at most two seconds. Closing twice is
// safe.
func (s *Session) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = s.conn.Close(ctx)
}

// PID returns the process id of the server's backend.
func (s *Session) PID() uint32 { return s.conn.PgConn().PID() }

// Terminate ends another backend of the same role.
func (s *Session) Terminate(ctx context.Context, pid uint32) error {
	if _, err := s.conn.Exec(ctx, `SELECT pg_terminate_backend($1::int)`, int64(pid)); err != nil {
		return fmt.Errorf("end backend %d: %w", pid, err)
	}
	return nil
}

// Cancel has another backend of the same role give up its command.
func (s *Session) Cancel(ctx context.Context, pid uint32) error {
	if _, err := s.conn.Exec(ctx, `SELECT pg_cancel_backend($1::int)`, int64(pid)); err != nil {
		return fmt.Errorf("cancel the command of backend %d: %w", pid, err)
	}
	return nil
}

// VersionNum returns server_version_num as it was at connecting.
func (s *Session) VersionNum() int { return s.version }

// Wait reads from the connection for d, so that a server that is told to stop,
// or a connection that ends, is seen at once. It returns nil when d passed
// quietly and ctx's error when ctx ended; after any other error the session is
// of no use. It does not notice a silent network: queries with a deadline do.
func (s *Session) Wait(ctx context.Context, d time.Duration) error {
	deadline := time.Now().Add(d)
	wctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for {
		err := s.conn.PgConn().WaitForNotification(wctx)
		switch {
		case err == nil:
			continue // a stray notification; nobody listens to any
		case ctx.Err() != nil && pgconn.Timeout(err):
			return ctx.Err()
		case wctx.Err() != nil && pgconn.Timeout(err):
			return nil
		case ctx.Err() != nil && errors.Is(err, context.Canceled):
			return ctx.Err()
		default:
			return fmt.Errorf("watch the server: %w", err)
		}
	}
}

// Exec runs one statement that returns nothing of interest. The caller quotes.
func (s *Session) Exec(ctx context.Context, sql string) error {
	_, err := s.conn.Exec(ctx, sql)
	return err
}

// TryLock takes the advisory lock of the name for the life of the session, and
// returns false when another session holds it.
func (s *Session) TryLock(ctx context.Context, name string) (bool, error) {
	var ok bool
	err := s.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtextextended($1, 0))`, name).Scan(&ok)
	if err != nil {
		return false, fmt.Errorf("take advisory lock %s: %w", name, err)
	}
	return ok, nil
}
