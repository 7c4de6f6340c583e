package catalog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
)

func marking(column, value string) catalog.Marking {
	return catalog.Marking{Table: catalog.TableName{Schema: "public", Name: "o"}, ID: "id", Column: column, Value: value}
}

func TestMarking_SetsTheColumnOfTheseRowsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		make  []string
		value string
		ids   []string
		want  string // ids that are marked
	}{
		"text":        {[]string{"CREATE TABLE o (id text PRIMARY KEY, s text)", `INSERT INTO o VALUES ('a,b', 'p'), ('c"d', NULL), ('e''f\', 'p'), ('', 'p'), ('NULL', 'p'), ('x', 'p')`}, `com'pl\eted`, []string{"a,b", `c"d`, `e'f\`, "", "NULL", "gone"}, `|NULL|a,b|c"d|e'f\`},
		"uuid":        {[]string{"CREATE TABLE o (id uuid PRIMARY KEY, s boolean)", "INSERT INTO o VALUES ('7f3c0000-0000-0000-0000-000000000001', false), ('7f3c0000-0000-0000-0000-000000000002', false)"}, "true", []string{"7f3c0000-0000-0000-0000-000000000001"}, "7f3c0000-0000-0000-0000-000000000001"},
		"bigint":      {[]string{"CREATE TABLE o (id bigint PRIMARY KEY, s smallint)", "INSERT INTO o VALUES (1, 0), (2, 0), (3, 2)"}, "2", []string{"1"}, "1|3"},
		"char":        {[]string{"CREATE TABLE o (id char(8) PRIMARY KEY, s varchar(9))", "INSERT INTO o VALUES ('abc', 'pending'), ('abd', 'pending')"}, "completed", []string{"abc     "}, "abc"},
		"bytea":       {[]string{"CREATE TABLE o (id bytea PRIMARY KEY, s text)", `INSERT INTO o VALUES ('\x00ff', 'p'), ('\x00fe', 'p')`}, "d", []string{`\x00ff`}, `\x00ff`},
		"enum":        {[]string{"CREATE TYPE \"St\" AS ENUM ('pending', 'done')", "CREATE TABLE o (id int PRIMARY KEY, s \"St\")", "INSERT INTO o VALUES (1, 'pending'), (2, 'pending')"}, "done", []string{"2"}, "2"},
		"domain":      {[]string{"CREATE DOMAIN st AS text CHECK (VALUE <> 'bad')", "CREATE DOMAIN num AS int", "CREATE TABLE o (id num PRIMARY KEY, s st)", "INSERT INTO o VALUES (1, 'p'), (2, 'p')"}, "done", []string{"2"}, "2"},
		"timestamp":   {[]string{"CREATE TABLE o (id timestamp PRIMARY KEY, s date)", "INSERT INTO o VALUES ('2026-01-01 00:00:00.123456'), ('2026-01-02')"}, "2026-05-01", []string{"2026-01-01 00:00:00.123456"}, "2026-01-01 00:00:00.123456"},
		"partitioned": {[]string{"CREATE TABLE o (id int, day int, s text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)", "CREATE TABLE o1 PARTITION OF o FOR VALUES FROM (0) TO (1)", "CREATE TABLE o2 PARTITION OF o FOR VALUES FROM (1) TO (2) PARTITION BY LIST (day)", "CREATE TABLE o21 PARTITION OF o2 DEFAULT", "INSERT INTO o VALUES (1, 0, 'p'), (2, 1, 'p'), (3, 1, 'p')"}, "done", []string{"1", "3"}, "1|3"},
		"inherited":   {[]string{"CREATE TABLE o (id int PRIMARY KEY, s text)", "CREATE TABLE heir () INHERITS (o)", "INSERT INTO o VALUES (1, 'p')", "INSERT INTO heir VALUES (1, 'p'), (2, 'p')"}, "done", []string{"1"}, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			db := database(t, c.make...)
			s := open(t, server.DSN(db))
			if err := s.BeginMarking(t.Context(), time.Second, time.Minute); err != nil {
				t.Fatal(err)
			}
			o := must[catalog.MarkedTable](t)(s.MarkedTable(t.Context(), marking("s", c.value)))
			if !o.Indexed {
				t.Error("the primary key is no index")
			}
			first := must[int64](t)(s.MarkRows(t.Context(), o, c.ids))
			again := must[int64](t)(s.MarkRows(t.Context(), o, c.ids))
			if first == 0 || again != 0 {
				t.Errorf("%d rows were marked, and %d once more", first, again)
			}
			got := text(t, db, "SELECT coalesce(string_agg(id::text, '|' ORDER BY id::text COLLATE \"C\"), '') FROM o WHERE s::text = "+catalog.Literal(c.value))
			if got != c.want {
				t.Errorf("marked: %q, want %q", got, c.want)
			}
		})
	}
}

