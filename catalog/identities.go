package catalog

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/checkpoint"
)

// Identities are the catalog objects that the stream depends on.
type Identities struct {
	// Publication has OID 0 when there is none. Its Def is the canonical form of
	// what decides whether rows are sent.
	Publication checkpoint.Identity
	// Relations are the configured tables whose rows arrive under their name, each
	// followed by the leaf partitions that it covers, ordered by name. The Def of a
	// table is its row filter and column list.
	Relations []checkpoint.Identity
}

// FilterDef is in the Def of a table that has a row filter.
const FilterDef = "filter="

// Roots are the tables whose rows arrive under their name: schema.name by OID.
func (ids Identities) Roots() map[uint32]string {
	roots := make(map[uint32]string)
	for _, r := range ids.Relations {
		if r.Root == 0 {
			roots[r.OID] = r.Name
		}
	}
	return roots
}

// identitiesQuery reads catalogs only, and takes no lock on any table, where
// pg_publication_tables and pg_partition_tree would wait for a migration that
// holds one. %s are what came with 15: row filter, column list, schemas.
//
// A table is published under its own name when it, or the publication, says so,
// and no partitioned table above it takes its rows: via root, none of those above
// may be a member; else it must be a leaf, and one above it is enough. The
// definition goes by column numbers and the stored expression, so that a renamed
// column is no change. The versions are what a change leaves behind that was
// undone: the entry of a table, or of its schema, in a publication is made anew when
// it is put in again or its filter changes, and so is that of a partition in its
// table.
const identitiesQuery = `WITH RECURSIVE
	pub AS (SELECT oid, puballtables, pubviaroot FROM pg_publication WHERE pubname = $1),
	conf AS (
		SELECT DISTINCT c.oid, n.nspname || '.' || c.relname AS name, c.relkind, c.relnamespace
		FROM unnest($2::text[], $3::text[]) AS q(s, t)
		JOIN pg_namespace n ON n.nspname = q.s
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = q.t
		WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'),
	up AS (
		SELECT oid AS leaf, oid, relnamespace FROM conf
		UNION ALL
		SELECT up.leaf, p.oid, p.relnamespace FROM up
		JOIN pg_class c ON c.oid = up.oid AND c.relispartition
		JOIN pg_inherits i ON i.inhrelid = up.oid
		JOIN pg_class p ON p.oid = i.inhparent),
	member AS (
		SELECT up.leaf, up.oid, coalesce(r.oid, ns.oid) AS entry, %s AS filter, %s AS columns
		FROM pub CROSS JOIN up
		LEFT JOIN pg_publication_rel r ON r.prpubid = pub.oid AND r.prrelid = up.oid
		%s
		WHERE pub.puballtables OR r.oid IS NOT NULL OR ns.oid IS NOT NULL),
	root AS (
		SELECT conf.oid, conf.name,
			(SELECT string_agg(def, ' ' ORDER BY m.oid) FROM member m, concat_ws(
				' ', 'filter=' || md5(m.filter), 'columns=' || m.columns) def
			WHERE m.leaf = conf.oid AND def <> '') AS def,
			(SELECT string_agg(m.entry::text, ',' ORDER BY m.oid) FROM member m WHERE m.leaf = conf.oid) AS version
		FROM conf, pub
		WHERE CASE WHEN pub.pubviaroot
			THEN EXISTS (SELECT FROM member m WHERE m.leaf = conf.oid AND m.oid = conf.oid)
				AND NOT EXISTS (SELECT FROM member m WHERE m.leaf = conf.oid AND m.oid <> conf.oid)
			ELSE conf.relkind = 'r' AND EXISTS (SELECT FROM member m WHERE m.leaf = conf.oid) END),
	down AS (
		SELECT oid AS root, oid, '' AS version FROM root
		UNION ALL
		SELECT down.root, i.inhrelid, concat_ws(',', nullif(down.version, ''), i.xmin) FROM down
		JOIN pg_inherits i ON i.inhparent = down.oid
		JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition)
	SELECT root.name, root.oid, 0::oid, root.name, coalesce(root.def, ''), coalesce(root.version, '') FROM root
	UNION ALL
	SELECT root.name, c.oid, root.oid, n.nspname || '.' || c.relname, '', down.version
	FROM down JOIN root ON root.oid = down.root
	JOIN pg_class c ON c.oid = down.oid JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE c.oid <> root.oid AND c.relkind <> 'p'
	ORDER BY 1, 3, 4`

