package sink

import "testing"

func TestPlace_NamesWhatIsKnown(t *testing.T) {
	for want, c := range map[string]struct {
		topic     string
		partition int32
	}{"topic orders, partition 0": {"orders", 0}, "topic orders, partition not chosen yet": {"orders", PartitionByKey}, "topic not known": {"", PartitionByKey}} {
		if got := Place(c.topic, c.partition); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
