package relay

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/marking"
	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
)

// A row from a time in which its table had another name is marked in that table, and
// not in one that happens to have the same id.
func TestMarks_AreOfTheTableThatHadAnotherName(t *testing.T) {
	table := func(name string) route.Table {
		return route.Table{Schema: "public", Name: name, ID: "id", Payload: "payload", Topic: "t"}
	}
	router, err := route.Compile([]route.Table{table("first"), table("second")})
	if err != nil {
		t.Fatal(err)
	}
	router.Know(map[uint32]string{7: "public.second"})
	m := &marks{queue: marking.NewQueue(1 << 20), tables: map[catalog.TableName]int{{Schema: "public", Name: "first"}: 0, {Schema: "public", Name: "second"}: 1}}
	rel := &decoder.Relation{OID: 7, Namespace: "public", Name: "was", Columns: []decoder.Column{{Name: "id"}, {Name: "payload"}}}
	row := decoder.Row{Relation: rel, Values: []decoder.Value{{Kind: decoder.Text, Data: []byte("1")}, {Kind: decoder.Null}}}
	var rec sink.Record
	if routed, err := router.Route(route.Tx{CommitLSN: 100}, 0, row, &rec); err != nil || !routed {
		t.Fatalf("routed %t: %v", routed, err)
	}
	if err := m.add(router, rel, rec.ID); err != nil {
		t.Fatal(err)
	}
	m.queue.Commit(110)
	if due := m.queue.Due(110, func() bool { return true }, 10); len(due) != 1 || due[0] != (marking.Row{Table: 1, ID: "1"}) {
		t.Errorf("due: %+v", due)
	}
	if err := m.add(router, &decoder.Relation{OID: 8}, nil); err == nil {
		t.Error("a row of no table was taken")
	}
}
