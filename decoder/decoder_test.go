package decoder_test

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/decoder"
)

var at = time.Date(2024, 5, 6, 7, 8, 9, 123456000, time.UTC)

// mustDecode decodes frames in order and returns the last event.
func mustDecode(tb testing.TB, d *decoder.Decoder, frames ...[]byte) decoder.Event {
	tb.Helper()
	var ev decoder.Event
	for _, f := range frames {
		var err error
		if ev, err = d.Decode(f); err != nil {
			tb.Fatalf("Decode(%q): %v", f, err)
		}
	}
	return ev
}

func TestDecoder_DecodesWhatWasEncoded(t *testing.T) {
	d := decoder.New()

	ev := mustDecode(t, d, encBegin(0x1_0000_0002, at, 77))
	if want := (decoder.Begin{CommitLSN: 0x1_0000_0002, CommitTime: at.UnixMicro(), XID: 77}); ev.Kind != decoder.KindBegin || ev.Begin != want {
		t.Errorf("begin: got %+v, want %+v", ev, want)
	}
	early := time.Date(1999, 12, 31, 23, 59, 59, 0, time.UTC)
	ev = mustDecode(t, d, encCommit(16, 48, early))
	if want := (decoder.Commit{CommitLSN: 16, EndLSN: 48, CommitTime: early.UnixMicro()}); ev.Kind != decoder.KindCommit || ev.Commit != want {
		t.Errorf("commit: got %+v, want %+v", ev, want)
	}
	ev = mustDecode(t, d, encMessage(true, 99, "prefix", "content\x00"))
	if m := ev.Message; ev.Kind != decoder.KindMessage || !m.Transactional || m.LSN != 99 || string(m.Prefix) != "prefix" || string(m.Content) != "content\x00" {
		t.Errorf("message: got %+v", ev)
	}
	ev = mustDecode(t, d, encRelation(5, "public", "outbox", encColumn{"id", 2950, -1, true}, encColumn{"payload", 17, 8, false}))
	want := &decoder.Relation{OID: 5, Namespace: "public", Name: "outbox", Columns: []decoder.Column{
		{Name: "id", TypeOID: 2950, TypeMod: -1, Key: true}, {Name: "payload", TypeOID: 17, TypeMod: 8},
	}}
	if ev.Kind != decoder.KindRelation || !reflect.DeepEqual(ev.Relation, want) {
		t.Errorf("relation: got %+v, want %+v", ev.Relation, want)
	}
	rel := ev.Relation
	ev = mustDecode(t, d, encInsert(5, "a", nil))
	if ev.Kind != decoder.KindInsert || ev.Row.Relation != rel || len(ev.Row.Values) != 2 ||
		ev.Row.Values[0].Kind != decoder.Text || string(ev.Row.Values[0].Data) != "a" ||
		ev.Row.Values[1].Kind != decoder.Null || ev.Row.Values[1].Data != nil {
		t.Errorf("insert: got %+v", ev.Row)
	}
	ev = mustDecode(t, d, encInsert(5, []byte{1, 2}, 'u'))
	if v := ev.Row.Values; v[0].Kind != decoder.Binary || !bytes.Equal(v[0].Data, []byte{1, 2}) || v[1].Kind != decoder.Unchanged {
		t.Errorf("insert: got %+v", ev.Row)
	}
	ev = mustDecode(t, d, encInsert(5, "", ""))
	if v := ev.Row.Values[0]; v.Data == nil || len(v.Data) != 0 {
		t.Errorf("an empty text must not look like NULL: got %#v", v)
	}
}

func TestDecoder_RelationReplacesTheCachedOne(t *testing.T) {
	d := decoder.New()
	old := mustDecode(t, d, encRelation(5, "s", "a", encColumn{name: "x"})).Relation
	mustDecode(t, d, encInsert(5, "1"))
	frame := encRelation(5, "s", "b", encColumn{name: "y"}, encColumn{name: "z"})
	now := mustDecode(t, d, frame).Relation
	ev := mustDecode(t, d, encInsert(5, "1", "2"))
	if ev.Row.Relation != now || now == old {
		t.Errorf("the row is decoded by %+v, want %+v", ev.Row.Relation, now)
	}
	again := mustDecode(t, d, frame).Relation
	if again == now {
		t.Error("a repetition must make a new relation")
	}
	clear(frame)
	if again.Name != "b" || again.Columns[1].Name != "z" {
		t.Errorf("the relation points into the frame: %+v", again)
	}
}

