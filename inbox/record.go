package inbox

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

// Headers that the runner adds to records of retry and dead-letter topics. Those that
// the record had stay.
const (
	HeaderEventID   = "inbox-event-id"
	HeaderOwner     = "inbox-owner"     // the consumer whose record it is
	HeaderReason    = "inbox-reason"    // without payload
	HeaderAttempts  = "inbox-attempts"  // so far
	HeaderTopic     = "inbox-topic"     // where the record was first
	HeaderPartition = "inbox-partition" //
	HeaderOffset    = "inbox-offset"    //
	HeaderTime      = "inbox-time"      // when it was written here, RFC 3339
	HeaderNotBefore = "inbox-not-before"
	HeaderRedriven  = "inbox-redriven" // the id of the dead letter
)

// Record is a record of Kafka for a handler. Its bytes may be kept.
type Record struct {
	// ID is the event's: of the header, or topic/partition/offset where the configuration
	// says so.
	ID string
	// Topic, Partition and Offset are where the record was first, also when it comes from
	// the retry topic.
	Topic     string
	Partition int
	Offset    int64
	Key       []byte // nil: none
	Value     []byte // nil: a null value
	Headers   []kafka.Header
	Time      time.Time // the record's; of the retry topic, when it was written there
	Attempt   int       // 1 for the first, counted over the retry topic too
	Redriven  bool      // a person sent it again
}

// Header returns the last value of a header, nil when there is none.
func (r Record) Header(name string) []byte {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if r.Headers[i].Key == name {
			return r.Headers[i].Value
		}
	}
	return nil
}

// record is one that was read, and where.
type record struct {
	Record
	at        int64  // its offset in the partition that was read
	poison    string // why it cannot be handled at all; "" : it can
	foreign   bool   // of another consumer that shares the retry topic
	marker    bool   // it looks like the end of a transaction of Kafka
	letter    string // the id that its dead letter has, where that is another than ID
	notBefore time.Time
	hash      []byte // of the key; nil: no key
	held      int64  // bytes of the worker's limit
	failed    error  // of an attempt together with others
}

// reader tells what a message is. Headers of the runner count only in its own topic.
type reader struct {
	consumer, idHeader string
	byPosition         bool
	retryTopic         string
}

func (c reader) read(m kafka.Message) record {
	r := record{at: m.Offset, Record: Record{
		Topic: m.Topic, Partition: m.Partition, Offset: m.Offset,
		Key: m.Key, Value: m.Value, Headers: m.Headers, Time: m.Time, Attempt: 1,
	}}
	if m.Key != nil {
		sum := sha256.Sum256(m.Key)
		r.hash = sum[:16]
	}
	r.marker = looksLikeMarker(m)
	if c.retryTopic != "" && m.Topic == c.retryTopic {
		c.again(&r)
		return r
	}
	id := r.Header(c.idHeader)
	switch {
	case id == nil && c.byPosition:
		r.ID = r.position()
	case id == nil:
		r.poison = "the record has no header " + c.idHeader
		if r.Header(CloudEventIDHeader) != nil {
			r.poison += "; it has " + CloudEventIDHeader + ", as CloudEvents do: configure that as IDHeader"
		}
	case !isName(string(id)):
		r.poison = "the header " + c.idHeader + " is no id: it needs 1 to 1000 bytes of UTF-8 without zero bytes"
	default:
		r.ID = string(id)
	}
	if r.ID == "" {
		r.ID = r.position()
	}
	return r
}

// looksLikeMarker tells what may be the control record that ends a transaction of
// Kafka: kafka-go's Reader returns them as if they were records. Its key is a version and 0 or 1 (abort,
// commit), its value a version and an epoch.
func looksLikeMarker(m kafka.Message) bool {
	return len(m.Headers) == 0 && len(m.Key) == 4 && m.Key[0] == 0 && m.Key[1] == 0 && m.Key[2] == 0 && m.Key[3] <= 1 &&
		len(m.Value) == 6 && m.Value[0] == 0 && m.Value[1] == 0
}

func (r record) position() string {
	return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset)
}

// again reads a record of the retry topic.
func (c reader) again(r *record) {
	owner := r.Header(HeaderOwner)
	r.foreign = owner != nil && string(owner) != c.consumer
	id := string(r.Header(HeaderEventID))
	topic := string(r.Header(HeaderTopic))
	partition, err1 := strconv.Atoi(string(r.Header(HeaderPartition)))
	offset, err2 := strconv.ParseInt(string(r.Header(HeaderOffset)), 10, 64)
	attempts, err3 := strconv.Atoi(string(r.Header(HeaderAttempts)))
	if owner == nil || !isName(id) || !isName(topic) || err1 != nil || err2 != nil || err3 != nil {
		r.ID, r.poison = r.position(), "the record in the retry topic was not written by a runner"
		return
	}
	r.ID, r.Topic, r.Partition, r.Offset, r.Attempt = id, topic, partition, offset, attempts+1
	r.notBefore, _ = time.Parse(time.RFC3339Nano, string(r.Header(HeaderNotBefore)))
	r.Redriven = r.Header(HeaderRedriven) != nil
	r.Headers = withoutOurs(r.Headers)
	// It came without an id, as far as the configuration could tell then. Copies of it
	// come with the one that is found now.
	if own := string(r.Header(c.idHeader)); r.ID == r.position() && own != r.ID && isName(own) {
		r.letter, r.ID = r.ID, own
	}
}

// letterID is the id of the record in the table of dead letters.
func (r record) letterID() string {
	if r.letter != "" {
		return r.letter
	}
	return r.ID
}

func withoutOurs(headers []kafka.Header) []kafka.Header {
	ours := []string{HeaderEventID, HeaderOwner, HeaderReason, HeaderAttempts, HeaderTopic, HeaderPartition, HeaderOffset, HeaderTime, HeaderNotBefore, HeaderRedriven}
	return slices.DeleteFunc(slices.Clone(headers), func(h kafka.Header) bool { return slices.Contains(ours, h.Key) })
}

// forwarded returns the record for a topic of the runner: key, value and headers as
// they are, and ours.
func (r record) forwarded(consumer, reason string, attempts int, more ...kafka.Header) kafka.Record {
	text := func(name, value string) kafka.Header { return kafka.Header{Key: name, Value: []byte(value)} }
	headers := append(withoutOurs(r.Headers),
		text(HeaderEventID, r.letterID()),
		text(HeaderOwner, consumer),
		text(HeaderReason, reason),
		text(HeaderAttempts, strconv.Itoa(attempts)),
		text(HeaderTopic, r.Topic),
		text(HeaderPartition, strconv.Itoa(r.Partition)),
		text(HeaderOffset, strconv.FormatInt(r.Offset, 10)),
		text(HeaderTime, time.Now().UTC().Format(time.RFC3339Nano)))
	return kafka.Record{Key: bytesOf(r.Key), Value: bytesOf(r.Value), Headers: append(headers, more...)}
}

func bytesOf(b []byte) kafka.Bytes {
	if b == nil {
		return nil
	}
	return kafka.NewBytes(b)
}

// array is a literal of PostgreSQL, which every driver sends as text.
func array[T any](n int, at func(i int) (T, bool)) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		v, ok := at(i)
		if !ok {
			b.WriteString("NULL")
			continue
		}
		b.WriteByte('"')
		for _, c := range []byte(fmt.Sprint(v)) {
			if c == '"' || c == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}
