package setup

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
)

// A partition that retention detached and has not dropped is in no table that is
// read: what may be unpublished of it stays a gap until a person has decided.
func TestRecover_RowsOfADetachedPartitionAreAGap(t *testing.T) {
	for _, c := range []struct{ published, upgraded bool }{{false, false}, {true, false}, {false, true}} {
		published := c.published
		e := newEnv(t, "CREATE TABLE outbox (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb, at timestamptz NOT NULL DEFAULT now()) PARTITION BY RANGE (at)",
			"CREATE TABLE old PARTITION OF outbox FOR VALUES FROM ('2026-01-01') TO ('2026-01-02')", "CREATE TABLE rest PARTITION OF outbox DEFAULT")
		e.mustSetup()
		e.sql("INSERT INTO outbox (type, at) VALUES ('late', '2026-01-01 12:00')")
		db := e.session()
		table, err := db.PartitionedTable(t.Context(), DefaultTable, "at")
		if err != nil {
			t.Fatal(err)
		}
		m := e.mark()
		var d catalog.Detached
		for _, p := range table.Partitions {
			if p.Name == "old" {
				note := catalog.Note{SystemID: m.SystemID, Slot: m.Slot, Epoch: m.Epoch}
				if c.upgraded { // the cluster had another system id then
					note.SystemID = "7"
				}
				if d, err = db.Detach(t.Context(), table, p, note, time.Second, func(context.Context) error { return nil }); err != nil {
					t.Fatal(err)
				}
			}
		}
		now, err := db.Identities(t.Context(), e.o.Publication, e.o.Tables)
		if err != nil {
			t.Fatal(err)
		}
		e.edit(func(m *checkpoint.Mark) { // as watch does
			m.Relations = now.Relations
			if published {
				m.LSN = d.LSN
			}
		})
		dropSlot(e)
		e.mustRecover()
		if published {
			e.gapsAre()
			continue
		}
		e.gapsAre(checkpoint.Gap{From: m.LSN, To: e.mark().LSN, Table: "public.outbox"})
		e.says("partition public.old", "ATTACH PARTITION")
		covered := func() bool {
			e.mustBackfill()
			return strings.Contains(e.out.String(), "gap covered")
		}
		if covered() {
			t.Error("a backfill that did not read the partition closes the gap")
		}
		e.sql("DROP TABLE old")
		if !covered() {
			t.Errorf("the gap stays open: %s", e.out.String())
		}
	}
}