func TestMarking_NamesWhatIsInTheWay(t *testing.T) {
	for name, c := range map[string]struct {
		make          []string
		column, value string
		want          string
	}{
		"no table":           {nil, "s", "d", "does not exist"},
		"no column":          {[]string{"CREATE TABLE o (id int)"}, "s", "d", `has no column "s"`},
		"no id":              {[]string{"CREATE TABLE o (s text)"}, "s", "d", `has no column "id"`},
		"generated":          {[]string{"CREATE TABLE o (id int, s int GENERATED ALWAYS AS (id) STORED)"}, "s", "1", "generated"},
		"value":              {[]string{"CREATE TABLE o (id int, s int)"}, "s", "done", `does not take the value "done"`},
		"label":              {[]string{"CREATE TYPE st AS ENUM ('pending')", "CREATE TABLE o (id int, s st)"}, "s", "done", `does not take the value "done"`},
		"too long":           {[]string{"CREATE TABLE o (id int, s varchar(5))"}, "s", "completed", "does not take the value"},
		"domain":             {[]string{"CREATE DOMAIN st AS text CHECK (VALUE <> 'bad')", "CREATE TABLE o (id int, s st)"}, "s", "bad", "does not take the value"},
		"not comparable":     {[]string{"CREATE TABLE o (id int, s json)"}, "s", "{}", "cannot be compared"},
		"partition key":      {[]string{"CREATE TABLE o (id int, s text) PARTITION BY LIST (s)"}, "s", "d", "another partition"},
		"in an expression":   {[]string{"CREATE TABLE o (id int, s text) PARTITION BY LIST ((lower(s)))"}, "s", "d", "another partition"},
		"of a subpartition":  {[]string{"CREATE TABLE o (id int, s text) PARTITION BY LIST (id)", "CREATE TABLE o1 (s text, x int, id int) PARTITION BY LIST (s)", "ALTER TABLE o1 DROP x", "ALTER TABLE o ATTACH PARTITION o1 DEFAULT"}, "s", "d", "another partition"},
		"no privilege":       {[]string{"CREATE TABLE o (id int, s text)", "GRANT SELECT ON o TO marker"}, "s", "d", `GRANT SELECT ("id", "s"), UPDATE ("s") ON "public"."o" TO "marker"`},
		"privilege is there": {[]string{"CREATE TABLE o (id int, s text, other text)", `GRANT SELECT ("id", "s"), UPDATE ("s") ON "public"."o" TO "marker"`}, "s", "d", ""},
	} {
		t.Run(name, func(t *testing.T) {
			db := database(t, "DO $$ BEGIN CREATE ROLE marker; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
			exec(t, db, c.make...)
			s := open(t, server.DSN(db))
			if strings.Contains(name, "privilege") {
				if err := s.Exec(t.Context(), "SET ROLE marker"); err != nil {
					t.Fatal(err)
				}
			}
			o, err := s.MarkedTable(t.Context(), marking(c.column, c.value))
			if c.want == "" {
				if err != nil || o.Indexed {
					t.Fatalf("indexed %t, %v", o.Indexed, err)
				}
				_ = must[int64](t)(s.MarkRows(t.Context(), o, []string{"1"}))
				return
			}
			if fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestMarking_ExplainsWhatFails(t *testing.T) {
	db := database(t, "CREATE ROLE blind", "CREATE TABLE o (id int PRIMARY KEY, s text CHECK (s <> 'no'))", "INSERT INTO o VALUES (1, 'p'), (2, 'p')", "GRANT SELECT, UPDATE ON o TO blind")
	s, other := open(t, server.DSN(db)), open(t, server.DSN(db))
	if err := s.BeginMarking(t.Context(), 50*time.Millisecond, time.Minute); err != nil {
		t.Fatal(err)
	}
	o := must[catalog.MarkedTable](t)(s.MarkedTable(t.Context(), marking("s", "d")))
	no := must[catalog.MarkedTable](t)(s.MarkedTable(t.Context(), marking("s", "no")))
	if _, err := s.MarkRows(t.Context(), no, []string{"1"}); fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), "constraints") {
		t.Errorf("a value that the table does not take: %v", err)
	}
	if err := other.Exec(t.Context(), "BEGIN; SELECT FROM public.o WHERE id = 2 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.MarkRows(t.Context(), o, []string{"1", "2"}); !catalog.IsLocked(err) || fault.ClassOf(err) != fault.Retry || !strings.Contains(err.Error(), "holds a lock") {
		t.Errorf("a locked row: %v", err)
	}
	if err := other.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "ALTER TABLE o DROP CONSTRAINT o_pkey", "CREATE PUBLICATION p FOR TABLE o")
	if _, err := s.MarkRows(t.Context(), o, []string{"1"}); !strings.Contains(err.Error(), "REPLICA IDENTITY") {
		t.Errorf("a table whose updates are published elsewhere: %v", err)
	}
	exec(t, db, "DROP PUBLICATION p", "ALTER TABLE o ENABLE ROW LEVEL SECURITY")
	if err := s.Exec(t.Context(), "SET ROLE blind"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.MarkRows(t.Context(), o, []string{"1"}); fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), "BYPASSRLS") {
		t.Errorf("with rows that the role does not see: %v", err)
	}
}

// A position is confirmed on what is marked, so that it must be on disk.
func TestMarking_NoSettingOfTheDatabaseMakesItForgetful(t *testing.T) {
	db := database(t)
	exec(t, db, "ALTER DATABASE "+db+" SET synchronous_commit = off", "ALTER DATABASE "+db+" SET row_security = on")
	s := open(t, server.DSN(db))
	if err := s.BeginMarking(t.Context(), time.Second, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := s.Exec(t.Context(), "SELECT 1 / (current_setting('synchronous_commit') = 'on' AND current_setting('row_security') = 'off')::int"); err != nil {
		t.Error(err)
	}
}
