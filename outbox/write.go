package outbox

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// standard is the outbox of the package's functions.
var standard = func() *Outbox {
	o, err := New(Config{})
	if err != nil {
		panic(err) // of the zero value
	}
	return o
}()

// Write writes an event into public.outbox, in the caller's transaction.
func Write(ctx context.Context, tx pgx.Tx, e Event) (Ref, error) { return standard.Write(ctx, tx, e) }

// WriteSQL is Write for database/sql.
func WriteSQL(ctx context.Context, tx *sql.Tx, e Event) (Ref, error) {
	return standard.WriteSQL(ctx, tx, e)
}

// WriteBatch writes events into public.outbox, in their order and in the caller's
// transaction, with far fewer statements than events. It returns a Ref per event, or
// an error; one that is ErrRefused was found before any event was written.
func WriteBatch(ctx context.Context, tx pgx.Tx, events []Event) ([]Ref, error) {
	return standard.WriteBatch(ctx, tx, events)
}

// WriteBatchSQL is WriteBatch for database/sql.
func WriteBatchSQL(ctx context.Context, tx *sql.Tx, events []Event) ([]Ref, error) {
	return standard.WriteBatchSQL(ctx, tx, events)
}

// Write writes an event in the caller's transaction.
func (o *Outbox) Write(ctx context.Context, tx pgx.Tx, e Event) (Ref, error) {
	return only(o.WriteBatch(ctx, tx, []Event{e}))
}

// WriteSQL is Write for database/sql.
func (o *Outbox) WriteSQL(ctx context.Context, tx *sql.Tx, e Event) (Ref, error) {
	return only(o.WriteBatchSQL(ctx, tx, []Event{e}))
}

func only(refs []Ref, err error) (Ref, error) {
	if err != nil {
		return Ref{}, err
	}
	return refs[0], nil
}

// WriteBatch is like the package's WriteBatch.
func (o *Outbox) WriteBatch(ctx context.Context, tx pgx.Tx, events []Event) ([]Ref, error) {
	return o.write(ctx, pgxTx{tx}, events)
}

// WriteBatchSQL is WriteBatch for database/sql.
func (o *Outbox) WriteBatchSQL(ctx context.Context, tx *sql.Tx, events []Event) ([]Ref, error) {
	return o.write(ctx, sqlTx{tx}, events)
}

func (o *Outbox) write(ctx context.Context, tx transaction, events []Event) ([]Ref, error) {
	rows, err := o.check(ctx, events)
	if err != nil {
		return nil, err
	}
	refs := make([]Ref, len(rows))
	for i, row := range rows {
		refs[i].ID = row.ID
	}
	for at := 0; at < len(rows); {
		n := o.next(rows[at:])
		if err := o.writeSome(ctx, tx, rows[at:at+n], refs[at:at+n]); err != nil {
			return nil, fmt.Errorf("write outbox events %d to %d of %d: %w", at, at+n-1, len(rows), explain(err))
		}
		at += n
	}
	return refs, nil
}

// next returns how many events one statement takes: a power of two, so that there
// are few different statements, which drivers prepare and keep.
func (o *Outbox) next(rows []prepared) int {
	if o.cfg.Mode == Message {
		return 1
	}
	same := 1
	for same < len(rows) && same < maxRows && rows[same].keyed == rows[0].keyed {
		same++
	}
	n := 1
	for 2*n <= same {
		n *= 2
	}
	return n
}

func (o *Outbox) writeSome(ctx context.Context, tx transaction, rows []prepared, refs []Ref) error {
	switch {
	case o.cfg.Mode == Message:
		_, err := tx.exec(ctx, emit, []any{o.cfg.Messages.Prefix, string(body(rows[0]))})
		return err
	case rows[0].keyed:
		return o.insertKeyed(ctx, tx, rows, refs)
	}
	if err := tookAll(rows)(tx.exec(ctx, o.sql.insert[log2(len(rows))], o.values(rows))); err != nil {
		return err
	}
	if o.cfg.Mode == Keep {
		return nil
	}
	ids := make([]any, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	return tookAll(rows)(tx.exec(ctx, o.sql.remove[log2(len(rows))], ids))
}

func tookAll(rows []prepared) func(took int64, err error) error {
	return func(took int64, err error) error {
		if err == nil && took != int64(len(rows)) {
			err = fmt.Errorf("%w (%d of %d rows)", ErrNotWritten, took, len(rows))
		}
		return err
	}
}

// insertKeyed inserts the events whose ids are not there yet.
func (o *Outbox) insertKeyed(ctx context.Context, tx transaction, rows []prepared, refs []Ref) error {
	ids, err := tx.texts(ctx, o.sql.keyed[log2(len(rows))], o.values(rows))
	if err != nil {
		return err
	}
	written := make(map[string]bool, len(ids))
	for _, id := range ids {
		written[id] = true
	}
	for i := range refs {
		refs[i].Duplicate = !written[refs[i].ID]
		delete(written, refs[i].ID) // a second one of the same key is a duplicate of the first
	}
	return nil
}

// values are those of o.columns, row by row. Texts are strings, which every driver
// sends so that PostgreSQL reads them by the type of the column.
func (o *Outbox) values(rows []prepared) []any {
	t, c := o.cfg.Table, o.cfg.Table.Columns
	var values []any
	for _, row := range rows {
		values = append(values, row.ID)
		for _, f := range []struct{ column, value string }{
			{c.AggregateType, row.AggregateType}, {c.AggregateID, row.AggregateID}, {c.Type, row.Type},
		} {
			if f.column != "" {
				values = append(values, f.value)
			}
		}
		switch {
		case row.Payload == nil:
			values = append(values, nil)
		case t.Payload == Bytea:
			values = append(values, row.Payload)
		default:
			values = append(values, string(row.Payload))
		}
		for _, f := range []struct{ column, value string }{{c.Topic, row.Topic}, {c.Key, row.Key}} {
			if f.column != "" {
				values = append(values, f.value)
			}
		}
		for _, header := range o.headers {
			if v, ok := row.Headers[header]; ok {
				values = append(values, v)
			} else {
				values = append(values, nil)
			}
		}
	}
	return values
}
