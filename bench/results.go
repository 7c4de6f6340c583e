package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/bench/record"
)

// Bars that must hold.
const (
	barNullTx1, barNullTx1000 = 2.0, 1.6
	barKafka                  = 1.2
	barKafkaHeadroom          = 1.5      // of what barKafka needs, for the producer tool
	barNullCPU, barKafkaCPU   = 1.2, 2.0 // CPU seconds per million events
	barDebeziumRate           = 5.0
	barDebeziumRSS            = 1.0 / 5
	barDebeziumP99            = 1.0 / 10
	barControl                = 2.0 // p50 and p99, at barRate
	barRate                   = 1000
	barPartitions             = 1.5
)

// result is one RESULT line.
type result struct {
	name string
	kv   []any // keys and values by turns
	// bars are what must hold; a line without any has no ok.
	bars []bar
}

// bar is a figure and its limit. What was not measured misses no bar.
type bar struct {
	name    string
	got     float64
	limit   float64
	atLeast bool // else at most
}

func (b bar) missed() bool {
	if b.atLeast {
		return b.got < b.limit
	}
	return b.got > b.limit
}

func (b bar) String() string {
	if b.atLeast {
		return fmt.Sprintf("%s is %s, and should be at least %s", b.name, number(b.got), number(b.limit))
	}
	return fmt.Sprintf("%s is %s, and should be at most %s", b.name, number(b.got), number(b.limit))
}

func (r result) ok() bool { return !slices.ContainsFunc(r.bars, bar.missed) }

