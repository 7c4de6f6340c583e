package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrNotYours is what the transaction of a handler answers to Commit and Rollback.
var ErrNotYours = errors.New("the transaction of a record is ended by the runner: return nil to commit, an error to roll back")

var (
	errSwallowed = &failure{reason: "the handler returned nil, although a statement failed in its transaction: return the error, or put a savepoint before what may fail"}
	errEnded     = &failure{reason: "the handler ended its transaction by a statement of its own; the marker may be lost: leave COMMIT and ROLLBACK to the runner"}
)

// session is a transaction that the caller's function has begun, and the handler in
// it. This file alone ends transactions.
type session struct {
	transaction
	handle      func(context.Context, Record) error
	endCommit   func(context.Context) error
	endRollback func(context.Context) error
	lost        func(context.Context) bool // asked after an error, before the rollback: the connection is gone
}

var errLost = errors.New("the connection of its transaction was lost")

// lostConnection is an error of a transaction whose connection went away, which is no
// fault of the record in it. After COMMIT its effect may be there.
type lostConnection struct{ error }

func (e lostConnection) Unwrap() error { return e.error }

type begin func(context.Context) (session, error)

func beginPGX(begin func(context.Context) (pgx.Tx, error), handle func(context.Context, pgx.Tx, Record) error) begin {
	return func(ctx context.Context) (session, error) {
		tx, err := begin(ctx)
		if err != nil {
			return session{}, err
		}
		return session{transaction: pgxTx{tx}, endCommit: tx.Commit, endRollback: tx.Rollback,
			lost: func(context.Context) bool { c := tx.Conn(); return c != nil && c.IsClosed() },
			handle: func(ctx context.Context, r Record) error {
				if err := handle(ctx, lentTx{tx}, r); err != nil {
					return err
				}
				return whole(tx)
			}}, nil
	}
}

func beginSQL(begin func(context.Context) (*sql.Tx, error), handle func(context.Context, *sql.Tx, Record) error) begin {
	return func(ctx context.Context) (session, error) {
		tx, err := begin(ctx)
		if err != nil {
			return session{}, err
		}
		return session{transaction: sqlTx{tx},
			endCommit: func(ctx context.Context) error {
				// Outside of a transaction COMMIT succeeds, and this fails.
				if _, err := tx.ExecContext(ctx, "SAVEPOINT inbox_end"); err != nil {
					return err
				}
				return tx.Commit()
			},
			endRollback: func(context.Context) error { return tx.Rollback() },
			lost: func(ctx context.Context) bool {
				_, err := tx.ExecContext(ctx, "SELECT 1")
				return err != nil && !answered(err)
			},
			handle: func(ctx context.Context, r Record) error { return handle(ctx, tx, r) }}, nil
	}
}

// within runs do in a transaction of its own, and commits it if do returns nil. After
// an error of the commit it may have happened.
func (b begin) within(ctx context.Context, do func(s session) error) error {
	s, err := b(ctx)
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	if err := do(s); err != nil {
		if ctx.Err() == nil && s.lost(ctx) { // at a deadline the driver closes it itself
			err = lostConnection{err}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortDeadline)
		defer cancel()
		_ = s.endRollback(ctx) // a connection that is gone has rolled back
		return err
	}
	if err := s.endCommit(ctx); err != nil {
		err = fmt.Errorf("commit: %w", err)
		if ctx.Err() == nil && !answered(err) {
			err = lostConnection{err}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortDeadline)
		defer cancel()
		_ = s.endRollback(ctx) // of a transaction that was not sent COMMIT; what it says otherwise tells nothing
		return err
	}
	return nil
}

// answered tells an error that PostgreSQL gave, or that a driver read from its answer to
// COMMIT, from one of a connection. The server's own farewells count as the latter.
func answered(err error) bool {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		state := e.SQLState()
		return len(state) == 5 && state[:2] != "08" && state[:3] != "57P"
	}
	return errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, ErrNotYours) || errors.Is(err, sql.ErrTxDone)
}

// whole tells that the transaction is still the one in which the marker is. The driver
// has heard it with the last answer, so it costs nothing.
func whole(tx pgx.Tx) error {
	conn := tx.Conn()
	if conn == nil {
		return nil
	}
	switch conn.PgConn().TxStatus() {
	case 'E':
		return errSwallowed
	case 'I':
		return errEnded
	}
	return nil
}

// lentTx may do everything but end the transaction.
type lentTx struct{ pgx.Tx }

func (lentTx) Commit(context.Context) error   { return ErrNotYours }
func (lentTx) Rollback(context.Context) error { return ErrNotYours }
