package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// progressEvery rows or records the progress is told.
const progressEvery = 1 << 12

// table is an outbox table, bound to how it is now.
type table struct {
	route    route.Table
	name     catalog.TableName
	columns  []string // that are read
	at       []int    // where each of them is in relation
	relation *decoder.Relation
	inRange  string // condition for the rows to look at; "" : all
	hasXmin  bool   // the role may read xmin

	partitioned bool
}

// bind looks at a table and at what the role may read of it.
func bind(ctx context.Context, db *catalog.Session, r route.Table, o Options, role string) (*table, error) {
	t := &table{route: r, name: catalog.TableName{Schema: r.Schema, Name: r.Name}, columns: r.Identified()}
	is, ok, err := db.Table(ctx, r.Schema, r.Name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fault.Stopped("correct outbox[].table", "outbox table %s does not exist", r)
	}
	t.partitioned = is.Kind == catalog.KindPartitioned
	t.relation = &decoder.Relation{OID: is.OID, Namespace: r.Schema, Name: r.Name}
	for _, c := range is.Columns {
		t.relation.Columns = append(t.relation.Columns, decoder.Column{Name: c.Name, TypeOID: c.BaseTypeOID})
	}
	for _, name := range t.columns {
		i := slices.IndexFunc(is.Columns, func(c catalog.Column) bool { return c.Name == name })
		if i < 0 {
			return nil, fault.Stopped("correct outbox[].columns or outbox[].topic", "outbox table %s has no column %q, which is mapped", r, name)
		}
		t.at = append(t.at, i)
		if name == r.Timestamp {
			t.inRange = catalog.Between(name, is.Columns[i].BaseTypeOID, o.Since, o.Until)
		}
	}
	return t, t.mayRead(ctx, db, role)
}

// mayRead tells which grant is missing.
func (t *table) mayRead(ctx context.Context, db *catalog.Session, role string) error {
	denied, noUsage, err := db.Unreadable(ctx, t.name, append(slices.Clone(t.columns), "xmin"))
	if err != nil {
		return err
	}
	t.hasXmin = !slices.Contains(denied, "xmin")
	denied = slices.DeleteFunc(denied, func(c string) bool { return c == "xmin" })
	var grants []string
	if noUsage {
		grants = append(grants, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", catalog.Ident(t.name.Schema), catalog.Ident(role)))
	}
	if len(denied) > 0 {
		var columns []string
		for _, c := range t.columns {
			columns = append(columns, catalog.Ident(c))
		}
		grants = append(grants, fmt.Sprintf("GRANT SELECT (%s, xmin) ON %s TO %s", strings.Join(columns, ", "), t.name.SQL(), catalog.Ident(role)))
	}
	if len(grants) == 0 {
		return nil
	}
	return fault.Stopped("as the table's owner, "+strings.Join(grants, "; "),
		"role %q may not read the ids of outbox table %s, so that nothing can be compared", role, t.route)
}

// read routes every row of a scan, and hands on what identifies its record.
func (t *table) read(ctx context.Context, view *catalog.Snapshot, where string, router *route.Router,
	row func(rec *sink.Record) error, poison func(id []byte, err error) error,
) error {
	values := make([]decoder.Value, len(t.relation.Columns))
	for i := range values {
		values[i].Kind = decoder.Null // a key or a payload is not read
	}
	var rec sink.Record
	// Without a time of its own the row has that of its commit, which is not known.
	tx := route.Tx{CommitTime: unknownTime * 1000}
	return view.Each(ctx, catalog.Scan{Table: t.name, Partitioned: t.partitioned, Columns: t.columns, Where: where}, func(columns [][]byte) error {
		for i, data := range columns {
			values[t.at[i]] = decoder.Value{Kind: decoder.Text, Data: data}
			if data == nil {
				values[t.at[i]].Kind = decoder.Null
			}
		}
		rec.ID = nil
		_, err := router.Route(tx, 0, decoder.Row{Relation: t.relation, Values: values}, &rec)
		switch {
		case err != nil && fault.ClassOf(err) == fault.Poison:
			return poison(rec.ID, err)
		case err != nil:
			return err
		}
		// The id as the header has it, which of a bytea is the bytes themselves.
		rec.ID = rec.Headers[0].Value
		return row(&rec)
	})
}

// and joins conditions.
func and(conditions ...string) string {
	var some []string
	for _, c := range conditions {
		if c != "" {
			some = append(some, c)
		}
	}
	return strings.Join(some, " AND ")
}
