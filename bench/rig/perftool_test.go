package rig

import "testing"

func TestPerfRate_TakesTheSummaryAfterTheWarmUp(t *testing.T) {
	out := `66531 records sent, 13306.2 records/sec (4.75 MB/sec), 5.1 ms avg latency, 308.0 ms max latency.
125000 records sent, 20000.5 records/sec (7.10 MB/sec), 5.10 ms avg latency, 308.00 ms max latency, 4 ms 50th.
100000 steady state records sent, 250000.5 records/sec (80.2 MB/sec), 2.50 ms avg latency.
`
	if rate, err := perfRate(out); err != nil || rate != 250000.5 {
		t.Fatalf("%v, %v", rate, err)
	}
	if _, err := perfRate("Exception in thread main"); err == nil {
		t.Fatal("a tool that failed has a rate")
	}
}
