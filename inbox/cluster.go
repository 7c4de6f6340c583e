package inbox

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/sasl"
)

const requestTimeout = 30 * time.Second

// cluster is the connection to Kafka beside those of the group and the readers.
type cluster struct {
	brokers   []string
	dialer    *kafka.Dialer
	transport *kafka.Transport
	client    *kafka.Client

	mu         sync.Mutex
	partitions map[string][]int // by topic
	keyless    int
}

func newCluster(brokers []string, tls *tls.Config, mechanism sasl.Mechanism) *cluster {
	t := &kafka.Transport{TLS: tls, SASL: mechanism, ClientID: "inbox", DialTimeout: 10 * time.Second, MetadataTTL: 5 * time.Second}
	return &cluster{
		brokers:    brokers,
		dialer:     &kafka.Dialer{Timeout: 10 * time.Second, DualStack: true, TLS: tls, SASLMechanism: mechanism, ClientID: "inbox"},
		transport:  t,
		client:     &kafka.Client{Addr: kafka.TCP(brokers...), Transport: t, Timeout: requestTimeout},
		partitions: map[string][]int{},
	}
}

func (c *cluster) close() { c.transport.CloseIdleConnections() }

// topic returns the partitions of a topic, or an error if it does not exist.
func (c *cluster) topic(ctx context.Context, topic string) ([]int, error) {
	c.mu.Lock()
	known := c.partitions[topic]
	c.mu.Unlock()
	if known != nil {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, fmt.Errorf("read metadata of topic %s: %w", topic, err)
	}
	var partitions []int
	for _, t := range answer.Topics {
		if t.Name != topic {
			continue
		}
		if t.Error != nil {
			return nil, fmt.Errorf("read metadata of topic %s: %w", topic, t.Error)
		}
		for _, p := range t.Partitions {
			partitions = append(partitions, p.ID)
		}
	}
	if len(partitions) == 0 {
		return nil, mistakef("the topic %s does not exist, or this user may not see it; create it, or allow it", topic)
	}
	c.mu.Lock()
	c.partitions[topic] = partitions
	c.mu.Unlock()
	return partitions, nil
}

// produce writes one record, and returns where, after all replicas in sync have it.
func (c *cluster) produce(ctx context.Context, topic string, key []byte, r kafka.Record) (partition int, offset int64, err error) {
	partitions, err := c.topic(ctx, topic)
	if err != nil {
		return 0, 0, err
	}
	if key == nil {
		c.mu.Lock()
		c.keyless++
		partition = partitions[c.keyless%len(partitions)]
		c.mu.Unlock()
	} else {
		partition = kafka.Murmur2Balancer{}.Balance(kafka.Message{Key: key}, partitions...)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// Not the time of the original, by which retention would delete it too soon.
	r.Time = time.Now()
	answer, err := c.client.Produce(ctx, &kafka.ProduceRequest{Topic: topic, Partition: partition, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(r)})
	if err == nil {
		err = answer.Error
	}
	if err == nil && len(answer.RecordErrors) > 0 {
		err = fmt.Errorf("the broker refused the record: %v", answer.RecordErrors)
	}
	if err != nil {
		c.mu.Lock()
		delete(c.partitions, topic)
		c.mu.Unlock()
		return 0, 0, fmt.Errorf("write to topic %s, partition %d: %w", topic, partition, err)
	}
	return partition, answer.BaseOffset, nil
}

// ends returns the first offset and the one behind the last of each partition.
func (c *cluster) ends(ctx context.Context, topics map[string][]int) (map[string]map[int]kafka.PartitionOffsets, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req := &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{}}
	for topic, partitions := range topics {
		for _, p := range partitions {
			req.Topics[topic] = append(req.Topics[topic], kafka.FirstOffsetOf(p), kafka.LastOffsetOf(p))
		}
	}
	answer, err := c.client.ListOffsets(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("read offsets: %w", err)
	}
	found := map[string]map[int]kafka.PartitionOffsets{}
	for topic, partitions := range answer.Topics {
		found[topic] = map[int]kafka.PartitionOffsets{}
		for _, p := range partitions {
			if p.Error != nil {
				return nil, fmt.Errorf("read offsets of %s/%d: %w", topic, p.Partition, p.Error)
			}
			found[topic][p.Partition] = p
		}
	}
	return found, nil
}

// end returns those of one partition.
func (c *cluster) end(ctx context.Context, topic string, partition int) (kafka.PartitionOffsets, error) {
	found, err := c.ends(ctx, map[string][]int{topic: {partition}})
	if err != nil {
		return kafka.PartitionOffsets{}, err
	}
	p, ok := found[topic][partition]
	if !ok {
		return p, fmt.Errorf("read offsets of %s/%d: the answer has none", topic, partition)
	}
	return p, nil
}

// isControl tells a control record, which ends a transaction of Kafka, from a record.
func (c *cluster) isControl(ctx context.Context, topic string, partition int, offset int64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := c.client.Fetch(ctx, &kafka.FetchRequest{Topic: topic, Partition: partition, Offset: offset, MinBytes: 1, MaxBytes: 1 << 10, MaxWait: time.Second})
	if err == nil {
		err = answer.Error
	}
	if err != nil {
		return false, fmt.Errorf("read %s/%d/%d: %w", topic, partition, offset, err)
	}
	stream, ok := answer.Records.(*protocol.RecordStream)
	if !ok || len(stream.Records) == 0 {
		return false, fmt.Errorf("read %s/%d/%d: the answer has no batch", topic, partition, offset)
	}
	batch, ok := stream.Records[0].(*protocol.ControlBatch)
	return ok && batch.BaseOffset == offset, nil
}

// settings returns settings of a topic as they are in force.
func (c *cluster) settings(ctx context.Context, topic string, names ...string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := c.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
		{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: names}}})
	if err == nil && len(answer.Resources) != 1 {
		err = errors.New("the answer has no such topic")
	}
	if err == nil {
		err = answer.Resources[0].Error
	}
	if err != nil {
		return nil, fmt.Errorf("read settings of topic %s (the user needs DescribeConfigs on it): %w", topic, err)
	}
	settings := map[string]string{}
	for _, e := range answer.Resources[0].ConfigEntries {
		settings[e.ConfigName] = e.ConfigValue
	}
	return settings, nil
}
