package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Select says which rows of a table to read, and in which order.
type Select struct {
	Table       TableName
	Partitioned bool // rows of the partitions are the table's; of other children they are not
	Columns     []string
	Where       string // an SQL expression; "" : every row
	RowFilter   string // of the publication; "" : none
	Except      []Address
	OrderBy     []string
}

// SQL is the statement. An expression is put in parentheses, with a line's end
// behind it that closes a comment.
func (q Select) SQL() string {
	return "SELECT " + identList(q.Columns) + q.from() + " ORDER BY " + identList(q.OrderBy)
}

func (q Select) from() string {
	var b strings.Builder
	b.WriteString(" FROM ")
	if !q.Partitioned {
		b.WriteString("ONLY ")
	}
	b.WriteString(q.Table.SQL())
	word := " WHERE ("
	except := ""
	if len(q.Except) > 0 {
		except = "NOT " + among(q.Except)
	}
	for _, condition := range []string{q.Where, q.RowFilter, except} {
		if condition != "" {
			b.WriteString(word + condition + "\n)")
			word = " AND ("
		}
	}
	return b.String()
}

func identList(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = Ident(name)
	}
	return strings.Join(quoted, ", ")
}

// Reader reads rows in one read-only transaction, as the replication stream prints
// them: in text form, with the same settings. Unlike in a Session the search path
// is the role's, by which the stream prints a regclass, too, and in which the
// names of an expression are looked up. It is used by one goroutine.
type Reader struct {
	pg *pgconn.PgConn
}

// readerConfig is that of a Session, but for the search path. Where row-level
// security would leave rows out in silence, it makes the statement fail.
func readerConfig(cfg *pgx.ConnConfig, applicationName string, maxRow int64) *pgconn.Config {
	c := &SessionConfig(cfg, applicationName).Config
	delete(c.RuntimeParams, "search_path")
	delete(c.RuntimeParams, "options") // could set what is forced
	c.RuntimeParams["row_security"] = "off"
	c.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		f := pgproto3.NewFrontend(r, w)
		f.SetMaxBodyLen(int(maxRow))
		return f
	}
	return c
}

// OpenReader connects. A row larger than maxRow bytes is an error, and not read.
func OpenReader(ctx context.Context, cfg *pgx.ConnConfig, applicationName string, maxRow int64) (*Reader, error) {
	pg, err := pgconn.ConnectConfig(ctx, readerConfig(cfg, applicationName, maxRow))
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	r := &Reader{pg: pg}
	const later = `SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings
		WHERE name IN ('idle_session_timeout', 'transaction_timeout') AND setting <> '0'`
	if err := r.exec(ctx, later); err != nil {
		r.Close(ctx)
		return nil, fmt.Errorf("turn off session timeouts: %w", err)
	}
	return r, nil
}

// Close ends transaction and connection, within two seconds. Closing twice is
// safe.
func (r *Reader) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = r.pg.Close(ctx)
}

// exec runs one statement, in the extended protocol, which takes no second one
// behind a semicolon.
func (r *Reader) exec(ctx context.Context, sql string) error {
	_, err := r.pg.ExecParams(ctx, sql, nil, nil, nil, nil).Close()
	return err
}

// Begin begins the read-only transaction; snapshot "" takes one of its own, of now.
func (r *Reader) Begin(ctx context.Context, snapshot string) error {
	if err := r.exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return fmt.Errorf("begin to read: %w", err)
	}
	if snapshot == "" {
		if err := r.exec(ctx, "SELECT pg_catalog.pg_current_snapshot()"); err != nil { // the first query takes it
			return fmt.Errorf("take a snapshot: %w", err)
		}
		return nil
	}
	if err := r.exec(ctx, "SET TRANSACTION SNAPSHOT "+Literal(snapshot)); err != nil {
		return fmt.Errorf("import snapshot %s: %w", snapshot, err)
	}
	return nil
}

// Rollback ends the transaction.
func (r *Reader) Rollback(ctx context.Context) error { return r.exec(ctx, "ROLLBACK") }

// ResultColumn is a column of a result. A domain comes with its base type.
type ResultColumn struct {
	Name    string
	TypeOID uint32
	TypeMod int32
}

// Describe returns the columns of q, and reads no row: it fails where reading
// would, for a name, a type or a privilege.
func (r *Reader) Describe(ctx context.Context, q Select) ([]ResultColumn, error) {
	res := r.pg.ExecParams(ctx, q.SQL()+" LIMIT 0", nil, nil, nil, nil)
	var columns []ResultColumn
	for _, f := range res.FieldDescriptions() {
		columns = append(columns, ResultColumn{Name: f.Name, TypeOID: f.DataTypeOID, TypeMod: f.TypeModifier})
	}
	if _, err := res.Close(); err != nil {
		return nil, fmt.Errorf("read table %s: %w", q.Table, err)
	}
	return columns, nil
}

// Count returns how many rows q has.
func (r *Reader) Count(ctx context.Context, q Select) (int64, error) {
	res := r.pg.ExecParams(ctx, "SELECT pg_catalog.count(*)"+q.from(), nil, nil, nil, nil).Read()
	if res.Err != nil {
		return 0, fmt.Errorf("count the rows of table %s: %w", q.Table, res.Err)
	}
	if len(res.Rows) != 1 || len(res.Rows[0]) != 1 {
		return 0, fmt.Errorf("count the rows of table %s: no answer", q.Table)
	}
	return strconv.ParseInt(string(res.Rows[0][0]), 10, 64)
}

// Declare opens the cursor that Fetch reads; one at a time.
func (r *Reader) Declare(ctx context.Context, q Select) error {
	// All rows are read, so the plan that is fast to begin is not the best one.
	if err := r.exec(ctx, "SET LOCAL cursor_tuple_fraction = 1"); err != nil {
		return fmt.Errorf("read table %s: %w", q.Table, err)
	}
	if err := r.exec(ctx, "DECLARE backfill NO SCROLL CURSOR FOR "+q.SQL()); err != nil {
		return fmt.Errorf("read table %s: %w", q.Table, err)
	}
	return nil
}

// Fetch reads at most n rows, and calls each with the values of one after the
// other: nil is NULL, and what it points to is valid during the call. It returns
// how many there were. After an error the reader can only be closed.
func (r *Reader) Fetch(ctx context.Context, n int, each func(values [][]byte) error) (int, error) {
	res := r.pg.ExecParams(ctx, fmt.Sprintf("FETCH FORWARD %d FROM backfill", n), nil, nil, nil, nil)
	rows := 0
	for res.NextRow() {
		if err := each(res.Values()); err != nil {
			return rows, err
		}
		rows++
	}
	if _, err := res.Close(); err != nil {
		return rows, fmt.Errorf("read rows: %w", err)
	}
	return rows, nil
}

// CloseCursor lets the next one be declared.
func (r *Reader) CloseCursor(ctx context.Context) error { return r.exec(ctx, "CLOSE backfill") }

// IsTooLarge tells whether a row was larger than the limit of the reader.
func IsTooLarge(err error) bool {
	var tooLarge *pgproto3.ExceededMaxBodyLenErr
	return errors.As(err, &tooLarge)
}
