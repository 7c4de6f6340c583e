package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/e2e/kafkaserver"
)

// What one letter cannot do holds up no other, and no topic is taken that the owner does
// not retry from.
func TestRedrive_OneLetterHoldsUpNoOther(t *testing.T) {
	w := newWorld(t, kafkaserver.Options{})
	ids := []string{strings.Repeat("x", 900), "b\x1b]0;owned\x07\u009b31m\u202e", "c"}
	w.set(true, ids...)
	stop := w.consume()
	for _, id := range ids {
		w.produce(id, id)
	}
	w.waitFor("the letters", func() bool { return w.in("open") == 3 && w.offset("orders") == 3 })
	w.set(false, ids...)

	for _, topic := range []string{"orders", "billing.dead"} {
		out, code := w.shell(`cdc-inbox redrive --owner billing --all --yes --actor ann --note n --topic ` + topic)
		if code != exitFailure || !strings.Contains(out, "is no RetryTopic") || w.in("open") != 3 {
			t.Errorf("%s: exit code %d, %d open", topic, code, w.in("open"))
		}
	}
	for _, line := range []string{"list", "list --json", "show 2", "show 2 --payload", "show 2 --payload --json", "redrive 2 --dry-run"} {
		out, code := w.shell("cdc-inbox " + line)
		if code != exitOK || strings.ContainsAny(out, "\x1b\x07\u009b\u202e") {
			t.Errorf("%s: exit code %d, or it moves the cursor", line, code)
		}
		if _, last, _ := strings.Cut(out, "}\n"); strings.HasSuffix(line, "--json") {
			one, _, _ := strings.Cut(last, "\n") // the second letter of the list
			if line != "list --json" {
				one = out
			}
			var l struct {
				EventID string `json:"event_id"`
			}
			if err := json.Unmarshal([]byte(one), &l); err != nil || l.EventID != ids[1] {
				t.Errorf("%s: %q %v", line, l.EventID, err)
			}
		}
	}

	// The first takes more than the topic does, which is no reason to stop.
	stop()
	w.limit("billing.retry", "1500")
	out, code := w.shell(`cdc-inbox redrive --owner billing --all --yes --actor ann --note n`)
	if code != exitFailure || strings.Count(out, "max.message.bytes") != 1 || strings.Contains(out, "secret of") || w.in("open") != 1 || w.in("redriven") != 2 {
		t.Errorf("exit code %d, %d open", code, w.in("open"))
	}
	w.limit("billing.retry", "1000000")
	if _, code := w.shell(`cdc-inbox redrive --owner billing --all --yes --actor ann --note n`); code != exitOK || w.in("redriven") != 3 {
		t.Errorf("exit code %d, %d redriven", code, w.in("redriven"))
	}
}

func (w *world) limit(topic, bytes string) {
	w.t.Helper()
	a, err := w.kafka.AlterConfigs(w.t.Context(), &kafka.AlterConfigsRequest{Resources: []kafka.AlterConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic,
		ResourceName: topic, Configs: []kafka.AlterConfigRequestConfig{{Name: "retention.ms", Value: "-1"}, {Name: "max.message.bytes", Value: bytes}}}}})
	w.must(err)
	for _, err := range a.Errors {
		w.must(err)
	}
}
