package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

const (
	maxText       = 1000 // bytes of a consumer's name or an id; an index entry has a limit
	abortDeadline = 5 * time.Second

	claimOne = "INSERT INTO public.inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING event_id"

	// abort fails, and takes the transaction with it: whatever is called afterwards, COMMIT
	// too, ends in a rollback.
	abort = "DO $$ BEGIN RAISE EXCEPTION 'inbox: the effect of an event failed; its transaction must be rolled back'; END $$"
)

var (
	// ErrName is for a consumer or an id that cannot be stored. The database was not
	// touched.
	ErrName = errors.New("a consumer and an id have 1 to 1000 bytes of UTF-8 without zero bytes")
	// ErrNotAborted is for a transaction that took the abort of a failed effect without an
	// error, as no PostgreSQL does. Roll back: a commit would lose the effect for ever.
	ErrNotAborted = errors.New("the transaction could not be aborted, and must be rolled back: committing it would lose the effect")
)

// Once runs fn if the event is new to the consumer. The marker, a row of public.inbox,
// is written in the caller's transaction; fn must make its effect in the same one.
//
// first tells that fn ran; it is false for an event that was processed before, which
// is no error: commit, and acknowledge the record. While another open transaction has
// the marker, Once waits: if that one commits, the event is a duplicate; if it rolls
// back, fn runs here. Bound the wait by ctx or lock_timeout.
//
// When fn returns an error or panics, Once aborts the transaction: every later
// statement in it fails, and Commit returns an error and rolls back, so that the
// marker cannot be kept without its effect. Where Once ran behind a savepoint, and the
// caller goes back to it, the marker goes too. The caller still has to roll back.
func Once(ctx context.Context, tx pgx.Tx, consumer, id string, fn func(context.Context) error) (first bool, err error) {
	return once(ctx, pgxTx{tx}, consumer, id, fn)
}

// OnceSQL is Once for database/sql with any driver of PostgreSQL.
func OnceSQL(ctx context.Context, tx *sql.Tx, consumer, id string, fn func(context.Context) error) (first bool, err error) {
	return once(ctx, sqlTx{tx}, consumer, id, fn)
}

func once(ctx context.Context, tx transaction, consumer, id string, fn func(context.Context) error) (bool, error) {
	if !isName(consumer) || !isName(id) {
		return false, fmt.Errorf("mark an event as processed: %w", ErrName)
	}
	marked, err := tx.texts(ctx, claimOne, consumer, id)
	if err != nil {
		return false, fmt.Errorf("mark event %s as processed by %s: %w", id, consumer, err)
	}
	if len(marked) == 0 {
		return false, nil
	}
	done := false
	defer func() { // also when fn panics, or ends its goroutine
		if !done {
			_ = aborted(ctx, tx)
		}
	}()
	if err := fn(ctx); err != nil {
		done = true
		return false, errors.Join(err, aborted(ctx, tx))
	}
	done = true
	return true, nil
}

// aborted aborts the transaction, also when ctx has ended.
func aborted(ctx context.Context, tx transaction) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortDeadline)
	defer cancel()
	if _, err := tx.exec(ctx, abort); err == nil {
		return ErrNotAborted
	}
	return nil // by the statement, by an earlier error, or with its connection
}

func isName(s string) bool {
	return s != "" && len(s) <= maxText && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// transaction is what the package needs of one: to run statements, and nothing else.
type transaction interface {
	exec(ctx context.Context, sql string, args ...any) (rows int64, err error)
	texts(ctx context.Context, sql string, args ...any) ([]string, error)
}

type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) texts(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := t.tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, sql, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t sqlTx) texts(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := t.tx.QueryContext(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var texts []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, rows.Err()
}
