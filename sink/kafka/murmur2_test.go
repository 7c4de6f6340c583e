package kafka

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The hashes are those that UtilsTest of Apache Kafka states.
var javaHashes = []struct {
	key  string
	hash int32
}{
	{"21", -973932308},
	{"foobar", -790332482},
	{"a-little-bit-long-string", -985981536},
	{"a-little-bit-longer-string", -1486304829},
	{"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971},
	{"abc", 479470107},
}

func TestMurmur2_JavaPartitioning(t *testing.T) {
	keys, mismatches := 0, 0
	for _, j := range javaHashes {
		keys++
		if got := int32(murmur2([]byte(j.key))); got != j.hash {
			mismatches++
			t.Errorf("murmur2(%q) = %d, want %d", j.key, got, j.hash)
		}
		for _, n := range []int32{1, 2, 6, 10, 100, 1000} {
			want := (j.hash & 0x7fffffff) % n
			if got := partitionOf([]byte(j.key), n); got != want {
				mismatches++
				t.Errorf("partition of %q among %d is %d, want %d", j.key, n, got, want)
			}
		}
	}
	// Two other implementations of the same function, over keys of every length.
	franz := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	var key []byte
	for i := range 3000 {
		key = strconv.AppendInt(key[:0], int64(i)*7919, 36)
		key = append(key, make([]byte, i%9)...)
		keys++
		got := partitionOf(key, 12)
		segment := kafka.Murmur2Balancer{}.Balance(kafka.Message{Key: key}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
		if int(got) != segment || int(got) != franz.Partition(&kgo.Record{Key: key}, 12) {
			mismatches++
			t.Errorf("key %q: partition %d, kafka-go %d", key, got, segment)
		}
	}
	fmt.Printf("RESULT java_partitioning keys=%d mismatches=%d ok=%t\n", keys, mismatches, mismatches == 0)
}
