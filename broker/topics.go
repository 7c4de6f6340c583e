package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/cdc-relay/cdc-relay/fault"
)

// Topic is what the cluster says of one topic.
type Topic struct {
	Name string
	// Err is why nothing is known: a kafka.Error such as UNKNOWN_TOPIC_OR_PARTITION
	// or TOPIC_AUTHORIZATION_FAILED. Partitions is empty then.
	Err        error
	Partitions []Partition // by ID, without holes
}

// Partition of a topic.
type Partition struct {
	ID       int32
	Leader   Node  // ID -1: there is none now
	Err      error // LEADER_NOT_AVAILABLE and the like; nil when it can be used
	Replicas []int32
	ISR      []int32
}

// Node is a broker.
type Node struct {
	ID   int32
	Addr string // host:port; "" when unknown
}

// TopicSpec is a topic to make.
type TopicSpec struct {
	Name        string
	Partitions  int // -1 takes the broker's default
	Replication int // -1 takes the broker's default
	Config      map[string]string
}

// Metadata asks a broker for the named topics, not a cache, and never makes one.
// Each name has an entry in the answer, a missing topic one with Err. Without
// names it returns every topic that may be seen. Its errors are *fault.Error and
// tell the true cause.
func (c *Cluster) Metadata(ctx context.Context, topics ...string) (map[string]Topic, error) {
	r, err := c.control.do(ctx, &metadata.Request{TopicNames: topics})
	if err != nil {
		return nil, err
	}
	res, ok := r.(*metadata.Response)
	if !ok {
		return nil, fmt.Errorf("read the metadata of topics: unexpected answer %T", r)
	}
	nodes := make(map[int32]string, len(res.Brokers))
	for _, b := range res.Brokers {
		nodes[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	out := make(map[string]Topic, len(res.Topics))
	for _, t := range res.Topics {
		out[t.Name] = topicOf(t, nodes)
	}
	for _, name := range topics {
		if _, ok := out[name]; !ok {
			out[name] = Topic{Name: name, Err: kafka.UnknownTopicOrPartition}
		}
	}
	return out, nil
}

func topicOf(t metadata.ResponseTopic, nodes map[int32]string) Topic {
	topic := Topic{Name: t.Name, Err: errorOf(t.ErrorCode)}
	if topic.Err != nil {
		return topic
	}
	topic.Partitions = make([]Partition, len(t.Partitions))
	for i := range topic.Partitions {
		topic.Partitions[i] = Partition{ID: int32(i), Leader: Node{ID: -1}, Err: kafka.LeaderNotAvailable}
	}
	for _, p := range t.Partitions {
		if p.PartitionIndex < 0 || int(p.PartitionIndex) >= len(topic.Partitions) {
			continue
		}
		q := &topic.Partitions[p.PartitionIndex]
		q.Leader = Node{ID: p.LeaderID, Addr: nodes[p.LeaderID]}
		q.Replicas, q.ISR = p.ReplicaNodes, p.IsrNodes
		q.Err = errorOf(p.ErrorCode)
		if q.Err == nil && (p.LeaderID < 0 || q.Leader.Addr == "") {
			q.Err = kafka.LeaderNotAvailable
		}
	}
	return topic
}

func errorOf(code int16) error {
	if code == 0 {
		return nil
	}
	return kafka.Error(code)
}

// TopicConfig returns the topic's configuration in force, with defaults; secret
// values are left out.
func (c *Cluster) TopicConfig(ctx context.Context, topic string) (map[string]string, error) {
	res, err := c.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic}},
	})
	if err != nil {
		return nil, c.truth(ctx, fmt.Errorf("read the configuration of topic %s: %w", topic, err))
	}
	out := make(map[string]string)
	for _, r := range res.Resources {
		if r.Error != nil {
			return nil, topicError(fmt.Sprintf("read the configuration of topic %s", topic),
				"grant DESCRIBE_CONFIGS on the topic to this user", r.Error)
		}
		for _, e := range r.ConfigEntries {
			if !e.IsSensitive {
				out[e.ConfigName] = e.ConfigValue
			}
		}
	}
	return out, nil
}

// CreateTopic makes a topic, and does nothing when it exists, however it is
// configured; that needs no privilege to create. It returns when the topic is
// known to the cluster.
func (c *Cluster) CreateTopic(ctx context.Context, spec TopicSpec) error {
	topics, err := c.Metadata(ctx, spec.Name)
	if err != nil {
		return err
	}
	if topics[spec.Name].Err == nil {
		return nil
	}
	tc := kafka.TopicConfig{Topic: spec.Name, NumPartitions: spec.Partitions, ReplicationFactor: spec.Replication}
	for k, v := range spec.Config {
		tc.ConfigEntries = append(tc.ConfigEntries, kafka.ConfigEntry{ConfigName: k, ConfigValue: v})
	}
	res, err := c.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{tc}})
	if err != nil {
		return c.truth(ctx, fmt.Errorf("create topic %s: %w", spec.Name, err))
	}
	for _, err := range res.Errors {
		if err == nil || errors.Is(err, kafka.TopicAlreadyExists) {
			continue
		}
		return topicError(fmt.Sprintf("create topic %s", spec.Name),
			"grant CREATE on the topic or the cluster to this user, or have the topic made by someone who may", err)
	}
	return nil
}

// topicError gives the fix where it is about a privilege. A refusal that no
// repetition can change (Poison, of a request about topics) is Stop.
func topicError(what, fix string, err error) *fault.Error {
	class, code := Classify(err)
	if class == fault.Poison {
		class = fault.Stop
	}
	e := &fault.Error{Class: class, What: what, Err: err}
	if code == "TOPIC_AUTHORIZATION_FAILED" || code == "CLUSTER_AUTHORIZATION_FAILED" {
		e.Fix = fix
	}
	return e
}

// truth asks why a request failed before it reached a broker: kafka-go reports
// an undiscovered cluster as something else.
func (c *Cluster) truth(ctx context.Context, err error) error {
	if class, _ := Classify(err); class == fault.Refresh {
		if cause := c.Ping(ctx); cause != nil {
			return cause
		}
	}
	class, _ := Classify(err)
	return &fault.Error{Class: class, Err: err}
}
