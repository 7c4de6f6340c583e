package backfill

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

const (
	oidBytea, oidText = 17, 25
)

func outbox() route.Table {
	return route.Table{Schema: "public", Name: "outbox", ID: "id", Key: "k", Payload: "body", Topic: "t", Position: true}
}

// keeper keeps what is published, in words.
type keeper struct {
	sink.Sink
	got  []string
	last sink.Record
}

func (k *keeper) Publish(_ context.Context, rec *sink.Record, ack sink.Ack) error {
	text := func(b []byte) string {
		if b == nil {
			return "null"
		}
		return fmt.Sprintf("%q", b)
	}
	var headers []string
	for _, h := range rec.Headers {
		headers = append(headers, h.Key+"="+text(h.Value))
	}
	k.got = append(k.got, text(rec.Key)+" "+text(rec.Value)+" "+strings.Join(headers, " "))
	k.last = *rec
	ack.To.Done([]sink.Acked{{N: 1}})
	return nil
}

func newRows(t *testing.T, tables ...route.Table) *Rows {
	t.Helper()
	r, err := New(Config{Tables: tables, OrderBy: "at"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRows_AreRoutedAsTheStreamDoes(t *testing.T) {
	r := newRows(t, outbox())
	rel := &decoder.Relation{OID: 1, Namespace: "public", Name: "outbox",
		Columns: []decoder.Column{{Name: "id", TypeOID: oidText}, {Name: "k", TypeOID: oidText}, {Name: "body", TypeOID: oidBytea}}}
	k := &keeper{}
	tx := route.Tx{CommitLSN: 0xAB_0000_00CD, CommitTime: 1_700_000_000_123_999, Table: true}
	for _, row := range [][][]byte{
		{[]byte("1"), []byte("key"), []byte(`\x00ff`)}, {[]byte("2"), nil, nil}, {[]byte("3"), {}, []byte(`\x`)},
	} {
		if err := r.row(t.Context(), k, rel, row, place{tx: tx, mark: []byte("000000AB000000EE")}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		`"key" "\x00\xff" id="1" lsn="000000AB000000CD" seq="0" backfilled="000000AB000000EE"`,
		`null null id="2" lsn="000000AB000000CD" seq="1" backfilled="000000AB000000EE"`,
		`"" "" id="3" lsn="000000AB000000CD" seq="2" backfilled="000000AB000000EE"`,
	}
	for i := range want {
		if k.got[i] != want[i] {
			t.Errorf("got  %s\nwant %s", k.got[i], want[i])
		}
	}
	if k.last.LSN != pglogrepl.LSN(0xAB_0000_00CD) || k.last.Timestamp != 1_700_000_000_123 || r.acked.Load() != 3 || r.seq != 3 {
		t.Errorf("record %+v, %d acked, %d sent", k.last, r.acked.Load(), r.seq)
	}
}

func TestRows_OneThatCannotBeRoutedEndsIt(t *testing.T) {
	r := newRows(t, outbox())
	rel := &decoder.Relation{OID: 1, Namespace: "public", Name: "outbox",
		Columns: []decoder.Column{{Name: "id", TypeOID: oidText}, {Name: "k", TypeOID: oidText}, {Name: "body", TypeOID: oidText}}}
	err := r.row(t.Context(), &keeper{}, rel, [][]byte{nil, []byte("k"), []byte("secret")}, place{tx: route.Tx{CommitLSN: 9, Table: true}})
	if fault.ClassOf(err) != fault.Stop || r.seq != 0 {
		t.Fatalf("got %v", err)
	}
	for _, word := range []string{"row 0", "public.outbox", `column "id"`, "--where"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("no %q in: %v", word, err)
		}
	}
	if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "committed at") {
		t.Errorf("it says what it must not: %v", err)
	}
}

func TestNew_WantsAnOrderAndItsHeader(t *testing.T) {
	timed, taken := outbox(), outbox()
	timed.Timestamp, timed.Name = "created", "timed"
	taken.Headers = []route.HeaderColumn{{Column: "x", Header: Header}}
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"no order":       {Config{Tables: []route.Table{timed, outbox()}}, "--order-by"},
		"timestamp":      {Config{Tables: []route.Table{timed}}, ""},
		"named":          {Config{Tables: []route.Table{outbox()}, OrderBy: "at"}, ""},
		"header is used": {Config{Tables: []route.Table{taken}, OrderBy: "at"}, `the header "backfilled"`},
		"no table":       {Config{OrderBy: "at"}, "no outbox table"},
	} {
		c.cfg.Now = time.Now
		r, err := New(c.cfg)
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v", name, err)
		case c.want == "" && r.sources[0].query.OrderBy[1] != "id":
			t.Errorf("%s: ordered by %v", name, r.sources[0].query.OrderBy)
		}
	}
}

// TestRows_ChooseAndGoOnBehindPoison: of a batch only what is wanted is published,
// and one row that cannot be routed does not hold up the others.
func TestRows_ChooseAndGoOnBehindPoison(t *testing.T) {
	r := newRows(t, outbox())
	r.cfg.Also = "again"
	rel := &decoder.Relation{OID: 1, Namespace: "public", Name: "outbox",
		Columns: []decoder.Column{{Name: "id", TypeOID: oidText}, {Name: "k", TypeOID: oidText}, {Name: "body", TypeOID: oidText}}}
	k, poisoned := &keeper{}, 0
	at := place{tx: route.Tx{CommitLSN: 9, Table: true}, mark: []byte("x"),
		poison: func([]byte, error) error { poisoned++; return nil },
		wanted: func(_ decoder.Row, rec *sink.Record) (bool, error) { return string(rec.ID) != "2", nil }}
	for _, id := range []string{"1", "2", "", "3"} {
		row := [][]byte{[]byte(id), nil, nil}
		if id == "" {
			row[0] = nil
		}
		if err := r.row(t.Context(), k, rel, row, at); err != nil {
			t.Fatal(err)
		}
	}
	want := `null null id="1" lsn="0000000000000009" seq="0" backfilled="x" again="x"; null null id="3" lsn="0000000000000009" seq="1" backfilled="x" again="x"`
	if got := strings.Join(k.got, "; "); got != want || poisoned != 1 {
		t.Errorf("%d poisoned, got %s", poisoned, got)
	}
	if read, published, acked := r.Counts(); read != 4 || published != 2 || acked != 2 {
		t.Errorf("%d read, %d published, %d acked", read, published, acked)
	}
}

func TestRows_HasIDWritesTheIDAsItsTypeDoes(t *testing.T) {
	r := newRows(t, outbox())
	ids := [][]byte{[]byte("it's"), []byte(`a\b`), {0xff, 0}}
	for typ, want := range map[uint32]string{oidText: `"id" IN ('it''s',  E'a\\b', '` + "\xff" + `')`, oidBytea: `"id" IN ( E'\\x69742773',  E'\\x615c62',  E'\\xff00')`} {
		r.sources[0].relation = &decoder.Relation{Columns: []decoder.Column{{Name: "id", TypeOID: typ}}}
		if got := r.hasID(0, ids); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
