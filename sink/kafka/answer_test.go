package kafka

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol/produce"
)

// answer builds a produce response, version 7, field by field.
type answer []byte

func (a answer) int16(v int16) answer { return binary.BigEndian.AppendUint16(a, uint16(v)) }
func (a answer) int32(v int32) answer { return binary.BigEndian.AppendUint32(a, uint32(v)) }

// topic begins a topic with count partitions, as it says.
func (a answer) topic(name string, count int32) answer {
	return append(a.int16(int16(len(name))), name...).int32(count)
}

func (a answer) partition(p int32, code int16) answer {
	return append(a.int32(p).int16(code), make([]byte, 24)...) // base offset, append time, log start
}

// frame is the answer as it comes, to the request with the id given.
func (a answer) frame(id int32) []byte {
	return append(answer{}.int32(int32(len(a)+4)).int32(id), a...)
}

// Only an answer that is whole, and says that the partition was written, is an
// ack.
func TestOutcomes_NonsenseIsNoAck(t *testing.T) {
	const throttle, leader = 0, 6 // NOT_LEADER_OR_FOLLOWER
	for name, c := range map[string]struct {
		frame []byte
		acked bool
	}{
		"good":                 {answer{}.int32(1).topic("t", 1).partition(0, 0).int32(throttle).frame(correlationID), true},
		"good among others":    {answer{}.int32(2).topic("u", 1).partition(0, leader).topic("t", 2).partition(1, leader).partition(0, 0).int32(throttle).frame(correlationID), true},
		"of another request":   {answer{}.int32(1).topic("t", 1).partition(0, 0).int32(throttle).frame(7), false},
		"another topic":        {answer{}.int32(1).topic("u", 1).partition(0, 0).int32(throttle).frame(correlationID), false},
		"another partition":    {answer{}.int32(1).topic("t", 1).partition(1, 0).int32(throttle).frame(correlationID), false},
		"negative partition":   {answer{}.int32(1).topic("t", 1).partition(-1, 0).int32(throttle).frame(correlationID), false},
		"no topics":            {answer{}.int32(0).int32(throttle).frame(correlationID), false},
		"negative count":       {answer{}.int32(-9).int32(throttle).frame(correlationID), false},
		"negative partitions":  {answer{}.int32(1).topic("t", -3).int32(throttle).frame(correlationID), false},
		"fewer than it says":   {answer{}.int32(1).topic("t", 2).partition(1, leader).frame(correlationID), false},
		"fewer, with throttle": {answer{}.int32(1).topic("t", 2).partition(1, leader).int32(throttle).frame(correlationID), false},
		"fewer topics":         {answer{}.int32(2).topic("u", 1).partition(0, 0).int32(throttle).frame(correlationID), false},
		"an error, then good":  {answer{}.int32(1).topic("t", 2).partition(0, leader).partition(0, 0).int32(throttle).frame(correlationID), false},
		"good, then an error":  {answer{}.int32(1).topic("t", 2).partition(0, 0).partition(0, leader).int32(throttle).frame(correlationID), false},
		"unknown error":        {answer{}.int32(1).topic("t", 1).partition(0, -77).int32(throttle).frame(correlationID), false},
		"cut off":              {answer{}.int32(1).topic("t", 1).partition(0, 0).int32(throttle).frame(correlationID)[:30], false},
		"empty":                {answer{}.frame(correlationID), false},
		"nothing":              {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			req := newRequest(t.Context(), 1, "test", time.Second, []part{{topic: "t", batch: []byte("batch")}})
			req.version = 7
			res, err := req.RawExchange(struct {
				io.Reader
				io.Writer
			}{bytes.NewReader(c.frame), io.Discard})
			got, _ := res.(*produce.Response)
			if err == nil && got == nil {
				t.Fatal("neither answer nor error")
			}
			out := outcomes([]flight{{lane: newLane(newTopic("t"), 0)}}, got, err)
			if (out[0].err == nil) != c.acked {
				t.Errorf("acked: %v; %v", out[0].err == nil, out[0].err)
			}
		})
	}
}
