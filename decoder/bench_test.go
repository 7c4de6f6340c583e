package decoder_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/decoder"
)

func BenchmarkDecode(b *testing.B) {
	columns := []encColumn{{"id", 2950, -1, true}, {"aggregatetype", 1043, -1, false}, {"aggregateid", 1043, -1, false}, {"type", 1043, -1, false}, {"payload", 3802, -1, false}}
	relation := encRelation(16400, "public", "outbox", columns...)
	for _, c := range []struct {
		name  string
		frame []byte
	}{
		{"Begin", encBegin(16, at, 1)},
		{"Insert", encInsert(16400, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "order", "12345", "OrderCreated", strings.Repeat("x", 300))},
		{"Commit", encCommit(16, 48, at)},
		{"Relation", relation},
		{"Message", encMessage(true, 1, "outbox", strings.Repeat("x", 300))},
		{"Skip", []byte("U")},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := decoder.New()
			mustDecode(b, d, relation)
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
