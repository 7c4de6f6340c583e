package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Publication is a publication and what it publishes.
type Publication struct {
	OID       uint32
	Name      string
	Owner     string
	AllTables bool
	Insert    bool
	Update    bool
	Delete    bool
	Truncate  bool
	ViaRoot   bool
	// Tables are those whose name the rows arrive under: with ViaRoot the roots,
	// else the leaf partitions.
	Tables []PublishedTable
}

// PublishedTable is a table as a publication publishes it.
type PublishedTable struct {
	OID       uint32
	Schema    string
	Name      string
	RowFilter string   // "" : none
	Columns   []string // nil: no column list, all columns
}

// Table returns how the table is published; false when it is not.
func (p Publication) Table(t TableName) (PublishedTable, bool) {
	for _, pt := range p.Tables {
		if pt.Schema == t.Schema && pt.Name == t.Name {
			return pt, true
		}
	}
	return PublishedTable{}, false
}

// DefString says, in a canonical form for a person, what decides whether rows of
// the tables are sent. Without tables it covers every table of the publication.
// Identities has a form that survives the renaming of a column.
func (p Publication) DefString(tables ...TableName) string {
	var b strings.Builder
	b.WriteString(flags(p.Insert, p.ViaRoot, p.AllTables))
	published := slices.Clone(p.Tables)
	slices.SortFunc(published, func(x, y PublishedTable) int {
		return strings.Compare(x.Schema+"."+x.Name, y.Schema+"."+y.Name)
	})
	for _, t := range published {
		name := TableName{t.Schema, t.Name}
		if len(tables) > 0 && !slices.Contains(tables, name) {
			continue
		}
		if t.RowFilter != "" {
			fmt.Fprintf(&b, " filter[%s]=%s", name, t.RowFilter)
		}
		if t.Columns != nil {
			fmt.Fprintf(&b, " columns[%s]=%s", name, strings.Join(t.Columns, ","))
		}
	}
	return b.String()
}

func flags(insert, viaRoot, allTables bool) string {
	return fmt.Sprintf("insert=%t via_root=%t all_tables=%t", insert, viaRoot, allTables)
}

// Publication reads a publication; false when there is none. It
// may wait for somebody who holds one of its tables exclusively.
func (s *Session) Publication(ctx context.Context, name string) (Publication, bool, error) {
	p := Publication{Name: name}
	err := s.conn.QueryRow(ctx, `SELECT oid, pg_get_userbyid(pubowner)::text, puballtables, pubinsert, pubupdate,
		pubdelete, pubtruncate, pubviaroot FROM pg_publication WHERE pubname = $1`, name).
		Scan(&p.OID, &p.Owner, &p.AllTables, &p.Insert, &p.Update, &p.Delete, &p.Truncate, &p.ViaRoot)
	if errors.Is(err, pgx.ErrNoRows) {
		return Publication{}, false, nil
	}
	if err != nil {
		return Publication{}, false, fmt.Errorf("read publication %q: %w", name, err)
	}
	filter, columns := "NULL::text", "NULL::text[]"
	if s.version >= 150000 {
		filter = "t.rowfilter"
		columns = "CASE WHEN r.prattrs IS NOT NULL THEN t.attnames::text[] END"
	}
	rows, err := s.conn.Query(ctx, `SELECT c.oid, t.schemaname::text, t.tablename::text,
			coalesce(`+filter+`, ''), `+columns+`
		FROM pg_publication_tables t
		JOIN pg_namespace n ON n.nspname = t.schemaname
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
		LEFT JOIN pg_publication_rel r ON r.prrelid = c.oid AND r.prpubid = $2::oid
		WHERE t.pubname = $1 ORDER BY 2, 3`, name, p.OID)
	if err != nil {
		return Publication{}, false, fmt.Errorf("read the tables of publication %q: %w", name, err)
	}
	p.Tables, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (PublishedTable, error) {
		var t PublishedTable
		err := row.Scan(&t.OID, &t.Schema, &t.Name, &t.RowFilter, &t.Columns)
		return t, err
	})
	if err != nil {
		return Publication{}, false, fmt.Errorf("read the tables of publication %q: %w", name, err)
	}
	return p, true, nil
}

// MayFollowSlot tells whether the publication, or the entry of one of its
// tables or schemas, may have been written after the position of the slot. False is proof
// that it was there before. True proves nothing: a slot that is made takes over the
// catalog horizon of an older slot, and that of a transaction that is open then,
// and keeps it until it is read. False, too, when either is missing.
func (s *Session) MayFollowSlot(ctx context.Context, publication, slot string) (bool, error) {
	schemas := ""
	if s.version >= 150000 {
		schemas = ` UNION ALL SELECT ns.xmin FROM pg_publication p JOIN pg_publication_namespace ns ON ns.pnpubid = p.oid
			WHERE p.pubname = $1`
	}
	rows, err := s.conn.Query(ctx, `SELECT age(written.xmin), age(s.catalog_xmin)
		FROM pg_replication_slots s, (
			SELECT p.xmin FROM pg_publication p WHERE p.pubname = $1
			UNION ALL
			SELECT r.xmin FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
			WHERE p.pubname = $1`+schemas+`) written
		WHERE s.slot_name = $2 AND s.catalog_xmin IS NOT NULL`, publication, slot)
	if err != nil {
		return false, fmt.Errorf("compare the ages of publication %q and slot %q: %w", publication, slot, err)
	}
	may, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (bool, error) {
		var written, horizon int32
		err := row.Scan(&written, &horizon)
		return mayFollow(written, horizon), err
	})
	if err != nil {
		return false, fmt.Errorf("compare the ages of publication %q and slot %q: %w", publication, slot, err)
	}
	return slices.Contains(may, true), nil
}

// mayFollow compares ages in transactions. One that is negative is that of a row
// which was written more than two thousand million transactions ago: the ids wrap,
// and xmin shows that of a frozen row as it was.
func mayFollow(written, horizon int32) bool { return written >= 0 && written <= horizon }

// CreatePublicationSQL is the statement by which the publication of these tables,
// or of none, is made.
func CreatePublicationSQL(name string, tables []TableName) string {
	if len(tables) == 0 { // for logical messages, which need a publication and nothing in it
		return fmt.Sprintf("CREATE PUBLICATION %s WITH (publish = 'insert', publish_via_partition_root = true)", Ident(name))
	}
	quoted := make([]string, len(tables))
	for i, t := range tables {
		quoted[i] = t.SQL()
	}
	return fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = true)",
		Ident(name), strings.Join(quoted, ", "))
}
