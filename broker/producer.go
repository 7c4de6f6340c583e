package broker

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/initproducerid"

	"github.com/cdc-relay/cdc-relay/fault"
)

// InitProducerID asks any broker for a producer id that nobody else has, and the
// epoch to begin with, for an idempotent producer without transactions. It does
// not go through the Transport, which would look for a transaction coordinator
// first and hide why the cluster cannot be reached. Its errors are *fault.Error;
// CLUSTER_AUTHORIZATION_FAILED (kafka.ClusterAuthorizationFailed) says that the
// user may not write at all.
func (c *Cluster) InitProducerID(ctx context.Context) (id int64, epoch int16, err error) {
	r, err := c.control.do(ctx, &initproducerid.Request{
		TransactionTimeoutMs: math.MaxInt32, // of no meaning without a transactional id; what Java's client sends
		ProducerID:           -1, ProducerEpoch: -1,
	})
	if err != nil {
		return 0, 0, err
	}
	res, ok := r.(*initproducerid.Response)
	if !ok {
		return 0, 0, fmt.Errorf("ask for a producer id: unexpected answer %T", r)
	}
	if err := errorOf(res.ErrorCode); err != nil {
		class, _ := Classify(err)
		e := &fault.Error{Class: class, What: "ask Kafka for a producer id", Err: err}
		if errors.Is(err, kafka.ClusterAuthorizationFailed) {
			e.Fix = "grant this user WRITE on its topics; brokers older than Kafka 2.8 want IDEMPOTENT_WRITE on the cluster as well"
		}
		return 0, 0, e
	}
	if res.ProducerID < 0 || res.ProducerEpoch < 0 {
		return 0, 0, fmt.Errorf("ask for a producer id: the broker gave %d, epoch %d", res.ProducerID, res.ProducerEpoch)
	}
	return res.ProducerID, res.ProducerEpoch, nil
}
