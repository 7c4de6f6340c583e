package netproxy

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// late is what the proxy does to single produce requests, beside the filters: answers that never arrive, and requests that
// reach the broker long after their client gave them up.
type late struct {
	drops   *filter
	left    int // answers still to drop
	dropped int
	catch   *filter
	toCatch int
	delayed int
	caught  [][]byte // whole requests
}

// DropAnswers has the next n answers to produce requests that name one of the topics (any, when none is given) end their
// connection instead of reaching the client. The broker has written the records by then.
func (p *KafkaProxy) DropAnswers(n int, topics ...string) {
	p.kmu.Lock()
	defer p.kmu.Unlock()
	p.late.drops, p.late.left = &filter{topics}, n
}

// Dropped is the number of answers that were dropped so far.
func (p *KafkaProxy) Dropped() int {
	p.kmu.Lock()
	defer p.kmu.Unlock()
	return p.late.dropped
}

// DelayProduce keeps the next n such produce requests from the broker until DeliverLate, however long the client waits.
func (p *KafkaProxy) DelayProduce(n int, topics ...string) {
	p.kmu.Lock()
	defer p.kmu.Unlock()
	p.late.catch, p.late.toCatch = &filter{topics}, n
}

// Delayed is the number of requests that were kept for DeliverLate so far.
func (p *KafkaProxy) Delayed() int {
	p.kmu.Lock()
	defer p.kmu.Unlock()
	return p.late.delayed
}

// drop tells whether the answer to a request that names the topics is to be dropped, and counts it.
func (p *KafkaProxy) drop(topics []string) bool {
	p.kmu.Lock()
	defer p.kmu.Unlock()
	if p.late.left == 0 || !p.late.drops.matches(topics) {
		return false
	}
	p.late.left--
	p.late.dropped++
	return true
}

// delay tells whether the request is kept for later.
func (p *KafkaProxy) delay(topics []string, frame []byte) bool {
	p.kmu.Lock()
	defer p.kmu.Unlock()
	if p.late.toCatch == 0 || !p.late.catch.matches(topics) {
		return false
	}
	p.late.toCatch--
	p.late.delayed++
	p.late.caught = append(p.late.caught, frame)
	return true
}

// DeliverLate gives the broker the requests that were delayed, as a network does that kept them somewhere, and returns the
// error code of each topic-partition in them.
func (p *KafkaProxy) DeliverLate() (map[string]int16, error) {
	p.kmu.Lock()
	frames := p.late.caught
	p.late.caught = nil
	p.kmu.Unlock()
	p.connMu.Lock()
	target := p.target
	p.connMu.Unlock()
	codes := map[string]int16{}
	for _, frame := range frames {
		if err := deliver(target, frame, codes); err != nil {
			return nil, fmt.Errorf("deliver a delayed request: %w", err)
		}
	}
	return codes, nil
}

// deliverTimeout bounds one late delivery.
const deliverTimeout = time.Minute

func deliver(target string, frame []byte, codes map[string]int16) error {
	conn, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(deliverTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write(frame); err != nil {
		return err
	}
	answer, err := readFrame(conn)
	if err != nil {
		return err
	}
	res := kmsg.NewPtrProduceResponse()
	res.Version = int16(binary.BigEndian.Uint16(frame[6:]))
	if res.IsFlexible() {
		return fmt.Errorf("produce requests of version %d are not read", res.Version)
	}
	if err := res.ReadFrom(answer[8:]); err != nil {
		return err
	}
	for _, rt := range res.Topics {
		for _, rp := range rt.Partitions {
			codes[fmt.Sprintf("%s-%d", rt.Topic, rp.Partition)] = rp.ErrorCode
		}
	}
	return nil
}
