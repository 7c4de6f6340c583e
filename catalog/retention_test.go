package catalog_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/catalog"
)

func TestRetention_DeletesTheVersionsThatWereReadAndNoOther(t *testing.T) {
	const week = 7 * 24 * time.Hour
	for name, make := range map[string][]string{
		"timestamptz": {"CREATE TABLE o (id int, at timestamptz)", "INSERT INTO o SELECT n, now() - n * interval '1 day' FROM generate_series(1, 20) n"},
		"timestamp":   {"CREATE TABLE o (id int, at timestamp)", "INSERT INTO o SELECT n, (now() - n * interval '1 day') AT TIME ZONE 'UTC' FROM generate_series(1, 20) n"},
		"date":        {"CREATE TABLE o (id int, at date)", "INSERT INTO o SELECT n, (now() - n * interval '1 day' - interval '1 hour') AT TIME ZONE 'UTC' FROM generate_series(1, 20) n"},
		"bigint":      {"CREATE TABLE o (id int, at bigint)", "INSERT INTO o SELECT n, extract(epoch FROM now() - n * interval '1 day') * 1000 FROM generate_series(1, 20) n"},
		"partitioned": {"CREATE TABLE o (id int, at timestamptz) PARTITION BY LIST (id)", "CREATE TABLE o_some PARTITION OF o FOR VALUES IN (8, 9, 10)", "CREATE TABLE o_rest PARTITION OF o DEFAULT",
			"INSERT INTO o SELECT n, now() - n * interval '1 day' FROM generate_series(1, 20) n"},
		"inherited": {"CREATE TABLE o (id int, at timestamptz)", "INSERT INTO o SELECT n, now() - n * interval '1 day' FROM generate_series(1, 20) n",
			"CREATE TABLE heir () INHERITS (o)", "INSERT INTO heir VALUES (0, now() - interval '1 year')"},
	} {
		t.Run(name, func(t *testing.T) {
			db := database(t, make...)
			s := open(t, server.DSN(db))
			o := must[catalog.AgedTable](t)(s.AgedTable(t.Context(), catalog.TableName{Schema: "public", Name: "o"}, "at"))
			rows := must[[]catalog.RowVersion](t)(s.OldRows(t.Context(), o, week, 100))
			if few := must[[]catalog.RowVersion](t)(s.OldRows(t.Context(), o, week, 5)); len(few) != 5 || len(rows) < 13 || len(rows) > 15 { // dates are those of UTC
				t.Fatalf("%d rows, and %d with a limit of 5", len(rows), len(few))
			}
			// Another version, another row at the same place, another old row.
			exec(t, db, "UPDATE o SET at = at WHERE id = 8", "DELETE FROM o WHERE id = 9", "VACUUM o",
				"INSERT INTO o SELECT 9, at FROM o WHERE id = 10", "INSERT INTO o SELECT 21, at FROM o WHERE id = 10")
			deleted := must[int64](t)(s.DeleteOld(t.Context(), o, week, rows, time.Second))
			if want := int64(len(rows) - 2); deleted != want {
				t.Errorf("%d rows were deleted, want %d", deleted, want)
			}
			if left := text(t, db, "SELECT string_agg(id::text, ' ' ORDER BY id) FROM o WHERE id >= 8"); left != "8 9 21" {
				t.Errorf("old rows that are left: %s", left)
			}
		})
	}
}

