package live_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
	"github.com/cdc-relay/cdc-relay/live"
)

var names = []string{"order", "relay_after_ack", "worker_before_commit", "worker_before_offset", "kafka", "twice", "retry_http", "exhaust"}

// Every scenario comes out as expected, says of the order what PostgreSQL, Kafka and the provider say, and is streamed as it is recorded.
func TestScenarios_AgreeWithRowsAndOffsets(t *testing.T) {
	e, s := engine(t)
	url := serve(t, e, http.NotFoundHandler()).URL
	failed, last := 0, "0"
	for _, name := range names {
		ok := t.Run(name, func(t *testing.T) {
			began := time.Now()
			code, body := post(t, url+"/api/scenarios/"+name)
			if code != http.StatusAccepted {
				t.Fatalf("%d: %v", code, body)
			}
			var steps []live.Step
			steps, last = follow(t, url, last, body["walk"])
			var rec recording
			get(t, url+"/api/walks/"+body["walk"], &rec)
			for _, step := range rec.Steps {
				t.Logf("%2d %-11s %-8s %s %v | %+v", step.N, step.Box, step.Kind, step.Title, step.Facts, step.Fields)
			}
			t.Logf("took %v; got %s", time.Since(began), rec.Walk.Got)
			if rec.Walk.Outcome != live.AsExpected {
				t.Errorf("%s: %s; expected %s, got %s", rec.Walk.Outcome, rec.Walk.Problem, rec.Walk.Expected, rec.Walk.Got)
			}
			if len(steps) != len(rec.Steps) {
				t.Errorf("%d steps were streamed, and %d recorded", len(steps), len(rec.Steps))
			}
			real, got := lookUp(t, s), pairs(rec.Walk.Got)
			for k, v := range real.counts() {
				if got[k] != v {
					t.Errorf("the walk got %s=%s, and there is %s", k, got[k], v)
				}
			}
			if final := rec.Steps[len(rec.Steps)-1].Fields; final.Order != real.Order+" committed" || final.Effects[:len("invoices 1")] != fmt.Sprintf("invoices %d", real.Invoices) {
				t.Errorf("the fields are %+v, and there is %+v", final, real)
			}
		})
		if !ok {
			failed++
		}
	}
	e2e.Result(t, "live", failed == 0, "scenarios", len(names), "failed", failed)
}
