package null_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/sink/null"
	"github.com/cdc-relay/cdc-relay/sink/sinktest"
)

func TestSink_Conforms(t *testing.T) {
	sinktest.Run(t, func(*testing.T) sinktest.Peer {
		return sinktest.Peer{Sink: null.Open(), Topic: "t", Partitions: 4}
	})
}
