package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/verify"
)

func TestVerify_WhenReadsTimesAndAges(t *testing.T) {
	now := time.Date(2026, 2, 1, 12, 0, 0, 0, time.UTC)
	for s, want := range map[string]string{
		"2026-01-31T18:00:00Z": "2026-01-31T18:00:00Z", "2026-01-31T18:00:00+02:00": "2026-01-31T16:00:00Z", "2026-01-31": "2026-01-31T00:00:00Z",
		"2026-01-31 18:00": "2026-01-31T18:00:00Z", "2026-01-31T18:00:01": "2026-01-31T18:00:01Z", "36h": "2026-01-31T00:00:00Z", "0s": "2026-02-01T12:00:00Z",
		"": "0001-01-01T00:00:00Z",
	} {
		if got, err := when("--since", s, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s: %s, %v; want %s", s, got.Format(time.RFC3339), err, want)
		}
	}
	for _, s := range []string{"-1h", "noon", "2026-13-01", "2026"} {
		if _, err := when("--since", s, now); !errors.As(err, new(*usageError)) {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func TestVerify_FindingsAreForThisUserOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "findings")
	f, err := newFindings(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		if err := f.write(verify.Finding{Kind: verify.Missing, Topic: "t", ID: []byte(id), Rows: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(path)
	const want = `{"kind":"missing","topic":"t","id":"a","rows":1,"records":0}` + "\n" + `{"kind":"missing","topic":"t","id":"b","rows":1,"records":0}` + "\n"
	if string(b) != want {
		t.Errorf("got %s", b)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}
