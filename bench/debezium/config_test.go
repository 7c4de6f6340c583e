package debezium

import (
	"strings"
	"testing"
)

func TestPropertiesFile_KeepsEveryValueWhole(t *testing.T) {
	got := propertiesFile(map[string]string{"b": ` a\b` + "\nc=d", "a": "1"})
	if want := "a=1\n" + `b=\ a\\b\nc=d` + "\n"; got != want {
		t.Fatalf("%q, not %q", got, want)
	}
}

func TestOptions_OwnSettingsComeOverTheProfile(t *testing.T) {
	o := Options{
		Profile:   Latency,
		Worker:    map[string]string{"producer.linger.ms": "7"},
		Connector: map[string]string{"poll.interval.ms": "8"},
	}
	w, c := o.workerProperties(1, "offsets"), o.connectorProperties()
	if w["producer.linger.ms"] != "7" || c["poll.interval.ms"] != "8" || c["max.batch.size"] != Latency.queue()["max.batch.size"] {
		t.Fatalf("worker %v, connector %v", w, c)
	}
}

func TestProfile_OutOfTheBoxTunesNothing(t *testing.T) {
	o := Options{Profile: OutOfTheBox}
	for _, p := range []map[string]string{o.workerProperties(1, "offsets"), o.connectorProperties()} {
		for k := range p {
			for _, tuned := range []string{"max.", "poll.", "linger", "batch", "buffer", "idempotence"} {
				if strings.Contains(k, tuned) {
					t.Errorf("it sets %s", k)
				}
			}
		}
	}
}
