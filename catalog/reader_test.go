package catalog_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
)

func openReader(t *testing.T, dsn string, maxRow int64) *catalog.Reader {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	r, err := catalog.OpenReader(t.Context(), cfg, "reader-test", maxRow)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(context.Background()) })
	return r
}

func rowsOf(table string, columns ...string) catalog.Select {
	return catalog.Select{Table: catalog.TableName{Schema: "public", Name: table}, Columns: columns, OrderBy: columns[:1]}
}

// read returns the rows of q as text, columns joined by a bar.
func read(t *testing.T, r *catalog.Reader, q catalog.Select, batch int) (rows []string, err error) {
	t.Helper()
	if err := r.Declare(t.Context(), q); err != nil {
		return nil, err
	}
	for {
		n, err := r.Fetch(t.Context(), batch, func(values [][]byte) error {
			var parts []string
			for _, v := range values {
				part := "null"
				if v != nil {
					part = "'" + string(v) + "'"
				}
				parts = append(parts, part)
			}
			rows = append(rows, strings.Join(parts, "|"))
			return nil
		})
		if err != nil {
			return rows, err
		}
		if n < batch {
			return rows, r.CloseCursor(t.Context())
		}
	}
}

func TestReader_ReadsASnapshotInOrderAndInBatches(t *testing.T) {
	db := database(t, `CREATE TABLE "Out" (n int, b bytea, d timestamptz)`,
		`INSERT INTO "Out" VALUES (3, '\x00ff', '2024-02-29 12:00+05:30'), (1, NULL, 'infinity'), (2, '', NULL)`)
	exec(t, db, "ALTER DATABASE "+db+" SET datestyle = 'German'", "ALTER DATABASE "+db+" SET bytea_output = 'escape'",
		"ALTER DATABASE "+db+" SET timezone = 'Asia/Kolkata'")
	r := openReader(t, server.DSN(db), 1<<20)
	if err := r.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	q := rowsOf("Out", "n", "b", "d")
	if n, err := r.Count(t.Context(), q); err != nil || n != 3 { // takes the snapshot
		t.Fatalf("%d rows, %v", n, err)
	}
	exec(t, db, `INSERT INTO "Out" VALUES (4, NULL, NULL)`)
	for batch := 1; batch <= 4; batch++ {
		rows, err := read(t, r, q, batch)
		want := `'1'|null|'infinity' '2'|'\x'|null '3'|'\x00ff'|'2024-02-29 06:30:00+00'`
		if got := strings.Join(rows, " "); err != nil || got != want {
			t.Errorf("batches of %d: %s, %v", batch, got, err)
		}
	}
}

func TestReader_RowsOfOtherTablesAreNotItsOwn(t *testing.T) {
	db := database(t, "CREATE TABLE plain (n int)", "CREATE TABLE child () INHERITS (plain)", "INSERT INTO plain VALUES (1)", "INSERT INTO child VALUES (2)",
		"CREATE TABLE parted (n int) PARTITION BY LIST (n)", "CREATE TABLE leaf PARTITION OF parted DEFAULT", "INSERT INTO parted VALUES (3)")
	r := openReader(t, server.DSN(db), 1<<20)
	if err := r.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if rows, err := read(t, r, rowsOf("plain", "n"), 10); err != nil || strings.Join(rows, " ") != "'1'" {
		t.Errorf("%v, %v", rows, err)
	}
	q := rowsOf("parted", "n")
	q.Partitioned = true
	if rows, err := read(t, r, q, 10); err != nil || strings.Join(rows, " ") != "'3'" {
		t.Errorf("%v, %v", rows, err)
	}
}

func TestReader_TakesOneExpressionAndChangesNothing(t *testing.T) {
	db := database(t, "CREATE TABLE o (n int)", "INSERT INTO o VALUES (1), (2)", "CREATE SEQUENCE s")
	for where, want := range map[string]string{
		"n = 1 -- and no more":            "",
		"true); DELETE FROM o; SELECT (1": "42601",
		"nextval('s') > 0":                "25006",
		"nope":                            "42703",
	} {
		r := openReader(t, server.DSN(db), 1<<20)
		if err := r.Begin(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		q := rowsOf("o", "n")
		q.Where, q.RowFilter = where, "n < 2"
		rows, err := read(t, r, q, 10)
		if got := catalog.SQLState(err); got != want || want == "" && (err != nil || strings.Join(rows, " ") != "'1'") {
			t.Errorf("%s: %v, %v; want %q", where, rows, err, want)
		}
	}
	var n int
	c, err := server.Connect(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if err := c.QueryRow(t.Context(), "SELECT count(*) FROM o").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d rows are left, %v", n, err)
	}
}

func TestReader_LeavesNothingOutInSilence(t *testing.T) {
	db := database(t, "CREATE TABLE o (n int)", "INSERT INTO o VALUES (1), (2)", "DROP ROLE IF EXISTS limited", "CREATE ROLE limited LOGIN",
		"GRANT SELECT ON o TO limited", "CREATE POLICY p ON o USING (n = 1)", "ALTER TABLE o ENABLE ROW LEVEL SECURITY")
	r := openReader(t, server.DSNAs("limited", "", db), 1<<20)
	if err := r.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Describe(t.Context(), rowsOf("o", "n")); catalog.SQLState(err) != "42501" {
		t.Errorf("rows hidden by row-level security: %v", err)
	}
	exec(t, db, "DROP OWNED BY limited", "DROP POLICY p ON o")
}

func TestReader_RowAboveTheLimitIsNotRead(t *testing.T) {
	db := database(t, "CREATE TABLE o (n int, body text)", "INSERT INTO o VALUES (1, 'x'), (2, repeat('y', 100000))")
	r := openReader(t, server.DSN(db), 50000)
	if err := r.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	rows, err := read(t, r, rowsOf("o", "n", "body"), 10)
	if !catalog.IsTooLarge(err) || len(rows) != 1 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}
