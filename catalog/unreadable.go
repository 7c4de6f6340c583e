package catalog

import (
	"context"
	"fmt"
	"strings"
)

// Address is where a row version is stored. It stays valid within a snapshot.
type Address struct {
	Relation string // OID of the table, or partition
	TID      string
}

// UnreadableRow is a row that the server cannot print in UTF-8.
type UnreadableRow struct {
	Table TableName
	// ID is the row's, in quotes; where that cannot be read either, where it is stored.
	ID   string
	Why  string // without data
	Code string // SQLSTATE
	At   Address
}

// addressBatch is how many rows are tried together.
const addressBatch = 500

// Unreadable finds the rows of q that the server cannot print, one by one: each
// column is printed on the server, and nothing of it is sent. id is the column that
// names a row. It must be called in a transaction, and leaves it usable.
func (r *Reader) Unreadable(ctx context.Context, q Select, id string) ([]UnreadableRow, error) {
	if err := r.exec(ctx, "DECLARE addresses NO SCROLL CURSOR FOR SELECT tableoid::pg_catalog.text, ctid::pg_catalog.text"+q.from()); err != nil {
		return nil, fmt.Errorf("read table %s: %w", q.Table, err)
	}
	var bad []UnreadableRow
	for {
		res := r.pg.ExecParams(ctx, fmt.Sprintf("FETCH FORWARD %d FROM addresses", addressBatch), nil, nil, nil, nil).Read()
		if res.Err != nil {
			return nil, fmt.Errorf("read table %s: %w", q.Table, res.Err)
		}
		var batch []Address
		for _, row := range res.Rows {
			batch = append(batch, Address{Relation: string(row[0]), TID: string(row[1])})
		}
		if err := r.tryRows(ctx, q, id, batch, &bad); err != nil {
			return nil, err
		}
		if len(batch) < addressBatch {
			return bad, r.exec(ctx, "CLOSE addresses")
		}
	}
}

// tryRows has the rows printed, and halves what cannot be until single rows are
// left.
func (r *Reader) tryRows(ctx context.Context, q Select, id string, at []Address, bad *[]UnreadableRow) error {
	if len(at) == 0 {
		return nil
	}
	var printed []string
	for _, c := range q.Columns {
		printed = append(printed, "pg_catalog.count("+r.printed(c)+")")
	}
	_, err := r.attempt(ctx, "SELECT "+strings.Join(printed, ", ")+q.stored(at))
	perhaps, certain := Undecodable(err)
	switch {
	case err == nil:
		return nil
	case !perhaps || SQLState(err) == "42704":
		return fmt.Errorf("read table %s: %w", q.Table, err)
	case len(at) > 1:
		half := len(at) / 2
		if err := r.tryRows(ctx, q, id, at[:half], bad); err != nil {
			return err
		}
		return r.tryRows(ctx, q, id, at[half:], bad)
	case !certain: // such as memory that is short now
		return fmt.Errorf("read a row of table %s, stored at %s: %w", q.Table, at[0].TID, err)
	}
	row := UnreadableRow{Table: q.Table, ID: "stored at " + at[0].TID, Code: SQLState(err), Why: DecodingFault(err), At: at[0]}
	if values, err := r.attempt(ctx, "SELECT pg_catalog.left("+Ident(id)+"::pg_catalog.text, 200)"+q.stored(at)); err == nil && len(values) == 1 && values[0] != nil {
		row.ID = fmt.Sprintf("%q", values[0])
	}
	*bad = append(*bad, row)
	return nil
}

// printed is an expression that fails where sending the column would.
func (r *Reader) printed(column string) string {
	text := Ident(column) + "::pg_catalog.text"
	if r.pg.ParameterStatus("server_encoding") == "UTF8" {
		return text
	}
	return "pg_catalog.convert_to(" + text + ", 'UTF8')"
}

// attempt runs a statement that may fail, and keeps the transaction. It returns the
// values of the only row.
func (r *Reader) attempt(ctx context.Context, sql string) ([][]byte, error) {
	if err := r.exec(ctx, "SAVEPOINT attempt"); err != nil {
		return nil, err
	}
	res := r.pg.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
	if res.Err != nil {
		if err := r.exec(ctx, "ROLLBACK TO SAVEPOINT attempt"); err != nil {
			return nil, err
		}
		return nil, res.Err
	}
	if err := r.exec(ctx, "RELEASE SAVEPOINT attempt"); err != nil {
		return nil, err
	}
	if len(res.Rows) == 0 {
		return nil, nil
	}
	return res.Rows[0], nil
}

// stored is a FROM clause for the rows at these addresses.
func (q Select) stored(at []Address) string {
	only := "ONLY "
	if q.Partitioned {
		only = ""
	}
	return " FROM " + only + q.Table.SQL() + " WHERE " + among(at)
}

// among is a condition for the rows at these addresses.
func among(at []Address) string {
	by := map[string][]string{}
	var order []string
	for _, a := range at {
		if by[a.Relation] == nil {
			order = append(order, a.Relation)
		}
		by[a.Relation] = append(by[a.Relation], `"`+a.TID+`"`)
	}
	var parts []string
	for _, relation := range order {
		parts = append(parts, "(tableoid = "+Literal(relation)+"::pg_catalog.oid AND ctid = ANY ("+
			Literal("{"+strings.Join(by[relation], ",")+"}")+"::pg_catalog.tid[]))")
	}
	return "(" + strings.Join(parts, " OR ") + ")"
}

// InsertedSince is a condition for the rows of a transaction, of its savepoints,
// which have later ids, and of every transaction that began to write later.
func InsertedSince(xid uint32) string {
	// age counts down to the past, also across a wraparound.
	return fmt.Sprintf("pg_catalog.age(xmin) <= pg_catalog.age('%d'::pg_catalog.xid)", xid)
}
