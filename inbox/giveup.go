package inbox

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// A copy of a record that is a dead letter already opens it again, and points to the
// newer one.
const insertLetter = "INSERT INTO public.inbox_dead_letters" +
	" (consumer, event_id, kafka_topic, kafka_partition, kafka_offset, key_hash, letter_topic, letter_partition, letter_offset, redrive_topic, reason, attempts)" +
	" VALUES ($1, $2, $3, $4::integer, $5::bigint, $6::bytea, $7, $8::integer, $9::bigint, $10, $11, $12::integer)" +
	" ON CONFLICT (consumer, kafka_topic, kafka_partition, kafka_offset, event_id) DO UPDATE SET" +
	" letter_topic = EXCLUDED.letter_topic, letter_partition = EXCLUDED.letter_partition, letter_offset = EXCLUDED.letter_offset," +
	" redrive_topic = EXCLUDED.redrive_topic, reason = EXCLUDED.reason, attempts = EXCLUDED.attempts," +
	" state = 'open', failed_at = now(), changed_at = now()"

// giveUp makes a record a dead letter: acknowledged in its topic first, then in the
// table; after that its offset may be committed. A crash in between lets the record come
// again: it is handled, or a dead letter once more.
func (w *worker) giveUp(r *record, why error, attempts int) bool {
	cfg := w.r.cfg
	if cfg.DeadLetterTopic == "" { // only a record that cannot be handled comes here then
		for {
			w.observe(Event{Kind: Retried, Offset: r.at, ID: r.ID, Err: why})
			if !w.commit() || !sleep(w.stop, cfg.BackoffMax) {
				return false
			}
		}
	}
	reason := reasonOf(why)
	partition, offset, ok := w.send(cfg.DeadLetterTopic, r, r.forwarded(cfg.Consumer, reason, attempts))
	if !ok {
		return false
	}
	var hash any
	if r.hash != nil {
		hash = `\x` + hex.EncodeToString(r.hash)
	}
	for pauses := w.r.pauses(); ; {
		err := w.r.begin.within(w.work, func(s session) error {
			_, err := s.exec(w.work, insertLetter, cfg.Consumer, r.letterID(), r.Topic, r.Partition, r.Offset, hash,
				cfg.DeadLetterTopic, partition, offset, cfg.RetryTopic, reason, attempts)
			return err
		})
		if err == nil {
			break
		}
		w.observe(Event{Kind: Waiting, Offset: r.at, ID: r.ID, Err: fmt.Errorf("note a dead letter: %w", err)})
		if !w.commit() || !sleep(w.stop, pauses.NextBackOff()) {
			return false
		}
	}
	w.observe(Event{Kind: DeadLettered, Offset: r.at, ID: r.ID, Attempt: attempts, N: 1, Err: why})
	return true
}

func (w *worker) sendToRetry(r *record, why error, attempts int) bool {
	cfg := w.r.cfg
	notBefore := time.Now().Add(cfg.RetryDelay).UTC().Format(time.RFC3339Nano)
	more := []kafka.Header{{Key: HeaderNotBefore, Value: []byte(notBefore)}}
	if r.Redriven {
		more = append(more, kafka.Header{Key: HeaderRedriven, Value: []byte("again")})
	}
	if _, _, ok := w.send(cfg.RetryTopic, r, r.forwarded(cfg.Consumer, reasonOf(why), attempts, more...)); !ok {
		return false
	}
	w.observe(Event{Kind: SentToRetry, Offset: r.at, ID: r.ID, Attempt: attempts, Err: why})
	return true
}

// send writes a record until it is acknowledged, or the worker must end.
func (w *worker) send(topic string, r *record, out kafka.Record) (partition int, offset int64, ok bool) {
	for pauses := w.r.pauses(); ; {
		if w.stop.Err() != nil { // the partition is another's, which decides anew
			return 0, 0, false
		}
		out.Key, out.Value = bytesOf(r.Key), bytesOf(r.Value) // an attempt reads them up
		partition, offset, err := w.r.cluster.produce(w.work, topic, r.Key, out)
		if err == nil {
			return partition, offset, true
		}
		w.observe(Event{Kind: Waiting, Offset: r.at, ID: r.ID, Err: err})
		if !w.commit() || !sleep(w.stop, pauses.NextBackOff()) {
			return 0, 0, false
		}
	}
}
