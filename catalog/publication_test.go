package catalog_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/catalog"
)

const partitioned = `CREATE TABLE part (id int, at date) PARTITION BY RANGE (at);
	CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
	CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM ('2026-02-01') TO ('2026-03-01') PARTITION BY RANGE (at);
	CREATE TABLE part_2a PARTITION OF part_2 FOR VALUES FROM ('2026-02-01') TO ('2026-02-15')`

func TestPublication_IsReadAsItIs(t *testing.T) {
	db := database(t, "CREATE TABLE a (x int, y int, z text)", `CREATE TABLE "O dd" (x int)`, partitioned)
	s := open(t, server.DSN(db))
	if _, ok, err := s.Publication(t.Context(), "p"); ok || err != nil {
		t.Fatalf("missing: %t %v", ok, err)
	}
	table, columns, filter := "a", []string(nil), ""
	if s.VersionNum() >= 150000 {
		table, columns, filter = "a (x, z) WHERE (x > 1)", []string{"x", "z"}, "(x > 1)"
	}
	exec(t, db, "CREATE PUBLICATION p FOR TABLE "+table+`, "O dd", part WITH (publish = 'insert, delete', publish_via_partition_root = true)`)
	p, ok, err := s.Publication(t.Context(), "p")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if !p.Insert || p.Update || !p.Delete || p.Truncate || !p.ViaRoot || p.AllTables || p.Owner != "postgres" || p.OID == 0 || len(p.Tables) != 3 {
		t.Errorf("got %+v", p)
	}
	a, ok := p.Table(catalog.TableName{Schema: "public", Name: "a"})
	if !ok || a.RowFilter != filter || !slices.Equal(a.Columns, columns) || a.OID == 0 {
		t.Errorf("table a: %t %+v", ok, a)
	}
	if odd, ok := p.Table(catalog.TableName{Schema: "public", Name: "O dd"}); !ok || odd.Columns != nil {
		t.Errorf("odd table: %t %+v", ok, odd)
	}
	def := "insert=true via_root=true all_tables=false"
	if got := p.DefString(catalog.TableName{Schema: "public", Name: "part"}); got != def {
		t.Errorf("def of part: %s", got)
	}
	if s.VersionNum() >= 150000 {
		def += " filter[public.a]=(x > 1) columns[public.a]=x,z"
	}
	if got := p.DefString(); got != def {
		t.Errorf("def: %s", got)
	}
}

func TestIdentities_TellATableThatLeftThePublication(t *testing.T) {
	db := database(t, "CREATE TABLE a (x int)", partitioned,
		"CREATE PUBLICATION p FOR TABLE a, part WITH (publish = 'insert', publish_via_partition_root = true)")
	s := open(t, server.DSN(db))
	tables := []catalog.TableName{{Schema: "public", Name: "part"}, {Schema: "public", Name: "a"}, {Schema: "public", Name: "absent"}}
	look := func() catalog.Identities { return must[catalog.Identities](t)(s.Identities(t.Context(), "p", tables)) }
	was := look()
	var names []string
	for _, r := range was.Relations {
		names = append(names, r.Name)
	}
	if want := []string{"public.a", "public.part", "public.part_1", "public.part_2a"}; !slices.Equal(names, want) {
		t.Fatalf("relations %v", names)
	}
	diff := func() string { return catalog.Compare(was.Publication, was.Relations, look()).String() }
	if d := diff(); d != "" {
		t.Errorf("nothing changed: %s", d)
	}
	const altered = `publication "p" was altered, and is as it was (insert=true via_root=true all_tables=false)`
	steps := []struct{ sql, diff string }{
		{"CREATE TABLE part_3 PARTITION OF part FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')", "partition public.part_3 was attached"},
		{"DROP TABLE part_3", ""},
		{"ALTER PUBLICATION p DROP TABLE a; ALTER PUBLICATION p ADD TABLE a", "public.a was not published for a while"},
		{"DROP TABLE a; CREATE TABLE a (x int)", "table public.a is not published any more"},
		{"ALTER PUBLICATION p ADD TABLE a", "table public.a was dropped and created again"},
		{"ALTER PUBLICATION p SET (publish_via_partition_root = false)",
			`publication "p" was changed from (insert=true via_root=true all_tables=false) to (insert=true via_root=false all_tables=false); ` +
				"table public.a was dropped and created again; table public.part is not published any more; " +
				"partition public.part_1 was detached or dropped; partition public.part_2a was detached or dropped"},
		{"ALTER PUBLICATION p SET (publish_via_partition_root = true); ALTER TABLE part DETACH PARTITION part_1",
			altered + "; table public.a was dropped and created again; partition public.part_1 was detached or dropped"},
		{"ALTER TABLE part ATTACH PARTITION part_1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
			altered + "; table public.a was dropped and created again; public.part_1 was not published for a while"},
	}
	for _, step := range steps {
		exec(t, db, step.sql)
		if d := diff(); d != step.diff {
			t.Errorf("after %s:\ngot  %s\nwant %s", step.sql, d, step.diff)
		}
	}
	if ok, err := s.RelationExists(t.Context(), was.Relations[0].OID); ok || err != nil {
		t.Errorf("dropped table exists: %t %v", ok, err)
	}
	if ok, err := s.RelationExists(t.Context(), was.Relations[2].OID); !ok || err != nil {
		t.Errorf("detached partition does not exist: %t %v", ok, err)
	}
}

