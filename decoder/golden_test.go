package decoder_test

import (
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/decoder"
)

// decoded is one transaction as the decoder saw it.
type decoded struct {
	begin decoder.Begin
	rows  int
}

// TestDecoder_AgreesWithSQL decodes captured streams and compares every value
// with what SELECT printed, and transactions with what test_decoding said.
func TestDecoder_AgreesWithSQL(t *testing.T) {
	for _, c := range captures(t) {
		t.Run(c.Server, func(t *testing.T) {
			d := decoder.New()
			rows := make(map[string][]map[string]*string)
			var txs []decoded
			var open *decoded
			for _, f := range c.Frames {
				ev := mustDecode(t, d, f.bytes(t))
				switch ev.Kind {
				case decoder.KindBegin:
					if open != nil {
						t.Fatal("a transaction begins inside of another")
					}
					open = &decoded{begin: ev.Begin}
				case decoder.KindInsert:
					open.rows++
					name := ev.Row.Relation.Namespace + "." + ev.Row.Relation.Name
					rows[name] = append(rows[name], named(ev.Row))
				case decoder.KindCommit:
					checkCommit(t, open.begin, ev.Commit, f.LSN)
					if open.rows > 0 {
						txs = append(txs, *open)
					}
					open = nil
				}
			}
			compareTransactions(t, txs, c.Transactions)
			for table, key := range map[string]string{
				"every_type": "public.every_type", "events": "public.events", "parts": "public.parts",
				`"Quoted Schema"."Quoted ""Table"""`: `Quoted Schema.Quoted "Table"`,
			} {
				compareRows(t, c, table, rows[key])
			}
		})
	}
}

func named(row decoder.Row) map[string]*string {
	m := make(map[string]*string)
	for i, v := range row.Values {
		m[row.Relation.Columns[i].Name] = nil
		if v.Kind == decoder.Text {
			s := string(v.Data)
			m[row.Relation.Columns[i].Name] = &s
		}
	}
	return m
}

func checkCommit(t *testing.T, b decoder.Begin, c decoder.Commit, lsn string) {
	t.Helper()
	if c.CommitLSN != b.CommitLSN || c.CommitTime != b.CommitTime {
		t.Errorf("commit %+v does not belong to begin %+v", c, b)
	}
	// The server writes a commit at the end of its record.
	if end, err := pglogrepl.ParseLSN(lsn); err != nil || c.EndLSN != end {
		t.Errorf("end LSN %s, want %s", c.EndLSN, lsn)
	}
}

func compareTransactions(t *testing.T, got []decoded, want []transaction) {
	t.Helper()
	if len(got) != len(want) || len(want) == 0 {
		t.Fatalf("%d transactions with rows, want %d", len(got), len(want))
	}
	for i, w := range want {
		if g := got[i]; g.begin.XID != w.XID || g.rows != w.Inserts || g.begin.CommitTime != w.Time.UnixMicro() {
			t.Errorf("transaction %d: got %+v, want %+v", i, g, w)
		}
	}
}

func compareRows(t *testing.T, c capture, table string, got []map[string]*string) {
	t.Helper()
	for _, want := range c.Tables {
		if want.Name != table {
			continue
		}
		if len(got) != len(want.Rows) || len(got) == 0 {
			t.Fatalf("%s: %d rows decoded, want %d", table, len(got), len(want.Rows))
		}
		for i, row := range want.Rows {
			for j, column := range want.Columns {
				g, ok := got[i][column]
				switch w := row[j]; {
				case !ok:
					t.Errorf("%s: row %d has no column %s", table, i, column)
				case (g == nil) != (w == nil) || g != nil && *g != *w:
					t.Errorf("%s: row %d column %s: decoded %v, want %v", table, i, column, text(g), text(w))
				}
			}
		}
		return
	}
	t.Errorf("no table %s was captured", table)
}

func text(s *string) string {
	if s == nil {
		return "NULL"
	}
	return *s
}

func TestDecoder_CapturedDomainsAreReadAsTheirBaseTypes(t *testing.T) {
	for _, c := range captures(t) {
		d := decoder.New()
		types := make(map[string]uint32)
		for _, f := range c.Frames {
			if ev := mustDecode(t, d, f.bytes(t)); ev.Kind == decoder.KindRelation {
				for _, column := range ev.Relation.Columns {
					types[column.Name] = column.TypeOID
				}
			}
		}
		if types["domba"] != 17 || types["domts"] != 1184 {
			t.Errorf("server %s: domain over bytea has type %d, over timestamptz %d", c.Server, types["domba"], types["domts"])
		}
	}
}
