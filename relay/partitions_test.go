package relay

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/preflight"
	"github.com/cdc-relay/cdc-relay/route"
)

func partitionSession() *session {
	return &session{r: New(Config{Slot: "s", Tables: []route.Table{{Schema: "public", Name: "outbox"}}}, Deps{Log: zap.NewNop()}),
		plan: preflight.Plan{Mark: checkpoint.Mark{SystemID: "7", Epoch: 3}}}
}

func TestPartitions_OnlyWhatIsOldAsAWholeIsDropped(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	part := func(name string, from, to time.Time) catalog.RangePartition {
		return catalog.RangePartition{TableName: catalog.TableName{Name: name}, From: from, To: to}
	}
	table := catalog.PartitionedTable{Now: now, Partitions: []catalog.RangePartition{
		part("just", now.Add(-48*time.Hour), now.Add(-24*time.Hour)),
		part("young", now.Add(-47*time.Hour), now.Add(-24*time.Hour+1)),
		part("first", time.Time{}, now.Add(-48*time.Hour)),
		part("endless", now.Add(-72*time.Hour), time.Time{}),
		{TableName: catalog.TableName{Name: "rest"}, Default: true, Bound: "DEFAULT"},
	}}
	var names []string
	for _, p := range oldPartitions(table, 24*time.Hour) {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "first just" {
		t.Errorf("old: %s", got)
	}
}

func TestPartitions_WhatMayHoldUnpublishedRowsIsLeftAlone(t *testing.T) {
	s := partitionSession()
	at := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		change func(*catalog.RangePartition)
		says   string
	}{
		"ordinary":      {func(*catalog.RangePartition) {}, ""},
		"attached":      {func(p *catalog.RangePartition) { p.Attached = true }, "never published"},
		"unlogged":      {func(p *catalog.RangePartition) { p.Persistence = catalog.Unlogged }, "not an ordinary logged table"},
		"foreign":       {func(p *catalog.RangePartition) { p.Kind = catalog.KindForeign }, "not an ordinary logged table"},
		"partitioned":   {func(p *catalog.RangePartition) { p.Kind = catalog.KindPartitioned }, "partitioned itself"},
		"pending":       {func(p *catalog.RangePartition) { p.Pending = true }, "FINALIZE"},
		"another owner": {func(p *catalog.RangePartition) { p.Owner = "x" }, "owner"},
		"unknown bound": {func(p *catalog.RangePartition) { p.From, p.To = time.Time{}, time.Time{} }, "not understood"},
		"configured":    {func(p *catalog.RangePartition) { p.Name = "outbox" }, "configured"},
	} {
		p := catalog.RangePartition{TableName: catalog.TableName{Schema: "public", Name: "p"}, Owner: "o", From: at, To: at.Add(time.Hour), Kind: catalog.KindTable, Persistence: catalog.Permanent}
		c.change(&p)
		why := s.keepPartition(catalog.PartitionedTable{Owner: "o"}, p)
		if (why == "") != (c.says == "") || !strings.Contains(why, c.says) {
			t.Errorf("%s: %q", name, why)
		}
	}
}

func TestPartitions_ADetachedOneIsDroppedInItsEpochOnly(t *testing.T) {
	s := partitionSession()
	for name, c := range map[string]struct {
		change func(*catalog.Detached)
		says   string
	}{
		"as it was":           {func(*catalog.Detached) {}, ""},
		"another epoch":       {func(d *catalog.Detached) { d.Epoch = 2 }, "ATTACH PARTITION"},
		"attached again":      {func(d *catalog.Detached) { d.Attached = true }, "attached it again"},
		"takes rows":          {func(d *catalog.Detached) { d.Refuses = false }, "constraint was changed"},
		"of a table no more ": {func(d *catalog.Detached) { d.Parent.Name = "gone" }, "not configured any more"},
	} {
		d := catalog.Detached{TableName: catalog.TableName{Schema: "public", Name: "p"}, Refuses: true,
			Note: catalog.Note{Epoch: 3, Parent: catalog.TableName{Schema: "public", Name: "outbox"}}}
		c.change(&d)
		if why := s.keepDetached(d); (why == "") != (c.says == "") || !strings.Contains(why, c.says) {
			t.Errorf("%s: %q", name, why)
		}
	}
}

func TestPartitions_AreNamedByWhereTheyBegin(t *testing.T) {
	day := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for want, c := range map[string]struct {
		p    Partitions
		from time.Time
	}{
		"outbox_20261130":        {Partitions{Interval: 24 * time.Hour, Name: "{table}_{from}"}, day},
		"outbox_20261130_123000": {Partitions{Interval: 24 * time.Hour, Name: "{table}_{from}"}, day.Add(12*time.Hour + 30*time.Minute)},
		"p20261130_000000x":      {Partitions{Interval: time.Hour, Name: "p{from}x"}, day},
	} {
		if got := c.p.name(catalog.TableName{Schema: "public", Name: "outbox"}, catalog.TimeRange{From: c.from}); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