func TestDecoder_ResetForgetsRelations(t *testing.T) {
	d := decoder.New()
	mustDecode(t, d, encRelation(5, "s", "a", encColumn{name: "x"}), encInsert(5, "1"))
	d.Reset()
	if _, err := d.Decode(encInsert(5, "1")); err == nil {
		t.Error("a row was decoded by a relation of the connection before")
	}
}

func TestDecoder_DomainIsReadAsItsBaseType(t *testing.T) {
	d := decoder.New()
	rel := mustDecode(t, d,
		encType(90001, "", "bytea"),
		encType(90002, "public", "bytea"), // a type of that name, not the built-in one
		encType(90003, "", "text"),
		encType(90004, "", "json"),
		encType(90005, "", "jsonb"),
		encRelation(5, "s", "a", encColumn{name: "x", oid: 90001}, encColumn{name: "y", oid: 90002}, encColumn{name: "z", oid: 90003},
			encColumn{name: "j", oid: 90004}, encColumn{name: "jb", oid: 90005}),
	).Relation
	var got []uint32
	for _, c := range rel.Columns {
		got = append(got, c.TypeOID)
	}
	if want := []uint32{17, 90002, 90003, 114, 3802}; !reflect.DeepEqual(got, want) {
		t.Errorf("types: got %v, want %v", got, want)
	}
}

func TestDecoder_SkipsByPolicy(t *testing.T) {
	d := decoder.New()
	for _, frame := range []string{"U\x00", "D", "T\x00\x00\x00\x01", "O", "A\x00\x00\x00\x01\x00\x00\x00\x02", "S\x00\x00\x00\x01\x01", "E", "c\x00"} {
		if ev := mustDecode(t, d, []byte(frame)); ev.Kind != decoder.KindSkip {
			t.Errorf("%q: got kind %d, want skip", frame, ev.Kind)
		}
	}
}

func TestDecoder_StreamedBlockIsRefusedNotMisread(t *testing.T) {
	d := decoder.New()
	mustDecode(t, d, encRelation(5, "s", "a", encColumn{name: "x"}), []byte("S\x00\x00\x00\x07\x01"))
	_, err := d.Decode(encInsert(5, "1"))
	wantError(t, err, 'I', "streaming was not asked for")
	mustDecode(t, d, []byte("E"), encInsert(5, "1"))
}

func wantError(t *testing.T, err error, kind byte, text string) {
	t.Helper()
	var e *decoder.Error
	if !errors.As(err, &e) || e.Kind != kind || !strings.Contains(e.Reason, text) {
		t.Errorf("got error %#v, want one of kind %q with %q", err, kind, text)
	}
	if err != nil && strings.Contains(err.Error(), "secret") {
		t.Errorf("the error shows data of a row: %v", err)
	}
}

