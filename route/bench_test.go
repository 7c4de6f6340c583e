package route_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// shapes are mappings whose rows alternate between two topics.
func shapes(tb testing.TB) map[string]func(seq uint32) error {
	plain := debeziumRelation()
	payload := strings.Repeat("x", 300)
	full := debezium()
	full.Timestamp, full.Partition = "at", "n"
	full.Headers = []route.HeaderColumn{{Column: "extra", Header: "extra"}}
	bytea := relation("id", tBytea, "aggregatetype", tText, "aggregateid", tBytea, "type", tText, "payload", tBytea, "at", tTimestampTZ, "n", tInt4, "extra", tText)
	hex := `\x` + strings.Repeat("00ff", 150)
	step := func(t route.Table, rel *decoder.Relation, rows ...decoder.Row) func(uint32) error {
		r := compile(tb, t, rel)
		rec := new(sink.Record)
		return func(seq uint32) error {
			_, err := r.Route(commit, seq, rows[int(seq)%len(rows)], rec)
			return err
		}
	}
	return map[string]func(uint32) error{
		"Default": step(debezium(), plain,
			row(plain, payload, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", nil, "order", "12345", "OrderCreated"),
			row(plain, nil, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12", nil, "invoice", nil, nil)),
		"Everything": step(full, bytea,
			row(bytea, `\x01`, "order", `\x0203`, "t", hex, "2024-05-06 07:08:09.123456+00", "3", "e"),
			row(bytea, `\x01`, "invoice", nil, nil, hex, nil, nil, nil)),
	}
}

func TestRoute_AllocatesNothing(t *testing.T) { allocatesNothing(t, shapes(t)) }

func allocatesNothing(t *testing.T, shapes map[string]func(seq uint32) error) {
	t.Helper()
	for name, next := range shapes {
		seq := uint32(0)
		if n := testing.AllocsPerRun(1000, func() {
			seq++
			if err := next(seq); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations per row", name, n)
		}
	}
}

func BenchmarkRoute(b *testing.B) { perRow(b, shapes(b)) }

func perRow(b *testing.B, shapes map[string]func(seq uint32) error) {
	for name, next := range shapes {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			seq := uint32(0)
			for b.Loop() {
				seq++
				if err := next(seq); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
