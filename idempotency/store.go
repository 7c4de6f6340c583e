package idempotency

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// lent is a transaction of a request: tx for the handler, and what the middleware
// itself does with it.
type lent[Tx any] struct {
	tx    Tx
	store store
}

// store runs the statements of the middleware.
type store interface {
	exec(ctx context.Context, sql string, args ...any) (rows int64, err error)
	// row reads the only row; false when there is none.
	row(ctx context.Context, sql string, args []any, dest ...any) (bool, error)
	commit(ctx context.Context) error
	rollback(ctx context.Context) error
}

// savepoint is where the writes of a handler begin.
const (
	setSavepoint = "SAVEPOINT idempotency_handler"
	toSavepoint  = "ROLLBACK TO SAVEPOINT idempotency_handler"
	tryLock      = "SELECT pg_try_advisory_xact_lock($1::bigint)"
)

type statements struct {
	table                        string
	claim, find, answer, cleanup string
}

func compile(schema, name string) statements {
	t := pgx.Identifier{schema, name}.Sanitize()
	const this = " WHERE client = $1 AND route = $2 AND key = $3"
	return statements{
		table: t,
		// 1 row: the key is new, or its expired row was taken over. 0: it came before.
		claim: "INSERT INTO " + t + " AS k (client, route, key, fingerprint, expires_at) VALUES ($1, $2, $3, $4, now() + $5::float8 * interval '1 second')" +
			" ON CONFLICT (client, route, key) DO UPDATE SET fingerprint = EXCLUDED.fingerprint, status = NULL, headers = NULL, body = NULL," +
			" created_at = EXCLUDED.created_at, expires_at = EXCLUDED.expires_at WHERE k.expires_at <= now()",
		find:   "SELECT fingerprint, status, headers, body FROM " + t + this + " AND expires_at > now()",
		answer: "UPDATE " + t + " SET status = $4, headers = $5, body = $6" + this,
		cleanup: "DELETE FROM " + t + " WHERE ctid = ANY (ARRAY(SELECT ctid FROM " + t +
			" WHERE expires_at <= now() ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))",
	}
}

// owner of a key.
type owner struct{ client, route, key string }

func (o owner) args(more ...any) []any { return append([]any{o.client, o.route, o.key}, more...) }

// lock is the advisory lock of a key. Two keys with the same one keep each other out,
// and nothing worse.
func (o owner) lock(table string) int64 {
	return int64(binary.BigEndian.Uint64(digest(table, o.client, o.route, o.key)))
}

// row of a key.
type row struct {
	fingerprint []byte
	status      *int
	headers     *string
	body        []byte
}

func (s statements) read(ctx context.Context, db store, o owner) (r row, found bool, err error) {
	found, err = db.row(ctx, s.find, o.args(), &r.fingerprint, &r.status, &r.headers, &r.body)
	return r, found, err
}

// Cleanup deletes at most limit expired keys in the caller's transaction, and returns
// how many. Keys that are in use are left for another time.
func (k *Keys[Tx]) Cleanup(ctx context.Context, tx Tx, limit int) (deleted int64, err error) {
	deleted, err = k.lend(tx).store.exec(ctx, k.sql.cleanup, limit)
	if err != nil {
		return 0, fmt.Errorf("delete expired idempotency keys of %s: %w", k.sql.table, err)
	}
	return deleted, nil
}

// lentTx is what a handler gets: it may do everything but end the transaction.
type lentTx struct{ pgx.Tx }

func (lentTx) Commit(context.Context) error   { return ErrNotYours }
func (lentTx) Rollback(context.Context) error { return ErrNotYours }

type pgxStore struct{ tx pgx.Tx }

func (s pgxStore) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tag, err := s.tx.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

func (s pgxStore) row(ctx context.Context, sql string, args []any, dest ...any) (bool, error) {
	err := s.tx.QueryRow(ctx, sql, args...).Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (s pgxStore) commit(ctx context.Context) error   { return s.tx.Commit(ctx) }
func (s pgxStore) rollback(ctx context.Context) error { return s.tx.Rollback(ctx) }

type sqlStore struct{ tx *sql.Tx }

func (s sqlStore) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	result, err := s.tx.ExecContext(ctx, sql, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (s sqlStore) row(ctx context.Context, query string, args []any, dest ...any) (bool, error) {
	err := s.tx.QueryRowContext(ctx, query, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (s sqlStore) commit(context.Context) error   { return s.tx.Commit() }
func (s sqlStore) rollback(context.Context) error { return s.tx.Rollback() }

// ended tells that the transaction was ended by somebody else: by a method, or by a
// statement, behind which there is none (25P01).
func ended(err error) bool {
	return errors.Is(err, sql.ErrTxDone) || errors.Is(err, pgx.ErrTxClosed) || sqlState(err) == "25P01"
}

// sqlState returns the SQLSTATE of an error of any driver; "" for none.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// passes tells errors of the server that another attempt may not meet: a transaction
// that was rolled back for another's sake, and a server that is short of something,
// stops or has lost the connection.
func passes(err error) bool {
	state := sqlState(err)
	if len(state) != 5 {
		return false
	}
	switch state[:2] {
	case "08", "40", "53", "55", "57", "58":
		return true
	}
	return false
}

// refused tells errors with which the server has certainly not committed, and will not
// the next time either.
func refused(err error) bool { return sqlState(err) != "" && !passes(err) }
