// Package migrations makes the outbox table in its default shape. The files are
// versioned; which of them were applied is kept in a table of our own, so that
// it does not meet the migrations of the application.
package migrations

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/cdc-relay/cdc-relay/catalog"
)

// VersionTable records which files were applied.
const VersionTable = "public.cdc_relay_migrations"

const (
	lockID      = 0x6364632d72656c61 // "cdc-rela"
	lockPeriod  = 1                  // seconds between two attempts to take the lock
	lockRetries = 30
)

//go:embed *.sql
var files embed.FS

// Apply applies the files that were not applied yet, each in a transaction,
// under an advisory lock that keeps others out, and returns their names. Errors
// are as the driver gives them.
func Apply(ctx context.Context, cfg *pgx.ConnConfig, applicationName string) ([]string, error) {
	db := stdlib.OpenDB(*catalog.SessionConfig(cfg, applicationName))
	defer func() { _ = db.Close() }()
	locker, err := lock.NewPostgresSessionLocker(
		lock.WithLockID(lockID), lock.WithLockTimeout(lockPeriod, lockRetries))
	if err != nil {
		return nil, fmt.Errorf("prepare migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(VersionTable), goose.WithSessionLocker(locker),
		goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return nil, fmt.Errorf("prepare migrations: %w", err)
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return nil, fmt.Errorf("apply migrations: %w", err)
	}
	applied := make([]string, 0, len(results))
	for _, r := range results {
		applied = append(applied, r.Source.Path)
	}
	return applied, nil
}

// SQL returns the statements of all files in order, for a person to run.
func SQL() string {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		panic(err) // only a malformed pattern
	}
	var b strings.Builder
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err) // embedded
		}
		_, up, _ := strings.Cut(string(text), "-- +goose Up\n")
		up, _, _ = strings.Cut(up, "-- +goose Down")
		b.WriteString(strings.TrimSpace(up) + "\n")
	}
	return b.String()
}
