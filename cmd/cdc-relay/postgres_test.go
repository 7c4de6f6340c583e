package main

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/check"
	"github.com/cdc-relay/cdc-relay/e2e/pgserver"
)

// TestCLI_OnPostgres goes the way of an operator on a real server, with the null
// sink and a file for the mark.
func TestCLI_OnPostgres(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	pg, err := pgserver.Start(t.Context(), pgserver.Options{})
	if errors.Is(err, pgserver.ErrNoBinaries) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Close() })
	t.Chdir(t.TempDir())
	env := []string{"CDC_RELAY_SOURCE_URL=" + pg.DSN("postgres"), "CDC_RELAY_SINK=null", "CDC_RELAY_CHECKPOINT_STORE=file",
		"CDC_RELAY_CHECKPOINT_FILE=" + filepath.Join(t.TempDir(), "mark"), "CDC_RELAY_ADMIN_LISTEN="}
	statusOf := func(out string) map[string]check.Status {
		var got struct{ Results []check.Result }
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		m := make(map[string]check.Status)
		for _, r := range got.Results {
			if m[r.Name] != check.Fail {
				m[r.Name] = r.Status
			}
		}
		return m
	}

	code, out, _ := cli(t, env, "check", "--json")
	if s := statusOf(out); code != 1 || s["database"] != check.Pass || s["publication"] != check.Fail || s["slot"] != check.Fail ||
		s["table public.outbox"] != check.Fail || s["mark"] != check.Fail {
		t.Errorf("before setup: %d %s", code, out)
	}
	code, out, _ = cli(t, env, "status")
	if code != 1 || !strings.Contains(out, "run cdc-relay setup") {
		t.Errorf("before setup: %d %s", code, out)
	}
	if code, out, errs := cli(t, env, "setup"); code != 0 {
		t.Fatalf("setup: %d %s %s", code, out, errs)
	}
	if code, out, errs := cli(t, env, "setup"); code != 0 {
		t.Fatalf("setup again: %d %s %s", code, out, errs)
	}
	code, out, _ = cli(t, env, "check", "--json")
	if s := statusOf(out); code != 0 || s["ready to stream"] != check.Pass || s["table public.outbox columns"] != check.Pass {
		t.Errorf("after setup: %d %s", code, out)
	}
	code, out, errs := cli(t, env, "status", "--json")
	var st statusReport
	if err := json.Unmarshal([]byte(out), &st); err != nil || code != 0 || st.Mark == nil || st.Slot == nil || st.LagBytes == nil || st.LagSeconds != nil || len(st.Problems) != 0 {
		t.Errorf("%d %v %s %s", code, err, out, errs)
	}

	if err := pg.Exec(t.Context(), "postgres", "SELECT pg_drop_replication_slot('cdc_relay')"); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"status"}, {"check"}} {
		code, out, _ := cli(t, env, args...)
		if code != 1 || strings.Contains(out, "run cdc-relay setup") || !strings.Contains(out, "may be lost to the stream") || !strings.Contains(out, "run cdc-relay recover") {
			t.Errorf("%s with a slot that was dropped: %d %s", args, code, out)
		}
	}
	if err := pg.Exec(t.Context(), "postgres", "SELECT pg_create_logical_replication_slot('cdc_relay', 'pgoutput')"); err != nil {
		t.Fatal(err)
	}
	code, out, _ = cli(t, env, "check", "--json")
	if s := statusOf(out); code != 1 || s["ready to stream"] != check.Fail {
		t.Errorf("with a slot made anew: %d %s", code, out)
	}
	code, out, _ = cli(t, env, "status", "--json")
	if err := json.Unmarshal([]byte(out), &st); err != nil || code != 1 || len(st.Problems) != 1 || !strings.Contains(st.Problems[0], "cdc-relay recover") {
		t.Fatalf("%d %s", code, out)
	}
	if code, out, errs := cli(t, env, "adopt", "--lsn", st.Slot.Confirmed); code != 1 {
		t.Errorf("adopt without an answer: %d %s %s", code, out, errs)
	}
	if code, out, errs := cli(t, env, "adopt", "--lsn", st.Slot.Confirmed, "--yes"); code != 0 {
		t.Errorf("adopt: %d %s %s", code, out, errs)
	}
	code, out, _ = cli(t, env, "status")
	if code != 0 || !strings.Contains(out, "open gap") || !strings.Contains(out, "unknown time") {
		t.Errorf("%d %s", code, out)
	}
	code, out, _ = cli(t, env, "check")
	if code != 0 || !strings.Contains(out, "open gap") {
		t.Errorf("%d %s", code, out)
	}
	t.Log("\n" + out)
}
