package inbox_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/inbox"
)

func TestMetrics_ShowWhatWasObserved(t *testing.T) {
	m, registry := inbox.NewMetrics("billing"), prometheus.NewRegistry()
	registry.MustRegister(m)
	for _, e := range []inbox.Event{
		{Kind: inbox.Processed, N: 7}, {Kind: inbox.Duplicates, N: 2}, {Kind: inbox.Retried}, {Kind: inbox.DeadLettered, N: 1}, {Kind: inbox.OffsetsLost, Topic: "t", N: 4},
		{Kind: inbox.Waiting}, {Kind: inbox.Lag, Topic: "t", Partition: 1, N: 9}, {Kind: inbox.DeadLetterAge, N: 3, Age: time.Minute},
	} {
		m.Observe(e)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			got[f.GetName()] += s.GetCounter().GetValue() + s.GetGauge().GetValue()
			if s.GetLabel()[0].GetName() != "consumer" || s.GetLabel()[0].GetValue() != "billing" {
				t.Errorf("%s has no consumer", f.GetName())
			}
		}
	}
	for name, want := range map[string]float64{"inbox_records_total": 11, "inbox_lost_offsets_total": 4, "inbox_interruptions_total": 1,
		"inbox_lag_records": 9, "inbox_dead_letters_open": 3, "inbox_dead_letter_oldest_seconds": 60} {
		if got[name] != want {
			t.Errorf("%s is %v, not %v", name, got[name], want)
		}
	}
}
