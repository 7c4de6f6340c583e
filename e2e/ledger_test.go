package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// ledger writes rows over one session and keeps what each was when it was
// written, in the order of the commits.
type ledger struct {
	t       testing.TB
	conn    *pgx.Conn
	prefix  string
	n       int
	payload string // expression for what a record's value is
	want    []string
}

func newLedger(t testing.TB, pg *e2e.PG, prefix string) *ledger {
	t.Helper()
	return &ledger{t: t, conn: pg.Conn(t), prefix: prefix, payload: "payload::text"}
}

func (l *ledger) exec(statements ...string) {
	l.t.Helper()
	for _, q := range statements {
		if _, err := l.conn.Exec(context.Background(), q); err != nil {
			l.t.Fatalf("%s: %v", q, err)
		}
	}
}

// put inserts a row: columns and their values as SQL, beside id and aggregateid.
func (l *ledger) put(columns, values string) {
	l.t.Helper()
	l.into("outbox", columns, values)
}

func (l *ledger) into(table, columns, values string) {
	l.t.Helper()
	l.n++
	id := fmt.Sprintf("%s-%03d", l.prefix, l.n)
	var key, value *string
	q := fmt.Sprintf("INSERT INTO %s (id, aggregateid, %s) VALUES ('%s', '%d', %s) RETURNING aggregateid::text, %s",
		table, columns, id, l.n%5, values, l.payload)
	if err := l.conn.QueryRow(context.Background(), q).Scan(&key, &value); err != nil {
		l.t.Fatalf("%s: %v", q, err)
	}
	l.want = append(l.want, rowText(id, key, value))
}

func rowText(id string, key, value *string) string {
	text := func(s *string) string {
		if s == nil {
			return "null"
		}
		return *s
	}
	return id + "|" + text(key) + "|" + text(value)
}

// undo forgets the last n rows, which were rolled back.
func (l *ledger) undo(n int) { l.want = l.want[:len(l.want)-n] }

// check compares the records of this ledger's rows with it, and returns how many
// rows are wrong. Repetitions are wrong as well.
func (l *ledger) check(records []e2e.Record) int {
	l.t.Helper()
	var got []string
	for _, rec := range records {
		id, _ := rec.Header("id")
		if !strings.HasPrefix(id, l.prefix+"-") {
			continue
		}
		text := func(b []byte) *string {
			if b == nil {
				return nil
			}
			s := string(b)
			return &s
		}
		got = append(got, rowText(id, text(rec.Key), text(rec.Value)))
	}
	wrong := 0
	for i := range max(len(got), len(l.want)) {
		switch {
		case i >= len(got):
			l.t.Errorf("row %s is missing", l.want[i])
		case i >= len(l.want):
			l.t.Errorf("record %s is too many", got[i])
		case got[i] != l.want[i]:
			l.t.Errorf("record %d is %s, want %s", i, got[i], l.want[i])
		default:
			continue
		}
		if wrong++; wrong == 5 {
			break
		}
	}
	return wrong
}
