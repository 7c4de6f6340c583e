package catalog

import (
	"context"
	"fmt"
)

// Retained is what an outbox table holds now.
type Retained struct {
	Rows           int64
	Oldest, Newest string // of the column with the time, as text; "" without one, or without a row
}

// Retained counts the rows of a table, and finds the first and the last time in the
// column, where one is given. Row level security that would hide rows is an error.
func (s *Session) Retained(ctx context.Context, t TableName, column string) (Retained, error) {
	times := "'', ''"
	if column != "" {
		times = fmt.Sprintf("coalesce(min(%[1]s)::text, ''), coalesce(max(%[1]s)::text, '')", Ident(column))
	}
	var r Retained
	err := s.Exec(ctx, "SET row_security = off")
	if err == nil {
		err = s.conn.QueryRow(ctx, "SELECT count(*), "+times+" FROM "+t.SQL()).Scan(&r.Rows, &r.Oldest, &r.Newest)
	}
	if err != nil {
		return Retained{}, fmt.Errorf("count the rows of table %s: %w", t, err)
	}
	return r, nil
}