func printResults(w io.Writer, results []result) (ok bool) {
	ok = true
	for _, r := range results {
		fmt.Fprintln(w, r.line())
		for _, b := range r.bars {
			if b.missed() {
				fmt.Fprintf(w, "   missed: %s\n", b)
			}
		}
		ok = ok && r.ok()
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
	if len(r.bars) > 0 {
		fmt.Fprintf(&b, " ok=%t", r.ok())
	}
	return b.String()
}

// number has at least three significant digits and no exponent; what was not measured is na.
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

func quickResults(f record.File) []result {
	f = f.Newest()
	return slices.Concat(drainResults(f, "drain", 300), perhapsDrain(f))
}

func fullResults(f record.File) []result {
	f = f.Newest()
	return slices.Concat(drainResults(f, "drain", 300), perhapsDrain(f), coalesceResults(f), debeziumResults(f), latencyResults(f), pollingResults(f),
		costResults(f), partitionsResults(f))
}

// perhapsDrain are the drains of other payloads, by another name: the bars are for 300 bytes.
func perhapsDrain(f record.File) []result {
	results := drainResults(f, "drain_1KiB", 1024)
	for i := range results {
		results[i].bars = nil
	}
	return results
}

// transactions are the sizes of transactions for which there are RESULT lines.
var transactions = []int{1, 10, 100, 1000}

func drainResults(f record.File, name string, size int) []result {
	var results []result
	for _, txRows := range transactions {
		g := "drain/" + drainName(size, txRows)
		if f.Ratio(g, "null", "pg_recvlogical", "rows_per_s").N+f.Ratio(g, "kafka", "pg_recvlogical", "rows_per_s").N > 0 {
			results = append(results, drainResult(f, name, g, txRows))
		}
	}
	return results
}

func drainResult(f record.File, name, g string, txRows int) result {
	const recv = "pg_recvlogical"
	null, kafka := f.Ratio(g, "null", recv, "rows_per_s"), f.Ratio(g, "kafka", recv, "rows_per_s")
	nullCPU, kafkaCPU := f.Figure(g, "null", "cpu_per_million"), f.Figure(g, "kafka", "cpu_per_million")
	barNull := barNullTx1
	if txRows > 1 {
		barNull = barNullTx1000
	}
	applies, perf := kafkaBarApplies(f, g)
	kafkaOK := fmt.Sprint(kafka.Median >= barKafka)
	if !applies {
		kafkaOK = "na"
	}
	bars := []bar{
		{"null_ratio", null.Median, barNull, true},
		{"null_cpu_per_million", nullCPU.Median, barNullCPU, false},
		{"kafka_cpu_per_million", kafkaCPU.Median, barKafkaCPU, false},
	}
	if applies {
		bars = append(bars, bar{"kafka_ratio", kafka.Median, barKafka, true})
	}
	r := result{name: name, bars: bars, kv: []any{
		"rows", int(max(f.Figure(g, recv, "rows").Max, 0)), "tx_rows", txRows, "rounds", max(null.N, kafka.N),
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
	return beside.Median >= barKafkaHeadroom*need, []any{"perf_beside_per_s", beside.Median, "perf_beside_to_need", beside.Median / need,
		"perf_per_s", f.Figure(g, "perf", "rows_per_s").Median}
}

func coalesceResults(f record.File) []result {
	var results []result
	for _, txRows := range transactions {
		g := "drain/" + drainName(300, txRows)
		on := f.Ratio(g, "null", "null-off", "rows_per_s")
		if on.N == 0 {
			continue
		}
		results = append(results, result{name: "coalesce", kv: []any{"tx_rows", txRows, "rounds", on.N, "speedup", on.Median, "speedup_spread", spread(on),
			"on_cpu_per_million", f.Figure(g, "null", "cpu_per_million").Median, "off_cpu_per_million", f.Figure(g, "null-off", "cpu_per_million").Median,
			"on_walsender_cpu_per_million", f.Figure(g, "null", "walsender_cpu_per_million").Median,
			"off_walsender_cpu_per_million", f.Figure(g, "null-off", "walsender_cpu_per_million").Median,
			"naps", f.Figure(g, "null", "naps").Median}})
	}
	return results
}

// debeziumResults have one line: of several drains the one that is worst for the relay. Ratios are the relay's figure by Debezium's.
func debeziumResults(f record.File) []result {
	rate, rss := math.NaN(), math.NaN()
	var kv []any
	for _, txRows := range transactions {
		g := "drain/" + drainName(300, txRows)
		r := f.Ratio(g, "kafka", "debezium", "rows_per_s")
		if r.N == 0 {
			continue
		}
		m := f.Ratio(g, "kafka", "debezium", "rss_mb")
		rate, rss = lesser(rate, r.Median), greater(rss, m.Median)
		suffix := "_tx" + strconv.Itoa(txRows)
		kv = append(kv, "drain_ratio"+suffix, r.Median, "per_s"+suffix, f.Figure(g, "debezium", "rows_per_s").Median,
			"relay_per_s"+suffix, f.Figure(g, "kafka", "rows_per_s").Median, "rss_mb"+suffix, f.Figure(g, "debezium", "rss_mb").Median,
			"relay_rss_mb"+suffix, f.Figure(g, "kafka", "rss_mb").Median,
			// Without the part in which its JVM compiles.
			"drain_ratio_second_half"+suffix, f.Figure(g, "kafka", "rows_per_s").Median/f.Figure(g, "debezium", "second_half_per_s").Median)
	}
	g := "steady/" + strconv.Itoa(barRate)
	p99 := f.Ratio(g, "relay", "debezium", "p99_ms")
	if math.IsNaN(rate) && p99.N == 0 {
		return nil
	}
	kv = append([]any{"drain_ratio", rate, "rss_ratio", rss, "p99_ratio", p99.Median}, kv...)
	kv = append(kv, "p99_ms", f.Figure(g, "debezium", "p99_ms").Median, "relay_p99_ms", f.Figure(g, "relay", "p99_ms").Median,
		// What nothing on this machine is below, and what Debezium does before anybody tunes it.
		"control_p99_ratio", f.Ratio(g, "control", "debezium", "p99_ms").Median, "default_p99_ratio", f.Ratio(g, "relay", "debezium-default", "p99_ms").Median,
		"default_p99_ms", f.Figure(g, "debezium-default", "p99_ms").Median)
	return []result{{name: "debezium", kv: kv, bars: []bar{
		{"drain_ratio", rate, barDebeziumRate, true}, {"rss_ratio", rss, barDebeziumRSS, false}, {"p99_ratio", p99.Median, barDebeziumP99, false}}}}
}

func latencyResults(f record.File) []result {
	var results []result
	for _, rate := range steadyRates(f) {
		g := "steady/" + strconv.Itoa(rate)
		if !f.Has(g, "relay") {
			continue
		}
		p50, p99 := f.Ratio(g, "relay", "control", "p50_ms"), f.Ratio(g, "relay", "control", "p99_ms")
		naps := f.Figure(g, "relay", "naps")
		figure := func(system, name string) float64 { return f.Figure(g, system, name).Median }
		r := result{name: "latency", kv: []any{"rate", rate, "rounds", f.Count(g, "relay"), "p50_ms", figure("relay", "p50_ms"), "p99_ms", figure("relay", "p99_ms"),
			"p999_ms", figure("relay", "p999_ms"), "control_p50_ms", figure("control", "p50_ms"), "control_p99_ms", figure("control", "p99_ms"),
			"p50_ratio", p50.Median, "p99_ratio", p99.Median, "naps", naps.Max, "achieved_per_s", figure("relay", "achieved_per_s"),
			"cpu_per_million", figure("relay", "cpu_per_million"), "cpu_percent", figure("relay", "cpu_percent"), "rss_mb", figure("relay", "rss_mb"),
			"debezium_p50_ms", figure("debezium", "p50_ms"), "debezium_p99_ms", figure("debezium", "p99_ms"),
			"polling_p50_ms", figure("polling", "p50_ms"), "polling_p99_ms", figure("polling", "p99_ms")}}
		if rate <= barRate {
			r.bars = []bar{{"naps", naps.Max, 0, false}}
			if rate == barRate {
				r.bars = append(r.bars, bar{"p50_ratio", p50.Median, barControl, false}, bar{"p99_ratio", p99.Median, barControl, false})
			}
		}
		results = append(results, r)
	}
	return results
}

// steadyRates are those that were measured.
func steadyRates(f record.File) []int {
	var rates []int
	for _, r := range f.Rounds {
		if rest, ok := strings.CutPrefix(r.Group, "steady/"); ok {
			if rate, err := strconv.Atoi(rest); err == nil && !slices.Contains(rates, rate) {
				rates = append(rates, rate)
			}
		}
	}
	slices.Sort(rates)
	return rates
}

func pollingResults(f record.File) []result {
	var kv []any
	for _, txRows := range transactions {
		g := "drain/" + drainName(300, txRows)
		if r := f.Ratio(g, "kafka", "polling", "rows_per_s"); r.N > 0 {
			suffix := "_tx" + strconv.Itoa(txRows)
			kv = append(kv, "drain_ratio"+suffix, r.Median, "per_s"+suffix, f.Figure(g, "polling", "rows_per_s").Median)
		}
	}
	g := "steady/" + strconv.Itoa(barRate)
	if r := f.Ratio(g, "relay", "polling", "p99_ms"); r.N > 0 {
		kv = append(kv, "p99_ratio", r.Median, "p50_ms", f.Figure(g, "polling", "p50_ms").Median, "p99_ms", f.Figure(g, "polling", "p99_ms").Median)
	}
	if len(kv) == 0 {
		return nil
	}
	return []result{{name: "polling", kv: kv}}
}

func costResults(f record.File) []result {
	g := "cost/" + strconv.Itoa(costRate)
	var results []result
	for _, system := range []string{"relay", "polling"} {
		if !f.Has(g, system) || !f.Has(g, "inserts") {
			continue
		}
		more := func(figure string) float64 {
			return f.Figure(g, system, figure).Median - f.Figure(g, "inserts", figure).Median
		}
		results = append(results, result{name: "cost", kv: []any{"system", system, "wal_mb_per_million", more("wal_mb_per_million"),
			"bloat_mb_per_million", more("table_mb_per_million"), "dead_rows_per_million", f.Figure(g, system, "dead_per_million").Median,
			"backend_cpu_per_million", f.Figure(g, system, "backend_cpu_per_million").Median,
			"inserts_wal_mb_per_million", f.Figure(g, "inserts", "wal_mb_per_million").Median}})
	}
	return results
}

func partitionsResults(f record.File) []result {
	const g = "partitions/20000"
	r := f.Ratio(g, "100", "6", "cpu_per_million")
	if r.N == 0 {
		return nil
	}
	return []result{{name: "partitions", bars: []bar{{"cpu_ratio", r.Median, barPartitions, false}}, kv: []any{"cpu_ratio", r.Median, "cpu_ratio_spread", spread(r), "rounds", r.N,
		"cpu_per_million_6", f.Figure(g, "6", "cpu_per_million").Median, "cpu_per_million_100", f.Figure(g, "100", "cpu_per_million").Median,
		"p99_ms_6", f.Figure(g, "6", "p99_ms").Median, "p99_ms_100", f.Figure(g, "100", "p99_ms").Median}}}
}

// lesser and greater take what was measured, where only one was.
func lesser(a, b float64) float64 {
	if math.IsNaN(a) || b < a {
		return b
	}
	return a
}

func greater(a, b float64) float64 {
	if math.IsNaN(a) || b > a {
		return b
	}
	return a
}
