package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/record"
)

func TestChosen_TakesGlobsAndBeginnings(t *testing.T) {
	for _, c := range []struct {
		cell, patterns string
		want           bool
	}{
		{"drain/kafka/300B/tx1", "", true},
		{"drain/kafka/300B/tx1", "drain/kafka/300B/tx1", true},
		{"drain/kafka/300B/tx1000", "drain/kafka/300B/tx1", false},
		{"drain/kafka/300B/tx1", "steady, drain/*/300B", true},
		{"drain/kafka/1KiB/tx1", "drain/*/300B", false},
		{"steady/relay/1000", "steady/*/1000", true},
		{"steady/relay/1000", "steady/relay/1000/x", false},
		{"steady/relay/1000", ",", false},
	} {
		if got := chosen(c.cell, c.patterns); got != c.want {
			t.Errorf("%s by %q: %v", c.cell, c.patterns, got)
		}
	}
}

func TestLongFlags_TakesOneHyphen(t *testing.T) {
	got := longFlags([]string{"quick", "-rows=5", "--rounds", "2", "-h", "-"})
	if fmt.Sprint(got) != "[quick --rows=5 --rounds 2 -h -]" {
		t.Error(got)
	}
}

// rounds are three of each system of a group, with a figure that is scaled by the round's own speed, as on a noisy machine.
func rounds(group, system string, figures map[string]float64) []record.Round {
	var all []record.Round
	for n, speed := range []float64{1, 0.5, 2} {
		f := map[string]float64{"rows": 1000}
		for k, v := range figures {
			f[k] = v
			if k == "rows_per_s" {
				f[k] = v * speed
			}
		}
		all = append(all, record.Round{Group: group, System: system, Round: n + 1, Figures: f, Build: "b", Time: time.Unix(int64(n), 0)})
	}
	return all
}

func TestDrainResult_AppliesEachBar(t *testing.T) {
	const g = "drain/300B/tx1"
	for _, c := range []struct {
		name                       string
		null, kafka, cpu, kcpu, bp float64
		kafkaOK, ok                string
	}{
		{"all reached", 200, 120, 1.2, 2, 180, "true", "true"},
		{"null too slow", 199, 120, 1, 1, 180, "true", "false"},
		{"kafka too slow", 200, 119, 1, 1, 180, "false", "false"},
		{"kafka too slow where the machine is", 200, 50, 1, 1, 179, "na", "true"},
		{"null costs too much", 200, 120, 1.21, 1, 180, "true", "false"},
		{"kafka costs too much", 200, 120, 1, 2.01, 180, "true", "false"},
	} {
		var f record.File
		for system, figures := range map[string]map[string]float64{
			"pg_recvlogical": {"rows_per_s": 100},
			"null":           {"rows_per_s": c.null, "cpu_per_million": c.cpu},
			"kafka":          {"rows_per_s": c.kafka, "cpu_per_million": c.kcpu},
			"perf-beside":    {"rows_per_s": c.bp},
		} {
			f.Rounds = append(f.Rounds, rounds(g, system, figures)...)
		}
		line := drainResult(f, "drain", g, 1).line()
		if !strings.HasPrefix(line, "RESULT drain rows=1000 tx_rows=1 ") || !strings.Contains(line, " kafka_ok="+c.kafkaOK+" ") ||
			!strings.HasSuffix(line, " ok="+c.ok) {
			t.Errorf("%s: %s", c.name, line)
		}
	}
}

func TestLatencyResults_NapsAtALowRateAreAFailure(t *testing.T) {
	line := func(rate int, p99, naps float64) string {
		g := fmt.Sprintf("steady/%d", rate)
		f := record.File{Rounds: append(rounds(g, "relay", map[string]float64{"p50_ms": 1, "p99_ms": p99, "naps": naps}),
			rounds(g, "control", map[string]float64{"p50_ms": 1, "p99_ms": 1})...)}
		return latencyResults(f)[0].line()
	}
	for want, got := range map[string]string{
		" ok=true":            line(1000, 2, 0),
		" ok=false":           line(1000, 2.1, 0),
		" polling_p99_ms=na":  line(5000, 9, 100),
		" naps=1.000":         line(1000, 1, 1),
		"RESULT latency rate": line(100, 1, 0),
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if l := line(100, 9, 1); !strings.HasSuffix(l, " ok=false") {
		t.Error(l)
	}
	if l := line(5000, 9, 100); strings.Contains(l, " ok=") {
		t.Error(l)
	}
}