func TestDecoder_RefusesWhatItCannotTrust(t *testing.T) {
	rel := encRelation(5, "s", "a", encColumn{name: "x"}, encColumn{name: "y"})
	late := encBegin(1, at, 1)
	be.PutUint64(late[9:], math.MaxInt64)
	flagged := encCommit(16, 48, at)
	flagged[1] = 4
	oddMessage := encMessage(true, 1, "p", "secret")
	oddMessage[1] = 2
	hugeContent := be.AppendUint32([]byte("M\x00\x00\x00\x00\x00\x00\x00\x00\x01p\x00"), math.MaxUint32)
	hugeValue := append(encInsert(5)[:6], 0, 2, 'n', 't', 0xff, 0xff, 0xff, 0xff)
	manyColumns := append([]byte("R\x00\x00\x00\x05s\x00a\x00d\xff\xff"), make([]byte, 100)...)
	oldRow := encInsert(5, "secret", "secret")
	oldRow[5] = 'O'
	for name, c := range map[string]struct {
		frame []byte
		text  string
	}{
		"empty message":            {nil, "empty"},
		"unknown message":          {[]byte("Xsecret"), "unknown message type 0x58"},
		"begin without LSN":        {encBegin(0, at, 1), "the commit LSN is zero"},
		"begin after the end":      {late, "out of range"},
		"begin with more":          {append(encBegin(1, at, 1), 0), "1 bytes are left over"},
		"commit with flags":        {flagged, "unknown flags 0x04"},
		"commit that ends early":   {encCommit(48, 48, at), "is not after the commit LSN"},
		"commit without LSN":       {encCommit(0, 48, at), "is not after the commit LSN"},
		"message with flags":       {oddMessage, "unknown flags"},
		"message with huge length": {hugeContent, "short of a field of 4294967295 bytes"},
		"message without prefix":   {[]byte("M\x00\x00\x00\x00\x00\x00\x00\x00\x01secret"), "a name has no end"},
		"relation, many columns":   {manyColumns, "announces 65535 columns"},
		"relation with more":       {append(bytes.Clone(rel), 1, 2), "2 bytes are left over"},
		"insert, unknown relation": {encInsert(6, "secret"), "relation 6, which the server has not described"},
		"insert, too few values":   {encInsert(5, "secret"), "has 1 values, but the relation has 2 columns"},
		"insert, too many values":  {encInsert(5, "secret", "secret", nil), "has 3 values, but the relation has 2 columns"},
		"insert of an old row":     {oldRow, "where the new row should begin"},
		"insert, huge value":       {hugeValue, "short of a field of 4294967295 bytes"},
		"insert, odd value":        {encInsert(5, 'z', nil), "unknown kind 0x7a of a value"},
		"insert with more":         {append(encInsert(5, "secret", nil), "secret"...), "6 bytes are left over"},
		"prepared begin":           {[]byte("b"), "two-phase"},
		"prepare":                  {[]byte("P"), "two-phase"},
		"commit prepared":          {[]byte("K"), "two-phase"},
		"rollback prepared":        {[]byte("r"), "two-phase"},
		"stream prepare":           {[]byte("p"), "two-phase"},
	} {
		t.Run(name, func(t *testing.T) {
			d := decoder.New()
			mustDecode(t, d, rel)
			ev, err := d.Decode(c.frame)
			var kind byte
			if len(c.frame) > 0 {
				kind = c.frame[0]
			}
			wantError(t, err, kind, c.text)
			if !reflect.DeepEqual(ev, decoder.Event{}) {
				t.Errorf("an event came with the error: %+v", ev)
			}
			mustDecode(t, d, encInsert(5, "still", "works"))
		})
	}
}

func TestDecoder_EveryTruncationIsAnError(t *testing.T) {
	for _, c := range captures(t) {
		d := decoder.New()
		for _, f := range c.Frames {
			frame := f.bytes(t)
			if !strings.ContainsRune("BCIRMY", rune(frame[0])) {
				continue
			}
			scratch := decoder.New() // so that a cut message leaves no trace
			for n := range len(frame) {
				if frame[0] == 'I' && n > 300 {
					break
				}
				if _, err := scratch.Decode(frame[:n]); err == nil {
					t.Fatalf("the first %d of %d bytes of %q were accepted", n, len(frame), frame[0])
				}
				if frame[0] == 'I' {
					if _, err := d.Decode(frame[:n]); err == nil {
						t.Fatalf("the first %d of %d bytes of a row were accepted", n, len(frame))
					}
				}
			}
			mustDecode(t, d, frame)
		}
	}
}

func TestDecoder_InsertAllocatesNothing(t *testing.T) {
	d := decoder.New()
	mustDecode(t, d, encRelation(5, "s", "a", encColumn{name: "x"}, encColumn{name: "y"}))
	for name, frame := range map[string][]byte{
		"begin": encBegin(16, at, 1), "insert": encInsert(5, "1", nil), "commit": encCommit(16, 48, at),
		"message": encMessage(true, 1, "p", "c"), "skip": []byte("U"),
	} {
		if n := testing.AllocsPerRun(100, func() { mustDecode(t, d, frame) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
