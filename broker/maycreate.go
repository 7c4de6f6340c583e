package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"
)

// mayCreateTimeoutMs is how long the controller may take to answer MayCreate.
const mayCreateTimeoutMs = 5000

// MayCreate asks whether CreateTopic could make the topic, and makes nothing. A
// topic that exists, and an old cluster whose brokers do not ask the controller
// for us, count as yes. It does not go through the Transport, which waits until a
// topic that was made shows up.
func (c *Cluster) MayCreate(ctx context.Context, spec TopicSpec) error {
	topic := createtopics.RequestTopic{Name: spec.Name, NumPartitions: int32(spec.Partitions), ReplicationFactor: int16(spec.Replication)}
	for k, v := range spec.Config {
		topic.Configs = append(topic.Configs, createtopics.RequestConfig{Name: k, Value: v})
	}
	r, err := c.control.do(ctx, &createtopics.Request{
		Topics: []createtopics.RequestTopic{topic}, TimeoutMs: mayCreateTimeoutMs, ValidateOnly: true,
	})
	if err != nil {
		return err
	}
	res, ok := r.(*createtopics.Response)
	if !ok {
		return fmt.Errorf("ask whether topic %s may be created: unexpected answer %T", spec.Name, r)
	}
	for _, t := range res.Topics {
		err := errorOf(t.ErrorCode)
		if err == nil || errors.Is(err, kafka.TopicAlreadyExists) || errors.Is(err, kafka.NotController) {
			continue
		}
		return topicError(fmt.Sprintf("topic %s does not exist and could not be created", spec.Name),
			"grant CREATE on the topic or the cluster to this user, or have the topic made by someone who may", err)
	}
	return nil
}