func (s *Session) identitiesSQL() string {
	if s.version < 150000 {
		return fmt.Sprintf(identitiesQuery, "NULL::text", "NULL::text", "CROSS JOIN (SELECT NULL::oid) AS ns(oid)")
	}
	return fmt.Sprintf(identitiesQuery, // Without the places in the text of the statement that made it.
		`regexp_replace(r.prqual::text, ':[a-z_]*location -?[0-9]+', '', 'g')`, "r.prattrs::text",
		`LEFT JOIN pg_publication_namespace ns ON ns.pnpubid = pub.oid AND ns.pnnspid = up.relnamespace`)
}

// Identities reads the publication and those of the tables that it publishes. It
// takes no lock on any table.
func (s *Session) Identities(ctx context.Context, publication string, tables []TableName) (Identities, error) {
	ids := Identities{Publication: checkpoint.Identity{Name: publication}}
	rows, err := s.conn.Query(ctx, `SELECT oid, xmin::text, pubinsert, pubviaroot, puballtables FROM pg_publication WHERE pubname = $1`, publication)
	if err != nil {
		return ids, fmt.Errorf("read publication %q: %w", publication, err)
	}
	var insert, viaRoot, allTables bool
	_, err = pgx.ForEachRow(rows, []any{&ids.Publication.OID, &ids.Publication.Version, &insert, &viaRoot, &allTables}, func() error { return nil })
	if err != nil {
		return ids, fmt.Errorf("read publication %q: %w", publication, err)
	}
	if ids.Publication.OID == 0 {
		return ids, nil
	}
	ids.Publication.Def = flags(insert, viaRoot, allTables)

	schemas, names := make([]string, len(tables)), make([]string, len(tables))
	for i, t := range tables {
		schemas[i], names[i] = t.Schema, t.Name
	}
	rows, err = s.conn.Query(ctx, s.identitiesSQL(), publication, schemas, names)
	if err != nil {
		return ids, fmt.Errorf("read the tables of publication %q: %w", publication, err)
	}
	var id checkpoint.Identity
	var order string
	_, err = pgx.ForEachRow(rows, []any{&order, &id.OID, &id.Root, &id.Name, &id.Def, &id.Version}, func() error {
		ids.Relations = append(ids.Relations, id)
		return nil
	})
	if err != nil {
		return ids, fmt.Errorf("read the tables of publication %q: %w", publication, err)
	}
	return ids, nil
}

// Gone returns which relations of was, by OID, are no more in now without any
// doubt about their rows: those that do not exist, and the partitions that the
// relay of the slot detached by itself, into which nothing can be inserted. now
// must have been read before.
func (s *Session) Gone(ctx context.Context, systemID, slot string, was, now []checkpoint.Identity) (map[uint32]bool, error) {
	here := map[uint32]bool{}
	for _, r := range now {
		here[r.OID] = true
	}
	missing := slices.DeleteFunc(slices.Clone(was), func(r checkpoint.Identity) bool { return here[r.OID] })
	gone := map[uint32]bool{}
	if len(missing) == 0 {
		return gone, nil
	}
	// Before it is asked whether they exist: one may be dropped at this moment.
	detached, err := s.Detached(ctx, systemID, slot)
	if err != nil {
		return nil, err
	}
	for _, d := range detached {
		gone[d.OID] = d.Refuses
	}
	for _, r := range missing {
		if gone[r.OID] {
			continue
		}
		exists, err := s.RelationExists(ctx, r.OID)
		if err != nil {
			return nil, fmt.Errorf("look for table %s: %w", r.Name, err)
		}
		gone[r.OID] = !exists
	}
	return gone, nil
}
