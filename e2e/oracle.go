package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Oracle tells what was committed, in commit order, by a second slot with PostgreSQL's own test_decoding: never by the
// relay's decoder. Rolled back work does not appear.
type Oracle struct {
	pg   *PG
	slot string
}

// Insert is one inserted row, or one logical message.
type Insert struct {
	Value  string // of the column or member that was asked for, as text; "null" for NULL
	Xid    string
	TxSeq  int // ordinal of the transaction, from 0, of those that have one
	RowSeq int // ordinal within its transaction, from 0
}

// NewOracle makes the slot: it sees what commits from now on. The slot retains WAL; tests of retention must not use one,
// or Drop it before.
func NewOracle(t testing.TB, pg *PG) *Oracle {
	t.Helper()
	o := &Oracle{pg: pg, slot: fmt.Sprintf("oracle_%d", dbCount.Add(1))}
	pg.Exec(t, "SELECT pg_create_logical_replication_slot('"+o.slot+"', 'test_decoding')")
	return o
}

// Drop drops the slot.
func (o *Oracle) Drop(t testing.TB) {
	t.Helper()
	o.pg.Exec(t, "SELECT pg_drop_replication_slot('"+o.slot+"')")
}

// Inserts takes from the slot what was committed since the last call, and returns the inserts into table (schema.table) in
// commit order with the value of one column.
func (o *Oracle) Inserts(t testing.TB, table, column string) []Insert {
	t.Helper()
	return o.all(t, &oracleDecoder{table: table, column: column})
}

// Events is Inserts with the transactional logical messages of a prefix, whose
// body is JSON on one line, in their places among the rows; the value of one is
// the body's member of that name.
func (o *Oracle) Events(t testing.TB, table, column, prefix string) []Insert {
	t.Helper()
	return o.all(t, &oracleDecoder{table: table, column: column, message: "message: transactional: 1 prefix: " + prefix + ", sz: "})
}

func (o *Oracle) all(t testing.TB, d *oracleDecoder) []Insert {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*Timeout)
	defer cancel()
	c, err := pgx.Connect(ctx, o.pg.DSN())
	if err != nil {
		t.Fatalf("connect to PostgreSQL: %v", err)
	}
	defer c.Close(ctx)
	for {
		n, err := o.take(ctx, c, d)
		if err != nil {
			t.Fatalf("read the oracle's slot: %v", err)
		}
		if n == 0 {
			return d.out
		}
	}
}

// take reads whole transactions of about 100,000 changes, so that a large backlog needs no large result.
func (o *Oracle) take(ctx context.Context, c *pgx.Conn, d *oracleDecoder) (int, error) {
	// Before 16 a transaction with nothing but messages passes for an empty one.
	skip := "1"
	if d.message != "" {
		skip = "0"
	}
	rows, err := c.Query(ctx, "SELECT lsn::text, data FROM pg_logical_slot_get_changes($1, NULL, 100000, 'skip-empty-xacts', $2, 'include-xids', '1')",
		o.slot, skip)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		var at pglogrepl.LSN
		var line string
		if err := rows.Scan(&at, &line); err != nil {
			return 0, err
		}
		if err := d.line(at, line); err != nil {
			return 0, err
		}
		n++
	}
	return n, rows.Err()
}

type oracleDecoder struct {
	table, column string
	message       string // how the line of a message begins; "" for none
	xid           string
	tx            int
	open          []oracleChange // of the transaction in hand
	out           []Insert
}

type oracleChange struct {
	at      pglogrepl.LSN
	message bool
	value   string
}

func (d *oracleDecoder) line(at pglogrepl.LSN, s string) error {
	switch {
	case strings.HasPrefix(s, "BEGIN "):
		d.xid = s[len("BEGIN "):]
	case strings.HasPrefix(s, "COMMIT"):
		d.commit()
	case strings.HasPrefix(s, "table "+d.table+": INSERT:"):
		v, err := testDecodingColumn(s[len("table "+d.table+": INSERT:"):], d.column)
		if err != nil {
			return err
		}
		d.open = append(d.open, oracleChange{at: at, value: v})
	case d.message != "" && strings.HasPrefix(s, d.message):
		_, body, _ := strings.Cut(s, " content:")
		var members map[string]any
		if err := json.Unmarshal([]byte(body), &members); err != nil {
			return fmt.Errorf("the body of a message is no JSON: %w", err)
		}
		d.open = append(d.open, oracleChange{at, true, fmt.Sprint(members[d.column])})
	}
	return nil
}

// commit puts the changes of a transaction into the order of the WAL. A row's
// position is where its record begins, a message's where its record ends, which
// is where the next one begins; so of one position the message was first.
func (d *oracleDecoder) commit() {
	slices.SortStableFunc(d.open, func(a, b oracleChange) int {
		if c := cmp.Compare(a.at, b.at); c != 0 || a.message == b.message {
			return c
		}
		if a.message {
			return -1
		}
		return 1
	})
	for i, c := range d.open {
		d.out = append(d.out, Insert{Value: c.value, Xid: d.xid, TxSeq: d.tx, RowSeq: i})
	}
	if len(d.open) > 0 {
		d.tx++
	}
	d.open = d.open[:0]
}

// testDecodingColumn finds a column's value in ` name[type]:value name[type]:'quoted ”value”' ...`.
func testDecodingColumn(s, column string) (string, error) {
	for s != "" {
		s = strings.TrimPrefix(s, " ")
		name, rest, ok := strings.Cut(s, "[")
		if !ok {
			break
		}
		// A type's name may hold brackets itself: integer[].
		_, rest, ok = strings.Cut(rest, "]:")
		if !ok {
			break
		}
		value, tail := testDecodingValue(rest)
		if strings.Trim(name, `"`) == column {
			return value, nil
		}
		s = tail
	}
	return "", fmt.Errorf("test_decoding shows no column %s", column)
}

func testDecodingValue(s string) (value, rest string) {
	if !strings.HasPrefix(s, "'") && !strings.HasPrefix(s, "B'") {
		value, rest, _ = strings.Cut(s, " ")
		return value, rest
	}
	var b strings.Builder
	i := strings.IndexByte(s, '\'') + 1
	for ; i < len(s); i++ {
		if s[i] != '\'' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == '\'' {
			b.WriteByte('\'')
			i++
			continue
		}
		break
	}
	return b.String(), s[min(i+1, len(s)):]
}
