package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"math/bits"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	maxRows = 64 // of a statement
	sizes   = 7  // 1, 2, 4 ... 64 rows
)

// emit writes a logical message; the types choose the function for text.
const emit = `SELECT pg_logical_emit_message(true, $1::text, $2::text)`

// statements by the logarithm of how many rows they take.
type statements struct {
	insert, keyed, remove [sizes]string
}

func log2(n int) int { return bits.Len(uint(n)) - 1 }

func compile(t Table, columns []string) statements {
	table := pgx.Identifier{t.Schema, t.Name}.Sanitize()
	names := make([]string, len(columns))
	for i, column := range columns {
		names[i] = pgx.Identifier{column}.Sanitize()
	}
	id := names[0]
	var s statements
	for i := range sizes {
		rows := 1 << i
		s.insert[i] = "INSERT INTO " + table + " (" + strings.Join(names, ", ") + ") VALUES " + placeholders(rows, len(names))
		// Not DO UPDATE, which would write the row anew to return it. The id is known.
		s.keyed[i] = s.insert[i] + " ON CONFLICT (" + id + ") DO NOTHING RETURNING " + id + "::text"
		s.remove[i] = "DELETE FROM " + table + " WHERE " + id + " IN " + placeholders(1, rows)
	}
	return s
}

// placeholders returns ($1, $2), ($3, $4).
func placeholders(rows, columns int) string {
	var b strings.Builder
	for i := range rows * columns {
		switch {
		case i == 0:
			b.WriteString("(")
		case i%columns == 0:
			b.WriteString("), (")
		default:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "$%d", i+1)
	}
	b.WriteString(")")
	return b.String()
}

// transaction is what is needed of the caller's: to run statements, and nothing else.
type transaction interface {
	exec(ctx context.Context, sql string, args []any) (rows int64, err error)
	texts(ctx context.Context, sql string, args []any) ([]string, error)
}

type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) exec(ctx context.Context, sql string, args []any) (int64, error) {
	tag, err := t.tx.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) texts(ctx context.Context, sql string, args []any) ([]string, error) {
	rows, err := t.tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) exec(ctx context.Context, sql string, args []any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, sql, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t sqlTx) texts(ctx context.Context, sql string, args []any) ([]string, error) {
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
