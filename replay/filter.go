package replay

import (
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// Filter chooses events: each list that is not empty must hold the event's value.
type Filter struct {
	AggregateTypes []string
	Keys           []string
	IDs            []string
}

// defaultAggregate is the column with the aggregate type where the topic's
// template names none.
const defaultAggregate = "aggregatetype"

// aggregateColumn is the column that the topic is made of.
func aggregateColumn(t route.Table) string {
	column := ""
	for _, u := range t.Uses() {
		if u.Role != route.RoleTopic || u.Column == t.TopicCol {
			continue
		}
		if column != "" {
			return defaultAggregate
		}
		column = u.Column
	}
	if column == "" {
		return defaultAggregate
	}
	return column
}

// filter is a Filter made ready. It belongs to one goroutine.
type filter struct {
	aggregates, keys, ids map[string]bool
	columns               map[string]string // with the aggregate type, by schema.name
	known                 map[uint32]string // schema.name by OID, of tables that had another name

	// Of the last row's table.
	rel   *decoder.Relation
	index int
}

func newFilter(f Filter, tables []route.Table) *filter {
	out := &filter{aggregates: set(f.AggregateTypes), keys: set(f.Keys), ids: set(f.IDs), columns: map[string]string{}}
	for _, t := range tables {
		out.columns[t.String()] = aggregateColumn(t)
	}
	return out
}

func set(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, s := range list {
		m[s] = true
	}
	return m
}

// passes tells whether a routed row is wanted.
func (f *filter) passes(row decoder.Row, rec *sink.Record) (bool, error) {
	if len(f.aggregates) == 0 {
		return f.wants(rec, nil), nil
	}
	if f.rel != row.Relation {
		if err := f.bind(row.Relation); err != nil {
			return false, err
		}
	}
	var aggregate []byte
	if v := row.Values[f.index]; v.Kind == decoder.Text {
		aggregate = v.Data
	}
	return f.wants(rec, aggregate), nil
}

// wants tells whether a record of an aggregate type, nil for none, is wanted.
func (f *filter) wants(rec *sink.Record, aggregate []byte) bool {
	return (len(f.ids) == 0 || f.ids[string(rec.ID)]) &&
		(len(f.keys) == 0 || rec.Key != nil && f.keys[string(rec.Key)]) &&
		(len(f.aggregates) == 0 || aggregate != nil && f.aggregates[string(aggregate)])
}

// bind finds the column with the aggregate type.
func (f *filter) bind(rel *decoder.Relation) error {
	name := rel.Namespace + "." + rel.Name
	column, mapped := f.columns[name]
	if !mapped { // as the router finds it
		column = f.columns[f.known[rel.OID]]
	}
	for i, c := range rel.Columns {
		if c.Name == column {
			f.rel, f.index = rel, i
			return nil
		}
	}
	return noAggregate(name, column)
}

func noAggregate(table, column string) error {
	return fault.Stopped("leave out --aggregate-type, and choose by --key or --id",
		"events of table %s cannot be chosen by aggregate type: it has no column %q", table, column)
}
