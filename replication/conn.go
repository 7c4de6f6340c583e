// Package replication owns the walsender connection: frames, keepalives and
// standby status of a logical replication stream. It confirms only what it is
// told to, and keeps the connection alive while its reader waits for something
// else.
package replication

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/fault"
)

// Config of a connection.
type Config struct {
	// Postgres is the connection's settings; it is copied.
	Postgres        *pgconn.Config
	ApplicationName string
	// RuntimeParams are startup parameters beside the forced ones. A
	// wal_sender_timeout here should be less than 3/2 of SilenceTimeout; it is
	// SilenceTimeout when it is not given.
	RuntimeParams map[string]string
	// StatusInterval is how often a status goes out when nothing else asks for one.
	StatusInterval time.Duration
	// SilenceTimeout is after how long without a byte from the server the
	// connection is given up. The server is asked for a sign of life four times
	// as often.
	SilenceTimeout time.Duration
	// MaxMessageBytes is the largest message that is read into memory.
	MaxMessageBytes int64
	// MessagePrefix asks for logical messages too (PostgreSQL 14 and newer), "" for
	// none. The server sends those of every prefix; one with another prefix is passed
	// over unread when it is larger than MaxMessageBytes.
	MessagePrefix string
	// CoalesceReads lets a busy stream be read in few large pieces, where the server
	// is near enough for that to help.
	CoalesceReads bool
	// Naps counts the pauses between such reads; may be nil.
	Naps *atomic.Uint64
	// BeforeRead is called from Next before each read from the connection, when all
	// that was read before has been returned; may be nil.
	BeforeRead func()
	// OnNotice is called from Next for each notice of the server; may be nil.
	OnNotice func(*pgconn.Notice)
}

// forced are the settings that decide how values are printed, so that no ALTER
// DATABASE or ALTER ROLE changes the bytes; and the time-outs that could end a
// long decode. Only what PostgreSQL 13 knows: a server refuses a connection
// with an unknown one.
var forced = map[string]string{
	"replication":                         "database",
	"client_encoding":                     "UTF8",
	"datestyle":                           "ISO",
	"timezone":                            "UTC",
	"bytea_output":                        "hex",
	"intervalstyle":                       "postgres",
	"extra_float_digits":                  "1",
	"client_min_messages":                 "warning", // PostgreSQL 18 tells of a missing publication only by a warning
	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
}

// laterTimeouts turns off the time-outs that only newer servers know, once
// connected. PostgreSQL 17 ends a walsender in which decoding one transaction
// takes longer than transaction_timeout: it would begin again for ever.
const laterTimeouts = `SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings ` +
	`WHERE name IN ('idle_session_timeout', 'transaction_timeout') AND setting <> '0'`

// Conn is a replication connection that does not stream yet. It is used by one
// goroutine.
type Conn struct {
	cfg    Config
	pg     *pgconn.PgConn
	frames *frameReader
}

// Connect opens a replication connection to cfg's database.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	if cfg.Naps == nil {
		cfg.Naps = new(atomic.Uint64)
	}
	c := &Conn{cfg: cfg}
	pc := cfg.Postgres.Copy()
	pc.RuntimeParams = maps.Clone(pc.RuntimeParams)
	if pc.RuntimeParams == nil {
		pc.RuntimeParams = map[string]string{}
	}
	delete(pc.RuntimeParams, "options") // could set what is forced below
	// While a server decodes a large transaction that is not published, it looks for
	// what its client says only every half of wal_sender_timeout (walsender.c,
	// WalSndUpdateProgress): longer than SilenceTimeout, it would be given up, and
	// begin again, for ever.
	pc.RuntimeParams["wal_sender_timeout"] = fmt.Sprintf("%dms", max(cfg.SilenceTimeout.Milliseconds(), 1))
	maps.Copy(pc.RuntimeParams, cfg.RuntimeParams)
	maps.DeleteFunc(pc.RuntimeParams, func(name, _ string) bool {
		name = strings.ToLower(name) // the server takes TimeZone for timezone, and the last one of the two
		_, ok := forced[name]
		return ok || name == "application_name"
	})
	maps.Copy(pc.RuntimeParams, forced)
	pc.RuntimeParams["application_name"] = cfg.ApplicationName
	pc.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if cfg.OnNotice != nil {
			cfg.OnNotice(n)
		}
	}
	pc.DialFunc = dial(cfg.SilenceTimeout)
	pc.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		c.frames = newFrameReader(r)
		return pgproto3.NewFrontend(c.frames, w)
	}
	pg, err := pgconn.ConnectConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open a replication connection: %w", err)
	}
	c.pg = pg
	if _, err := pg.Exec(ctx, laterTimeouts).ReadAll(); err != nil {
		c.Close()
		return nil, fmt.Errorf("turn off the session's time-outs: %w", err)
	}
	return c, nil
}

