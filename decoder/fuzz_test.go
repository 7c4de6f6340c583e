package decoder_test

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/decoder"
)

// check decodes frame once on its own and once at the start of a larger buffer,
// and asserts what must hold for any bytes: the same result, an *Error or an
// event of the message's kind, and agreement with another decoder.
func check(t *testing.T, fresh func() *decoder.Decoder, frame []byte, kind decoder.Kind) {
	t.Helper()
	exact := bytes.Clone(frame)[:len(frame):len(frame)]
	ev, err := fresh().Decode(exact)
	if !bytes.Equal(exact, frame) {
		t.Fatal("Decode changed the frame")
	}
	larger := append(bytes.Clone(frame), bytes.Repeat([]byte{0, 't', 0xff}, 64)...)
	again, errAgain := fresh().Decode(larger[:len(frame)])
	if !reflect.DeepEqual(err, errAgain) || !reflect.DeepEqual(ev, again) {
		t.Fatalf("the result depends on bytes after the frame: %+v, %v; %+v, %v", ev, err, again, errAgain)
	}
	if err != nil {
		var e *decoder.Error
		if !errors.As(err, &e) || e.Offset > len(frame) {
			t.Fatalf("got error %#v", err)
		}
		return
	}
	if ev.Kind != kind {
		t.Fatalf("got kind %d, want %d", ev.Kind, kind)
	}
	for _, v := range ev.Row.Values {
		if cap(v.Data) != len(v.Data) {
			t.Fatal("appending to a value would write into the frame")
		}
	}
	agree(t, ev, exact)
}

// agree compares with pglogrepl, which has no checks of its own: what this
// decoder accepts must not make that one panic, and must mean the same.
func agree(t *testing.T, ev decoder.Event, frame []byte) {
	t.Helper()
	if ev.Kind == decoder.KindSkip {
		return
	}
	m, err := pglogrepl.Parse(frame)
	if err != nil {
		t.Fatalf("pglogrepl refuses what was accepted: %v", err)
	}
	switch m := m.(type) {
	case *pglogrepl.BeginMessage:
		if m.FinalLSN != ev.Begin.CommitLSN || m.Xid != ev.Begin.XID {
			t.Fatalf("got %+v, pglogrepl %+v", ev.Begin, m)
		}
	case *pglogrepl.CommitMessage:
		if m.CommitLSN != ev.Commit.CommitLSN || m.TransactionEndLSN != ev.Commit.EndLSN {
			t.Fatalf("got %+v, pglogrepl %+v", ev.Commit, m)
		}
	case *pglogrepl.LogicalDecodingMessage:
		if m.LSN != ev.Message.LSN || m.Prefix != string(ev.Message.Prefix) || !bytes.Equal(m.Content, ev.Message.Content) {
			t.Fatalf("got %+v, pglogrepl %+v", ev.Message, m)
		}
	case *pglogrepl.RelationMessage:
		if m.RelationID != ev.Relation.OID || m.RelationName != ev.Relation.Name || len(m.Columns) != len(ev.Relation.Columns) {
			t.Fatalf("got %+v, pglogrepl %+v", ev.Relation, m)
		}
		for i, c := range m.Columns {
			if g := ev.Relation.Columns[i]; c.Name != g.Name || c.DataType != g.TypeOID || c.TypeModifier != g.TypeMod {
				t.Fatalf("column %d: got %+v, pglogrepl %+v", i, g, c)
			}
		}
	case *pglogrepl.InsertMessage:
		if m.RelationID != ev.Row.Relation.OID || len(m.Tuple.Columns) != len(ev.Row.Values) {
			t.Fatalf("got %+v, pglogrepl %+v", ev.Row, m)
		}
		for i, c := range m.Tuple.Columns {
			if g := ev.Row.Values[i]; c.DataType != uint8(g.Kind) || !bytes.Equal(c.Data, g.Data) {
				t.Fatalf("value %d: got %+v, pglogrepl %+v", i, g, c)
			}
		}
	default:
		t.Fatalf("pglogrepl read a %T", m)
	}
}

func fuzzKind(f *testing.F, first byte, kind decoder.Kind, fresh func() *decoder.Decoder) {
	for _, frame := range seeds(f, first) {
		f.Add(frame[1:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		check(t, fresh, append([]byte{first}, body...), kind)
	})
}

func FuzzBegin(f *testing.F)    { fuzzKind(f, 'B', decoder.KindBegin, decoder.New) }
func FuzzCommit(f *testing.F)   { fuzzKind(f, 'C', decoder.KindCommit, decoder.New) }
func FuzzMessage(f *testing.F)  { fuzzKind(f, 'M', decoder.KindMessage, decoder.New) }
func FuzzRelation(f *testing.F) { fuzzKind(f, 'R', decoder.KindRelation, decoder.New) }
func FuzzType(f *testing.F)     { fuzzKind(f, 'Y', decoder.KindSkip, decoder.New) }

// FuzzInsert decodes rows of every relation that was captured.
func FuzzInsert(f *testing.F) {
	relations := seeds(f, 'R')
	fuzzKind(f, 'I', decoder.KindInsert, func() *decoder.Decoder {
		d := decoder.New()
		for _, r := range relations {
			if _, err := d.Decode(r); err != nil {
				panic(err)
			}
		}
		return d
	})
}

// FuzzDecode decodes sequences: each frame is preceded by its length in two
// bytes. A failed frame must leave the decoder usable and its relations alone.
func FuzzDecode(f *testing.F) {
	for _, c := range captures(f) {
		var all []byte
		for _, fr := range c.Frames {
			b := fr.bytes(f)
			one := append(be.AppendUint16(nil, uint16(len(b))), b...)
			all = append(all, one...)
			f.Add(one)
		}
		f.Add(all)
	}
	probe := encInsert(4242, "a", nil)
	f.Fuzz(func(t *testing.T, seq []byte) {
		d := decoder.New()
		rel := mustDecode(t, d, encRelation(4242, "s", "t", encColumn{name: "a"}, encColumn{name: "b"})).Relation
		for len(seq) >= 2 {
			n := min(int(be.Uint16(seq)), len(seq)-2)
			frame := seq[2 : 2+n : 2+n]
			seq = seq[2+n:]
			ev, err := d.Decode(frame)
			if err != nil && !reflect.DeepEqual(ev, decoder.Event{}) {
				t.Fatalf("event %+v with error %v", ev, err)
			}
			if ev.Kind == decoder.KindRelation && ev.Relation.OID == rel.OID {
				return
			}
		}
		// The input may have opened a streamed block.
		ev := mustDecode(t, d, []byte("E"), probe)
		if ev.Row.Relation != rel {
			t.Fatal("another message replaced the relation")
		}
	})
}
