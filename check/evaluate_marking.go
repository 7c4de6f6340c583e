package check

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/catalog"
)

// marking tells whether the running relay could mark published rows.
func (r *report) marking(w Want, f Facts) {
	for _, m := range w.Marking {
		name := "mark " + m.Table.String()
		if f.Tables[m.Table] == nil {
			continue // told by the table
		}
		if err := f.UnmarkedErr[m.Table]; err != nil {
			r.fails(name, err, "")
			continue
		}
		if pt, ok := f.Publication.Table(m.Table); ok && f.Publication.Update && pt.Columns == nil {
			r.add(name, Warn, "ALTER PUBLICATION "+catalog.Ident(f.Publication.Name)+" SET (publish = 'insert')",
				"the publication publishes updates, so that each row that is marked is sent to the relay once more, which skips it")
		}
		if !f.Marked[m.Table].Indexed {
			r.add(name, Warn, fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s)", m.Table.SQL(), catalog.Ident(m.ID)),
				"no index begins with column %q: each UPDATE that marks rows reads the whole table", m.ID)
			continue
		}
		r.pass(name, "published rows get %q in column %q", m.Value, m.Column)
	}
}