func TestMayFollowSlot_ProvesThatThePublicationCameFirst(t *testing.T) {
	db := database(t, "CREATE TABLE a (x int)", "CREATE TABLE b (x int)", "CREATE PUBLICATION before FOR TABLE a",
		"CREATE SCHEMA later", "CREATE PUBLICATION schemas FOR TABLE a")
	s := open(t, server.DSN(db))
	if _, err := s.CreateSlot(t.Context(), "order_1", false, time.Minute); err != nil {
		t.Fatal(err)
	}
	defer exec(t, db, "SELECT pg_drop_replication_slot('order_1')")
	may := must[bool](t)
	if may(s.MayFollowSlot(t.Context(), "before", "order_1")) {
		t.Error("a publication from before may follow")
	}
	exec(t, db, "CREATE PUBLICATION after FOR TABLE a", "ALTER PUBLICATION before ADD TABLE b")
	if !may(s.MayFollowSlot(t.Context(), "after", "order_1")) || !may(s.MayFollowSlot(t.Context(), "before", "order_1")) {
		t.Error("a publication, or a table, from after may not")
	}
	if may(s.MayFollowSlot(t.Context(), "schemas", "order_1")) {
		t.Error("another one from before may follow")
	}
	if s.VersionNum() < 150000 {
		return
	}
	exec(t, db, "ALTER PUBLICATION schemas ADD TABLES IN SCHEMA later")
	if !may(s.MayFollowSlot(t.Context(), "schemas", "order_1")) {
		t.Error("a schema from after may not")
	}
}

func TestMayFollowSlot_AFrozenRowIsOld(t *testing.T) {
	for _, c := range []struct {
		written, horizon int32
		may              bool
	}{{100, 50, false}, {50, 50, true}, {0, 50, true}, {-1, 50, false}, {math.MinInt32, 50, false}} {
		if may := catalog.MayFollow(c.written, c.horizon); may != c.may {
			t.Errorf("%+v: %t", c, may)
		}
	}
}

func TestTable_IsReadAsItIs(t *testing.T) {
	db := database(t, "CREATE DOMAIN d1 AS text", "CREATE DOMAIN d2 AS d1",
		"CREATE UNLOGGED TABLE u (id int NOT NULL, gone int, d d2, g int GENERATED ALWAYS AS (id * 2) STORED, v varchar(5))",
		"ALTER TABLE u DROP COLUMN gone", partitioned, "CREATE VIEW w AS SELECT 1 AS x", "CREATE ROLE reader LOGIN")
	s := open(t, server.DSNAs("reader", "", db)) // no SELECT is needed
	u, ok, err := s.Table(t.Context(), "public", "u")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if u.Kind != catalog.KindTable || u.Persistence != catalog.Unlogged || u.HasRows || len(u.Columns) != 4 || u.Owner != "postgres" {
		t.Errorf("got %+v", u)
	}
	d, _ := u.Column("d")
	if d.TypeName != "public.d2" || d.BaseTypeOID != 25 || d.TypeOID == 25 {
		t.Errorf("domain: %+v", d)
	}
	if g, _ := u.Column("g"); !g.Generated || g.TypeOID != 23 {
		t.Errorf("generated: %+v", g)
	}
	if id, _ := u.Column("id"); !id.NotNull || id.Generated {
		t.Errorf("id: %+v", id)
	}
	if _, ok := u.Column("gone"); ok {
		t.Error("a dropped column is there")
	}
	part, _, err := s.Table(t.Context(), "public", "part")
	if err != nil || part.Kind != catalog.KindPartitioned || len(part.Partitions) != 2 || part.Partitions[1].Name != "public.part_2a" || part.HasRows {
		t.Errorf("partitioned: %+v %v", part, err)
	}
	exec(t, db, "INSERT INTO part VALUES (1, '2026-02-03')")
	if part, _, _ = s.Table(t.Context(), "public", "part"); !part.HasRows {
		t.Error("rows of a partition are not seen")
	}
	if w, ok, err := s.Table(t.Context(), "public", "w"); err != nil || !ok || w.Kind != catalog.KindView {
		t.Errorf("view: %+v %v", w, err)
	}
	if _, ok, err := s.Table(t.Context(), "public", "nothing"); ok || err != nil {
		t.Errorf("missing: %t %v", ok, err)
	}
}