// System is what the server says of itself on this connection.
type System struct {
	ID       string // system identifier, decimal
	Timeline int32
	XLogPos  pglogrepl.LSN
	Database string
}

// Identify asks the server which cluster and timeline it is.
func (c *Conn) Identify(ctx context.Context) (System, error) {
	r, err := pglogrepl.IdentifySystem(ctx, c.pg)
	if err != nil {
		return System{}, fmt.Errorf("identify the server: %w", err)
	}
	return System{ID: r.SystemID, Timeline: r.Timeline, XLogPos: r.XLogPos, Database: r.DBName}, nil
}

// PID is the walsender's process id.
func (c *Conn) PID() uint32 { return c.pg.PID() }

// CopySlot makes a temporary slot, which ends with this connection, where another
// slot stands, and returns that position: nothing before it can be streamed. The
// other slot may be in use, and stays as it is.
func (c *Conn) CopySlot(ctx context.Context, from, to string) (pglogrepl.LSN, error) {
	sql := "SELECT lsn FROM pg_catalog.pg_copy_logical_replication_slot(" + quoteLiteral(from) + ", " + quoteLiteral(to) + ", true)"
	results, err := c.pg.Exec(ctx, sql).ReadAll()
	if err != nil {
		return 0, fmt.Errorf("copy slot %q to the temporary slot %q: %w", from, to, err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return 0, fmt.Errorf("copy slot %q to the temporary slot %q: the server answered with %d results", from, to, len(results))
	}
	lsn, err := pglogrepl.ParseLSN(string(results[0].Rows[0][0]))
	if err != nil {
		return 0, fmt.Errorf("copy slot %q to the temporary slot %q: position %q: %w", from, to, results[0].Rows[0][0], err)
	}
	return lsn, nil
}

// CopySlotFor makes a slot that stays, where another one stands. A copy is never a
// failover slot; on PostgreSQL 17 and newer it is made one where that is asked for.
func (c *Conn) CopySlotFor(ctx context.Context, from, to string, failover bool) error {
	sql := "SELECT pg_catalog.pg_copy_logical_replication_slot(" + quoteLiteral(from) + ", " + quoteLiteral(to) + ", false)"
	if _, err := c.pg.Exec(ctx, sql).ReadAll(); err != nil {
		return fmt.Errorf("copy slot %q to %q: %w", from, to, err)
	}
	if !failover || !failoverKnown(c.pg.ParameterStatus("server_version")) {
		return nil
	}
	if _, err := c.pg.Exec(ctx, "ALTER_REPLICATION_SLOT "+quoteIdent(to)+" (FAILOVER true)").ReadAll(); err != nil {
		return fmt.Errorf("make %q a failover slot: %w", to, err)
	}
	return nil
}

// failoverKnown tells a server that has failover slots.
func failoverKnown(version string) bool {
	major, err := strconv.Atoi(leadingDigits(version))
	return err == nil && major >= 17
}

// AdvanceSlot moves a slot forward without decoding what lies between.
func (c *Conn) AdvanceSlot(ctx context.Context, slot string, to pglogrepl.LSN) error {
	sql := "SELECT pg_catalog.pg_replication_slot_advance(" + quoteLiteral(slot) + ", " + quoteLiteral(to.String()) + ")"
	if _, err := c.pg.Exec(ctx, sql).ReadAll(); err != nil {
		return fmt.Errorf("advance slot %q to %s: %w", slot, to, err)
	}
	return nil
}

// Start begins to stream slot's publication at lsn, or at the slot's confirmed
// LSN where that is higher. The Stream owns the connection from then on, also
// when Start fails.
func (c *Conn) Start(ctx context.Context, slot, publication string, lsn pglogrepl.LSN) (*Stream, error) {
	if lsn == 0 {
		c.Close()
		return nil, fault.Stopped("", "start streaming slot %q: the position to start at is not known", slot)
	}
	if conn := coalesced(c.pg.Conn()); conn != nil && c.cfg.CoalesceReads {
		conn.coalesce(&c.frames.messages, c.cfg.Naps)
	}
	opts := pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'",
		"publication_names " + quoteLiteral(quoteIdent(publication)),
	}}
	if c.cfg.MessagePrefix != "" {
		opts.PluginArgs = append(opts.PluginArgs, "messages 'true'")
	}
	if err := pglogrepl.StartReplication(ctx, c.pg, quoteIdent(slot), lsn, opts); err != nil {
		c.Close()
		return nil, fmt.Errorf("start streaming slot %q: %w", slot, err)
	}
	return newStream(c, lsn), nil
}

// Close ends the connection without a word about positions. Closing twice is
// safe.
func (c *Conn) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.pg.Close(ctx)
}

// quoteIdent quotes an identifier as the replication grammar and the list of
// publication names read it.
func quoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// quoteLiteral quotes a string for the replication grammar, which knows no
// escapes but the doubled quote.
func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
