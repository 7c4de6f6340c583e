package e2e_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

// TestE2E_BackfillBytes streams rows of every type, and then publishes them again
// from the tables, by a role with contrary settings: topic, partition, key, value
// and headers are the same, byte for byte.
func TestE2E_BackfillBytes(t *testing.T) {
	r := newRig(t, rigOptions{noTable: true, topicConf: map[string]string{"max.message.bytes": fmt.Sprint(8 << 20)}})
	r.pg.RequireControl(t) // roles outlive a database
	r.pg.Exec(t, "CREATE TYPE mood AS ENUM ('so so', '\u00fcbel')", "CREATE DOMAIN email AS text CHECK (VALUE LIKE '%@%')",
		"CREATE DOMAIN bytes AS bytea", "CREATE DOMAIN blob AS bytes", "CREATE TYPE pair AS (a text, b int)", `CREATE TYPE "Odd ""Type" AS ENUM ('left')`,
		"CREATE SCHEMA elsewhere")
	r.outboxYAML = "outbox:\n"
	var tables []printedTable
	cases := append(payloadCases(), payloadCase{name: "regclass", typ: "regclass", values: []string{"'pg_class'::regclass", "'bytes_text'::regclass"}})
	for _, c := range cases {
		if c.name != "xml" || hasXML(r.pg) {
			tables = append(tables, r.payloadTable(t, c))
		}
	}
	tables = append(tables, r.keyTables(t)...)
	r.pg.Exec(t, "CREATE ROLE contrary LOGIN REPLICATION SUPERUSER")
	for _, name := range printing {
		r.pg.Exec(t, fmt.Sprintf("ALTER ROLE contrary SET %s = '%s'", name, contrary[name]))
	}
	r.pg.Exec(t, "ALTER ROLE contrary SET search_path = elsewhere, public", "ALTER ROLE contrary SET statement_timeout = '1ms'")
	r.dsn = asRole(t, r.pg.DSN(), "contrary")
	r.setup(t)
	relay := r.startReady(t)
	rows := 0
	for _, table := range tables {
		rows += len(table.insert)
		r.pg.Exec(t, table.insert...)
	}
	r.waitCaughtUp(t, time.Minute)
	if code := relay.Terminate(t, 30*time.Second); code != 0 {
		t.Fatalf("the relay ended with %d", code)
	}
	r.backfillByID(t, tables)

	streamed, backfilled := map[string]e2e.Record{}, map[string]e2e.Record{}
	for _, rec := range r.k.Consume(t, r.topic) {
		id, _ := rec.Header("id")
		if _, ok := rec.Header("backfilled"); ok {
			backfilled[id] = rec
		} else {
			streamed[id] = rec
		}
	}
	different := 0
	for id, want := range streamed {
		if got, ok := backfilled[id]; !ok || !sameRecord(want, got) {
			different++
			t.Errorf("record %q: there: %t; key %s, value %s, partition %d; streamed were key %s, value %s, partition %d", id, ok,
				brief(got.Key), brief(got.Value), got.Partition, brief(want.Key), brief(want.Value), want.Partition)
		}
	}
	ok := different == 0 && len(streamed) == rows && len(backfilled) == rows
	e2e.Result(t, "backfill_bytes", ok, "tables", len(tables), "rows", rows, "streamed", len(streamed), "backfilled", len(backfilled),
		"different", different, "pg", r.pg.Version)
}

// backfillByID runs a backfill for the tables of each name of the id's column.
func (r *rig) backfillByID(t testing.TB, tables []printedTable) {
	t.Helper()
	byID := map[string][]string{}
	for _, table := range tables {
		id := strings.Trim(table.id, `"`)
		name := strings.ReplaceAll(table.name, `""`, "\x00")
		name = strings.ReplaceAll(strings.ReplaceAll(name, `"`, ""), "\x00", `"`)
		byID[id] = append(byID[id], "--table", name)
	}
	for id, flags := range byID {
		code, stdout, stderr := r.command(t, "backfill", append([]string{"--all", "--order-by", id}, flags...)...)
		if code != 0 {
			t.Fatalf("backfill by %s ended with %d:\n%s%s", id, code, stdout, stderr)
		}
	}
}

// sameRecord compares all but the position and the time.
func sameRecord(a, b e2e.Record) bool {
	headers := func(rec e2e.Record) string {
		var s strings.Builder
		for _, h := range rec.Headers {
			if h.Key != "lsn" && h.Key != "seq" && h.Key != "backfilled" {
				fmt.Fprintf(&s, "%s=%t%q ", h.Key, h.Value == nil, h.Value)
			}
		}
		return s.String()
	}
	samePartition := a.Key == nil || a.Partition == b.Partition // a null key may go anywhere
	return a.Topic == b.Topic && samePartition && (a.Key == nil) == (b.Key == nil) && bytes.Equal(a.Key, b.Key) &&
		(a.Value == nil) == (b.Value == nil) && bytes.Equal(a.Value, b.Value) && headers(a) == headers(b)
}
