package main

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/cdc-relay/cdc-relay/bench/record"
)

// Bars that must hold.
const (
	barNullTx1, barNullTx1000 = 2.0, 1.6
	barKafka                  = 1.2
	barNullCPU, barKafkaCPU   = 1.2, 2.0 // CPU seconds per million events
)

// result is one RESULT line.
type result struct {
	name string
	kv   []any // keys and values by turns
	ok   *bool // nil: no bar
}

func printResults(w io.Writer, results []result) (ok bool) {
	ok = true
	for _, r := range results {
		fmt.Fprintln(w, r.line())
		ok = ok && (r.ok == nil || *r.ok)
	}
	return ok
}

func (r result) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "RESULT %s", r.name)
	for i := 0; i+1 < len(r.kv); i += 2 {
		v := r.kv[i+1]
		if f, isFloat := v.(float64); isFloat {
			v = number(f)
		}
		fmt.Fprintf(&b, " %v=%v", r.kv[i], v)
	}
	if r.ok != nil {
		fmt.Fprintf(&b, " ok=%t", *r.ok)
	}
	return b.String()
}

// number has three significant digits and no exponent; what was not measured is na.
func number(f float64) string {
	switch {
	case math.IsNaN(f):
		return "na"
	case math.Abs(f) >= 100:
		return fmt.Sprintf("%.0f", f)
	case math.Abs(f) >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.3f", f)
}

func spread(s record.Spread) string {
	if s.N == 0 {
		return "na"
	}
	return number(s.Min) + ".." + number(s.Max)
}

func quickResults(f record.File) []result { return drainResults(f) }

func fullResults(f record.File) []result { return drainResults(f) }

func drainResults(f record.File) []result {
	var results []result
	for _, txRows := range []int{1, 10, 100, 1000} {
		g := "drain/" + drainName(300, txRows)
		if f.Count(g, "null")+f.Count(g, "kafka") > 0 {
			results = append(results, drainResult(f, g, txRows))
		}
	}
	return results
}

func drainResult(f record.File, g string, txRows int) result {
	const recv = "pg_recvlogical"
	null, kafka := f.Ratio(g, "null", recv, "rows_per_s"), f.Ratio(g, "kafka", recv, "rows_per_s")
	nullCPU, kafkaCPU := f.Figure(g, "null", "cpu_per_million"), f.Figure(g, "kafka", "cpu_per_million")
	bar := barNullTx1
	if txRows > 1 {
		bar = barNullTx1000
	}
	applies, perf := kafkaBarApplies(f, g)
	kafkaOK := fmt.Sprint(kafka.Median >= barKafka)
	if !applies {
		kafkaOK = "na"
	}
	ok := null.Median >= bar && kafkaOK != "false" && kafka.N > 0 && nullCPU.Median <= barNullCPU && kafkaCPU.Median <= barKafkaCPU
	r := result{name: "drain", ok: &ok, kv: []any{
		"rows", int(f.Figure(g, "null", "rows").Max), "tx_rows", txRows, "rounds", null.N,
		"null_ratio", null.Median, "null_ratio_spread", spread(null),
		"kafka_ratio", kafka.Median, "kafka_ratio_spread", spread(kafka), "kafka_ok", kafkaOK,
		"cpu_per_million", kafkaCPU.Median, "null_cpu_per_million", nullCPU.Median, "kafka_cpu_per_million", kafkaCPU.Median,
		"rss_mb", f.Figure(g, "kafka", "rss_mb").Median,
		"records_per_request", f.Figure(g, "kafka", "records_per_request").Median,
		"null_per_s", f.Figure(g, "null", "rows_per_s").Median,
		"kafka_per_s", f.Figure(g, "kafka", "rows_per_s").Median,
		"pg_recvlogical_per_s", f.Figure(g, recv, "rows_per_s").Median,
	}}
	r.kv = append(r.kv, perf...)
	return r
}

// kafkaBarApplies tells whether this machine can reach the bar at all: whether Kafka's own tool, beside a draining walsender, writes half as
// much again as the bar asks for. Where the tool was not run, the bar applies.
func kafkaBarApplies(f record.File, g string) (applies bool, figures []any) {
	beside := f.Figure(g, "perf-beside", "rows_per_s")
	need := barKafka * f.Figure(g, "pg_recvlogical", "rows_per_s").Median
	if beside.N == 0 || math.IsNaN(need) {
		return true, []any{"perf_beside_per_s", "na"}
	}
	return beside.Median >= 1.5*need, []any{"perf_beside_per_s", beside.Median, "perf_beside_to_need", beside.Median / need,
		"perf_per_s", f.Figure(g, "perf", "rows_per_s").Median}
}