func TestIdentities_WaitForNobodyWhoHoldsATable(t *testing.T) {
	db := database(t, "CREATE TABLE a (x int, y int)", partitioned,
		"CREATE PUBLICATION p FOR TABLE a, part WITH (publish = 'insert', publish_via_partition_root = true)")
	conn, err := server.Connect(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{"BEGIN", "LOCK TABLE a, part, part_1, part_2a IN ACCESS EXCLUSIVE MODE"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ids, err := open(t, server.DSN(db)).Identities(ctx, "p", []catalog.TableName{{Schema: "public", Name: "part"}, {Schema: "public", Name: "a"}})
	if err != nil || len(ids.Relations) != 4 {
		t.Errorf("got %v: %v", ids, err)
	}
}

func TestIdentities_KnowUnderWhichNameRowsArrive(t *testing.T) {
	type want map[string]bool
	cases := []struct {
		publication string
		arrive      want
	}{
		{"FOR ALL TABLES WITH (publish_via_partition_root = true)", want{"part": true, "a": true}},
		{"FOR ALL TABLES", want{"part_1": true, "part_2a": true, "a": true}},
		{"FOR TABLE part", want{"part_1": true, "part_2a": true}},
		{"FOR TABLE part, part_1 WITH (publish_via_partition_root = true)", want{"part": true}},
		{"FOR TABLE part_2 WITH (publish_via_partition_root = true)", want{"part_2": true}},
		{"FOR TABLE part_1, a", want{"part_1": true, "a": true}},
	}
	if server.Version() >= "15" {
		cases = append(cases, struct {
			publication string
			arrive      want
		}{"FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)", want{"part": true, "a": true}})
	}
	db := database(t, "CREATE TABLE a (x int)", "CREATE UNLOGGED TABLE u (x int)", partitioned)
	s := open(t, server.DSN(db))
	for _, c := range cases {
		exec(t, db, "DROP PUBLICATION IF EXISTS p", "CREATE PUBLICATION p "+c.publication)
		p, _, err := s.Publication(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "u", "part", "part_1", "part_2", "part_2a"} {
			table := catalog.TableName{Schema: "public", Name: name}
			ids := must[catalog.Identities](t)(s.Identities(t.Context(), "p", []catalog.TableName{table}))
			_, listed := p.Table(table) // the server's own opinion
			if arrives := len(ids.Relations) > 0; arrives != c.arrive[name] || arrives != listed {
				t.Errorf("%s: %s arrives=%t, listed=%t", c.publication, name, arrives, listed)
			}
		}
	}
}

// The entry of a table's schema is all that tells that it was left out for a while.
func TestIdentities_TellASchemaThatLeftThePublicationForAWhile(t *testing.T) {
	db := database(t, "CREATE TABLE a (x int)", partitioned)
	s := open(t, server.DSN(db))
	if s.VersionNum() < 150000 {
		t.Skip("schemas in a publication came with 15")
	}
	exec(t, db, "CREATE PUBLICATION p FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)")
	look := func() catalog.Identities {
		return must[catalog.Identities](t)(s.Identities(t.Context(), "p", []catalog.TableName{{Schema: "public", Name: "a"}, {Schema: "public", Name: "part"}}))
	}
	was := look()
	if d := catalog.Compare(was.Publication, was.Relations, look()); !d.Empty() {
		t.Errorf("nothing changed: %s", d)
	}
	exec(t, db, "ALTER PUBLICATION p DROP TABLES IN SCHEMA public", "ALTER PUBLICATION p ADD TABLES IN SCHEMA public")
	if d := catalog.Compare(was.Publication, was.Relations, look()); len(d.Interrupted) != 2 || !d.Broken() {
		t.Errorf("both tables were not published for a while: %q", d)
	}
	exec(t, db, "ALTER PUBLICATION p ADD TABLE a") // it is published all the time
	was = look()
	exec(t, db, "ALTER PUBLICATION p DROP TABLES IN SCHEMA public", "ALTER PUBLICATION p ADD TABLES IN SCHEMA public")
	if d := catalog.Compare(was.Publication, was.Relations, look()); len(d.Interrupted) != 1 || d.Interrupted[0].Name != "public.part" {
		t.Errorf("the other table was not published for a while: %q", d)
	}
}

func TestIdentities_SeeFiltersAndColumnListsButNotRenames(t *testing.T) {
	db := database(t, "CREATE TABLE a (x int, y int)")
	s := open(t, server.DSN(db))
	if s.VersionNum() < 150000 {
		t.Skip("row filters and column lists came with 15")
	}
	exec(t, db, "CREATE PUBLICATION p FOR TABLE a (x) WHERE (x > 1)")
	def := func() string {
		return must[catalog.Identities](t)(s.Identities(t.Context(), "p", []catalog.TableName{{Schema: "public", Name: "a"}})).Relations[0].Def
	}
	seen := map[string]string{}
	for _, sql := range []string{"SELECT 1", "ALTER PUBLICATION p SET TABLE a (x) WHERE (x > 2)",
		"ALTER PUBLICATION p SET TABLE a (x, y) WHERE (x > 2)", "ALTER PUBLICATION p SET TABLE a"} {
		exec(t, db, sql)
		if before, ok := seen[def()]; ok {
			t.Errorf("%s is not told from %s", sql, before)
		}
		seen[def()] = sql
	}
	exec(t, db, "ALTER PUBLICATION p SET TABLE a (x) WHERE (x > 1)", "ALTER TABLE a RENAME x TO z")
	if seen[def()] != "SELECT 1" {
		t.Errorf("a rename is a change: %s", def())
	}
}