// Rows of a table that was attached were never published, or may not have been; those
// of an unlogged one never are.
func TestRetention_LeavesAttachedPartitionsAlone(t *testing.T) {
	db := database(t, "CREATE TABLE o (id int, at timestamptz) PARTITION BY RANGE (id)",
		"CREATE TABLE own PARTITION OF o FOR VALUES FROM (0) TO (10)",
		"CREATE TABLE attached (id int, at timestamptz)", "INSERT INTO attached VALUES (11, now() - interval '1 year')",
		"ALTER TABLE o ATTACH PARTITION attached FOR VALUES FROM (10) TO (20)",
		"CREATE TABLE below (id int, at timestamptz) PARTITION BY RANGE (id)",
		"CREATE TABLE below_own PARTITION OF below FOR VALUES FROM (20) TO (30)", "INSERT INTO below VALUES (21, now() - interval '1 year')",
		"ALTER TABLE o ATTACH PARTITION below FOR VALUES FROM (20) TO (30)",
		"CREATE TABLE again PARTITION OF o FOR VALUES FROM (30) TO (40)", "ALTER TABLE o DETACH PARTITION again",
		"INSERT INTO again VALUES (31, now() - interval '1 year')", "ALTER TABLE o ATTACH PARTITION again FOR VALUES FROM (30) TO (40)",
		"CREATE UNLOGGED TABLE unlogged PARTITION OF o FOR VALUES FROM (40) TO (50)", // never in the WAL
		"INSERT INTO o SELECT n, now() - interval '1 year' FROM unnest('{1, 2, 12, 22, 32, 42}'::int[]) n",
		"CREATE ROLE retention_owner", "ALTER TABLE own OWNER TO retention_owner", "ALTER TABLE own RENAME TO renamed", "ALTER TABLE o ADD more text", "VACUUM FREEZE", "VACUUM FULL pg_attribute", "VACUUM FULL pg_inherits")
	s := open(t, server.DSN(db))
	o := must[catalog.AgedTable](t)(s.AgedTable(t.Context(), catalog.TableName{Schema: "public", Name: "o"}, "at"))
	if rows := must[[]catalog.RowVersion](t)(s.OldRows(t.Context(), o, time.Hour, 100)); len(rows) != 2 {
		t.Errorf("%d rows may be deleted, want the 2 of the table that was made as a partition", len(rows))
	}
	names := must[[]string](t)(s.AttachedPartitions(t.Context(), o))
	if want := []string{"public.again", "public.attached", "public.below_own", "public.unlogged"}; !slices.Equal(names, want) {
		t.Errorf("left alone: %q, want %q", names, want)
	}
}

func TestRetention_NamesWhatIsWrong(t *testing.T) {
	db := database(t, "CREATE TABLE o (id int, at text)", "CREATE ROLE retention_reader", "GRANT SELECT ON o TO retention_reader")
	s := open(t, server.DSN(db))
	for column, want := range map[string]string{"at": "tells no time", "absent": "no column absent"} {
		if _, err := s.AgedTable(t.Context(), catalog.TableName{Schema: "public", Name: "o"}, column); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("column %s: %v", column, err)
		}
	}
	if _, err := s.AgedTable(t.Context(), catalog.TableName{Schema: "public", Name: "absent"}, "at"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("absent table: %v", err)
	}
	if err := s.Exec(t.Context(), "SET ROLE retention_reader"); err != nil {
		t.Fatal(err)
	}
	missing := must[[]string](t)(s.MissingPrivileges(t.Context(), []catalog.TableName{{Schema: "public", Name: "o"}}))
	if !slices.Equal(missing, []string{`DELETE ON "public"."o"`}) {
		t.Errorf("missing: %q", missing)
	}
}

func TestRetention_WaitsForALockAsLongAsItMay(t *testing.T) {
	db := database(t, "CREATE TABLE o (id int, at timestamptz)", "INSERT INTO o VALUES (1, now() - interval '1 year')")
	s, other := open(t, server.DSN(db)), open(t, server.DSN(db))
	o := must[catalog.AgedTable](t)(s.AgedTable(t.Context(), catalog.TableName{Schema: "public", Name: "o"}, "at"))
	rows := must[[]catalog.RowVersion](t)(s.OldRows(t.Context(), o, time.Hour, 10))
	if err := other.Exec(t.Context(), "BEGIN; SELECT FROM public.o FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	_, err := s.DeleteOld(t.Context(), o, time.Hour, rows, 50*time.Millisecond)
	if catalog.SQLState(err) != "55P03" {
		t.Fatalf("delete of a locked row: %v", err)
	}
	if err := other.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if n := must[int64](t)(s.DeleteOld(t.Context(), o, time.Hour, rows, time.Second)); n != 1 {
		t.Fatalf("%d rows were deleted", n)
	}
}

// A row is below the position that is read after it, and a quiet server reports
// that position as written.
func TestWrittenLSN_IsReachedByAQuietServer(t *testing.T) {
	db := database(t, "CREATE TABLE o (x text)")
	s := open(t, server.DSN(db))
	for i := range 20 { // over some pages
		exec(t, db, "SET synchronous_commit = off", "INSERT INTO o VALUES (repeat('x', 900))")
		lsn := must[pglogrepl.LSN](t)(s.WrittenLSN(t.Context()))
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			current := must[catalog.Server](t)(s.Server(t.Context())).CurrentLSN
			if current >= lsn {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("insert %d: the server's position is %s, never %s", i, current, lsn)
			}
		}
	}
}

// text is the value that a query returns.
func text(t *testing.T, db, query string) (v string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN(db))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), query).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}
