package replay

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

func TestFilter_KnowsATableThatHadAnotherName(t *testing.T) {
	f := newFilter(Filter{AggregateTypes: []string{"order"}}, []route.Table{{Schema: "public", Name: "outbox", Topic: "events"}})
	rel := &decoder.Relation{OID: 7, Namespace: "public", Name: "was", Columns: []decoder.Column{{Name: "aggregatetype"}}}
	row := decoder.Row{Relation: rel, Values: []decoder.Value{{Kind: decoder.Text, Data: []byte("order")}}}
	if _, err := f.passes(row, &sink.Record{}); err == nil {
		t.Error("a row of an unknown table passes")
	}
	f.known = map[uint32]string{7: "public.outbox"}
	if ok, err := f.passes(row, &sink.Record{}); !ok || err != nil {
		t.Errorf("wanted: %t, %v", ok, err)
	}
}
