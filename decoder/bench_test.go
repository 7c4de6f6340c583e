package decoder_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/decoder"
)

// benchFrame is a message as it comes.
type benchFrame struct {
	name  string
	frame []byte
}

var benchRelation = encRelation(16400, "public", "outbox",
	encColumn{"id", 2950, -1, true}, encColumn{"aggregatetype", 1043, -1, false}, encColumn{"aggregateid", 1043, -1, false},
	encColumn{"type", 1043, -1, false}, encColumn{"payload", 3802, -1, false})

// steadyFrames are what comes for every transaction or row; relations come once
// per table.
func steadyFrames() []benchFrame {
	insert := func(payload any) []byte {
		return encInsert(16400, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "order", "12345", "OrderCreated", payload)
	}
	return []benchFrame{
		{"Begin", encBegin(16, at, 1)},
		{"Insert", insert(strings.Repeat("x", 300))},
		{"InsertNull", insert(nil)},
		{"InsertLarge", insert(strings.Repeat("x", 64<<10))},
		{"Commit", encCommit(16, 48, at)},
		{"Message", encMessage(true, 1, "outbox", strings.Repeat("x", 300))},
		{"Type", encType(16390, "", "int4")},
		{"Update", []byte("U")},
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range append(steadyFrames(), benchFrame{"Relation", benchRelation}) {
		b.Run(c.name, func(b *testing.B) {
			d := decoder.New()
			mustDecode(b, d, benchRelation)
			b.ReportAllocs()
			b.SetBytes(int64(len(c.frame)))
			for b.Loop() {
				if _, err := d.Decode(c.frame); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestDecoder_SteadyMessagesAllocateNothing(t *testing.T) {
	d := decoder.New()
	mustDecode(t, d, benchRelation)
	for _, c := range steadyFrames() {
		if n := testing.AllocsPerRun(100, func() { mustDecode(t, d, c.frame) }); n != 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}
