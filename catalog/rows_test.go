package catalog_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/catalog"
)

// ids reads the column id of a table.
func ids(t *testing.T, v *catalog.Snapshot, table, where string) []string {
	t.Helper()
	var got []string
	err := v.Each(t.Context(), catalog.Scan{Table: catalog.TableName{Schema: "public", Name: table}, Partitioned: table == "outbox", Columns: []string{"id"}, Where: where},
		func(values [][]byte) error {
			got = append(got, string(values[0]))
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	return got
}

func TestSnapshot_SeesWhatWasCommittedAndTellsWhatCameLater(t *testing.T) {
	db := database(t)
	exec(t, db, `CREATE TABLE outbox (id text) PARTITION BY HASH (id)`,
		`CREATE TABLE p0 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 0)`,
		`CREATE TABLE p1 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 1)`,
		`INSERT INTO outbox VALUES ('old'), ('older')`, `VACUUM FREEZE outbox`)
	other := open(t, server.DSN(db))
	for _, sql := range []string{`BEGIN`, `INSERT INTO public.outbox VALUES ('open')`, `SAVEPOINT s`, `INSERT INTO public.outbox VALUES ('in a savepoint')`} {
		if err := other.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, server.DSN(db))
	view := must[*catalog.Snapshot](t)(s.Snapshot(t.Context()))
	if view.LSN == 0 || time.Since(view.At).Abs() > time.Hour {
		t.Errorf("got %+v", view)
	}
	if err := other.Exec(t.Context(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `INSERT INTO outbox VALUES ('new')`)
	if got := ids(t, view, "outbox", ""); !slices.Equal(got, []string{"old", "older"}) {
		t.Errorf("the snapshot has %v", got)
	}
	view.End(t.Context())
	view.End(t.Context())
	now := must[*catalog.Snapshot](t)(s.Snapshot(t.Context()))
	defer now.End(t.Context())
	if got := ids(t, now, "outbox", view.CommittedSince()); !slices.Equal(got, []string{"in a savepoint", "new", "open"}) {
		t.Errorf("later came %v", got)
	}
	if now.LSN <= view.LSN {
		t.Errorf("the positions are %s and %s", view.LSN, now.LSN)
	}
}

// Rows of a table that inherits are published under its own name, if at all.
func TestSnapshot_LeavesOutTablesThatInherit(t *testing.T) {
	db := database(t, `CREATE TABLE single (id text)`, `CREATE TABLE heir () INHERITS (single)`, `INSERT INTO single VALUES ('own')`, `INSERT INTO heir VALUES ('other')`)
	s := open(t, server.DSN(db))
	view := must[*catalog.Snapshot](t)(s.Snapshot(t.Context()))
	defer view.End(t.Context())
	if got := ids(t, view, "single", ""); !slices.Equal(got, []string{"own"}) {
		t.Errorf("the table has %v", got)
	}
}

func TestSnapshot_RowSecurityIsAnError(t *testing.T) {
	db := database(t)
	role := "limited_" + db
	exec(t, db, `CREATE TABLE outbox (id text)`, `INSERT INTO outbox VALUES ('a')`, `ALTER TABLE outbox ENABLE ROW LEVEL SECURITY`,
		`CREATE ROLE `+role+` LOGIN`, `GRANT SELECT (id) ON outbox TO `+role)
	s := open(t, server.DSNAs(role, "", db))
	view := must[*catalog.Snapshot](t)(s.Snapshot(t.Context()))
	defer view.End(t.Context())
	err := view.Each(t.Context(), catalog.Scan{Table: catalog.TableName{Schema: "public", Name: "outbox"}, Columns: []string{"id"}},
		func([][]byte) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "row-level security") {
		t.Errorf("got %v", err)
	}
}

func TestBetween_TakesTheSameRowsOfEveryType(t *testing.T) {
	db := database(t)
	since := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	until := time.Date(2026, 3, 3, 0, 0, 0, 0, time.UTC)
	const days = `SELECT d, timestamptz '2026-02-27 00:00+00' + d * interval '1 day' FROM generate_series(0, 9) d`
	for name, convert := range map[string]string{
		"timestamptz": "%s", "timestamp": "%s AT TIME ZONE 'UTC'", "date": "(%s AT TIME ZONE 'UTC')::date", "bigint": "(extract(epoch FROM %s) * 1000)::bigint",
	} {
		t.Run(name, func(t *testing.T) {
			table := "of_" + name
			exec(t, db, fmt.Sprintf(`CREATE TABLE %s (id text, "at" %s)`, table, name),
				fmt.Sprintf(`INSERT INTO %s SELECT d, %s FROM (%s) AS x(d, t)`, table, fmt.Sprintf(convert, "t"), days),
				fmt.Sprintf(`INSERT INTO %s VALUES ('null', NULL)`, table))
			s := open(t, server.DSN(db))
			is, _, err := s.Table(t.Context(), "public", table)
			if err != nil {
				t.Fatal(err)
			}
			column, _ := is.Column("at")
			view := must[*catalog.Snapshot](t)(s.Snapshot(t.Context()))
			defer view.End(t.Context())
			for _, tc := range []struct {
				since, until time.Time
				want         string
			}{
				{since, until, "2 3 null"}, {since, time.Time{}, "2 3 4 5 6 7 8 9 null"}, {time.Time{}, until, "0 1 2 3 null"},
				{time.Time{}, time.Time{}, "0 1 2 3 4 5 6 7 8 9 null"},
			} {
				got := ids(t, view, table, catalog.Between("at", column.BaseTypeOID, tc.since, tc.until))
				if strings.Join(got, " ") != tc.want {
					t.Errorf("%s to %s: %v", tc.since, tc.until, got)
				}
			}
		})
	}
}

func TestUnreadable_NamesWhatIsNotGranted(t *testing.T) {
	db := database(t)
	role := "reader_" + db
	exec(t, db, `CREATE SCHEMA s`, `CREATE TABLE s.outbox (id text, kind text, payload text)`, `CREATE ROLE `+role+` LOGIN`)
	table := catalog.TableName{Schema: "s", Name: "outbox"}
	s := open(t, server.DSNAs(role, "", db))
	denied, noUsage, err := s.Unreadable(t.Context(), table, []string{"id", "kind", "xmin"})
	if err != nil || !noUsage || strings.Join(denied, " ") != "id kind xmin" {
		t.Errorf("got %v %v %v", denied, noUsage, err)
	}
	exec(t, db, `GRANT USAGE ON SCHEMA s TO `+role, `GRANT SELECT (id, xmin) ON s.outbox TO `+role)
	denied, noUsage, err = s.Unreadable(t.Context(), table, []string{"id", "kind", "xmin"})
	if err != nil || noUsage || strings.Join(denied, " ") != "kind" {
		t.Errorf("got %v %v %v", denied, noUsage, err)
	}
	view := must[*catalog.Snapshot](t)(s.Snapshot(t.Context()))
	defer view.End(t.Context())
	if err := view.Each(t.Context(), catalog.Scan{Table: table, Columns: []string{"id"}, Where: view.CommittedSince()}, func([][]byte) error { return nil }); err != nil {
		t.Errorf("with the grant: %v", err)
	}
}

func TestEstimatedRows_OfATableAndOfPartitions(t *testing.T) {
	db := database(t)
	exec(t, db, `CREATE TABLE plain AS SELECT generate_series(1, 1000) AS id`, `CREATE TABLE never (id int)`,
		`CREATE TABLE parts (id int) PARTITION BY RANGE (id)`, `CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)`,
		`CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (300)`, `INSERT INTO parts SELECT generate_series(0, 299)`,
		`ANALYZE plain`, `ANALYZE parts`)
	s := open(t, server.DSN(db))
	for name, want := range map[string]int64{"plain": 1000, "never": -1, "parts": 300} {
		if got, err := s.EstimatedRows(t.Context(), catalog.TableName{Schema: "public", Name: name}); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, want)
		}
	}
}

func TestEndOfRecords_IsWhereAPositionCanBeConfirmed(t *testing.T) {
	const segment = 16 << 20
	for insert, want := range map[pglogrepl.LSN]pglogrepl.LSN{
		0x2000100:        0x2000100,
		0x2002000 + 24:   0x2002000, // behind the header of a page
		0x2002000 + 32:   0x2002000 + 32,
		0x2002000 + 40:   0x2002000 + 40,
		3*segment + 40:   3 * segment, // behind the longer one of a file's first page
		3*segment + 48:   3*segment + 48,
		0x2100000 + 40:   0x2100000 + 40, // the end of a record on a page that is not the first
		0x2100000 + 4096: 0x2100000 + 4096,
	} {
		if got := catalog.EndOfRecords(insert, segment, 8192); got != want {
			t.Errorf("%s: got %s, want %s", insert, got, want)
		}
	}
	if got := catalog.EndOfRecords(0x2002000+24, segment, 16384); got != 0x2002000+24 {
		t.Errorf("in the middle of a larger page: got %s", got)
	}
}
