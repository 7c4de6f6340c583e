package verify

import (
	"testing"
	"time"
)

// A comparison that found nothing to compare says so, and does not pass for one that
// found everything.
func TestReport_SaysThatNothingWasCompared(t *testing.T) {
	since := time.Unix(0, 0)
	for want, r := range map[string]Report{
		"nothing was compared: there is no row in the tables":                         {OK: true},
		"nothing was compared: there is no row of that time in the tables":            {OK: true, Since: &since},
		"nothing was compared: there is no event in that range of the history":        {OK: true, History: &Range{}},
		"complete: every row is in its topic":                                         {OK: true, Counts: Counts{Expected: 1, Seen: 1}},
		"nothing is missing, as far as can be told: 1 rows cannot be judged any more": {OK: true, Counts: Counts{Expected: 1, Expired: 1}},
	} {
		if got := r.verdict(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
