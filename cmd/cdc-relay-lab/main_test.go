package main

import (
	"bytes"
	"encoding/json"
	"testing"
)

// What could not run is told in the document, too: nothing failed in a lab without scenes.
func TestRun_JSONTellsThatItStopped(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--json", "--scene", "nope"}, &out, &errs)
	var doc struct {
		Scenes []any
		Error  string
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || code != exitFailed || doc.Scenes == nil || doc.Error == "" {
		t.Errorf("exit code %d, %v\n%s", code, err, out.String())
	}
}
