package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/spf13/pflag"

	"github.com/cdc-relay/cdc-relay/broker"
	"github.com/cdc-relay/cdc-relay/inbox"
)

const connectionHelp = `Where database and brokers are is told by flags or the environment. No secret is taken
from the command line: a password comes from DATABASE_URL, DATABASE_PASSWORD_FILE, PGPASSFILE,
KAFKA_SASL_PASSWORD or KAFKA_SASL_PASSWORD_FILE.`

const (
	connectTime = 15 * time.Second
	appName     = "cdc-inbox"
)

// connection says where database and brokers are.
type connection struct {
	database     string // without a password when it came by a flag
	passwordFile string
	brokers      string
	tls          broker.TLS
	sasl         broker.SASL
	fromEnv      string // DATABASE_URL
}

func (c *connection) flags(f *pflag.FlagSet, env func(string) string) {
	c.fromEnv = env("DATABASE_URL")
	c.sasl.Password = env("KAFKA_SASL_PASSWORD")
	text := func(p *string, flag, name, usage string) {
		// Not as the default of the flag, which help would print.
		*p = env(name)
		f.Var(&textFlag{p}, flag, usage+" ($"+name+")")
	}
	f.StringVar(&c.database, "database", "", "where the database is, without a password, as postgres://user@host:5432/db; else $DATABASE_URL, else the PG* variables")
	text(&c.passwordFile, "database-password-file", "DATABASE_PASSWORD_FILE", "file with the password of the database")
	text(&c.brokers, "brokers", "BROKERS", "brokers, as host:port, separated by commas")
	on := strings.ToLower(env("KAFKA_TLS"))
	c.tls.Enabled = on == "true" || on == "1"
	f.BoolVar(&c.tls.Enabled, "tls", c.tls.Enabled, "use TLS to the brokers ($KAFKA_TLS)")
	text(&c.tls.CAFile, "tls-ca-file", "KAFKA_TLS_CA_FILE", "file with the authorities to trust; the system's without it")
	text(&c.tls.CertFile, "tls-cert-file", "KAFKA_TLS_CERT_FILE", "file with the client certificate")
	text(&c.tls.KeyFile, "tls-key-file", "KAFKA_TLS_KEY_FILE", "file with the client key")
	text(&c.tls.ServerName, "tls-server-name", "KAFKA_TLS_SERVER_NAME", "name to verify in the brokers' certificates; the host without it")
	text(&c.sasl.Mechanism, "sasl-mechanism", "KAFKA_SASL_MECHANISM", "plain, scram-sha-256 or scram-sha-512; no SASL without it")
	text(&c.sasl.Username, "sasl-username", "KAFKA_SASL_USERNAME", "user name for SASL")
	text(&c.sasl.PasswordFile, "sasl-password-file", "KAFKA_SASL_PASSWORD_FILE", "file with the password for SASL")
}

type textFlag struct{ p *string }

func (t *textFlag) String() string     { return "" }
func (t *textFlag) Set(s string) error { *t.p = s; return nil }
func (t *textFlag) Type() string       { return "string" }

// postgres returns the settings. Errors show no part of the connection string.
func (c connection) postgres() (*pgx.ConnConfig, error) {
	target := c.database
	if target == "" {
		target = c.fromEnv
	} else if holdsPassword(target) {
		return nil, usagef("--database holds a password, which everybody on this machine can read in the list of processes: use DATABASE_URL or --database-password-file")
	}
	cfg, err := pgx.ParseConfig(target)
	var path *os.PathError
	switch {
	case errors.As(err, &path):
		return nil, usagef("read the settings of the database: %w", path)
	case err != nil:
		return nil, usagef("DATABASE_URL or --database is no valid connection string, as postgres://user@host:5432/database; special characters in user and password must be percent-encoded")
	case cfg.Database == "":
		return nil, usagef("no database is named: set DATABASE_URL, --database or PGDATABASE")
	}
	if c.passwordFile != "" {
		b, err := os.ReadFile(c.passwordFile)
		if err != nil {
			return nil, usagef("read the password of the database: %w", err)
		}
		cfg.Password = strings.TrimRight(string(b), "\r\n")
	}
	cfg.RuntimeParams["application_name"] = appName
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTime
	}
	return cfg, nil
}

func holdsPassword(target string) bool {
	if u, err := url.Parse(target); err == nil && u.Scheme != "" {
		_, has := u.User.Password()
		return has || u.Query().Has("password")
	}
	return strings.Contains(strings.ToLower(target), "password")
}

// kafka returns brokers, TLS and SASL.
func (c connection) kafka() (brokers []string, tc *tls.Config, m sasl.Mechanism, err error) {
	for _, b := range strings.Split(c.brokers, ",") {
		if b = strings.TrimSpace(b); b != "" {
			brokers = append(brokers, b)
		}
	}
	if len(brokers) == 0 {
		return nil, nil, nil, usagef("no brokers are named: set BROKERS or --brokers")
	}
	if c.tls.Enabled {
		if tc, err = c.tls.Load(); err != nil {
			return nil, nil, nil, &usageError{err}
		}
	} else if c.tls != (broker.TLS{}) {
		return nil, nil, nil, usagef("files or a name for TLS are given, but TLS is not switched on: give --tls, or KAFKA_TLS=true")
	}
	if c.sasl.Mechanism != "" {
		if m, err = c.sasl.Load(); err != nil {
			return nil, nil, nil, &usageError{err}
		}
	}
	return brokers, tc, m, nil
}

// letters connects. needKafka is false for what works on the tables alone.
func (a *app) letters(ctx context.Context, needKafka bool) (*inbox.DeadLetters, func(), error) {
	cfg, err := a.conn.postgres()
	if err != nil {
		return nil, nil, err
	}
	brokers, tc, m, err := a.conn.kafka()
	if err != nil && needKafka {
		return nil, nil, err
	}
	db, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the database: %w", err)
	}
	d := inbox.DeadLettersForPGX(db.Begin, brokers, tc, m)
	return d, func() {
		d.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTime)
		defer cancel()
		_ = db.Close(ctx)
	}, nil
}
