package check

import (
	"strconv"
	"strings"
	"time"
)

const (
	shortRetention = time.Hour
	createTopics   = "run cdc-relay setup --create-topics"
)

func (r *report) kafka(w Want, f Facts) {
	if !w.Brokers {
		r.skip("brokers", "not used by this configuration")
		return
	}
	if f.BrokersErr != nil {
		r.fails("brokers", f.BrokersErr, "")
		r.skip("topics", "the brokers could not be asked")
		return
	}
	r.pass("brokers", "reachable with these credentials")
	names := w.topics()
	for _, name := range names {
		if t, ok := r.exists("topic "+name, f.Topics[name], createTopics); ok {
			r.topic("topic "+name, t, w)
		}
	}
	if w.Publish && len(names) == 0 {
		r.add("topics", Warn, "name the topics in kafka.topics.names", "their names come from the rows, so they were not looked at")
	}
	if w.MarkTopic != "" {
		label := "topic " + w.MarkTopic
		if t, ok := r.exists(label, f.Topics[w.MarkTopic], runSetup); ok {
			r.markTopic(label, t)
		}
	}
}

// exists reports whether a topic can be looked at further.
func (r *report) exists(label string, t Topic, create string) (Topic, bool) {
	switch {
	case t.Err != nil:
		r.add(label, Fail, "grant DESCRIBE and WRITE on it to this user, or correct its name", "%v", t.Err)
	case t.Missing && t.CreateErr != nil:
		r.fails(label, t.CreateErr, "have it made by someone who may")
	case t.Missing:
		r.add(label, Warn, create, "does not exist; this user may create it")
	case t.Leaderless > 0:
		r.add(label, Warn, "bring the brokers with its replicas back", "%d of %d partitions have no leader now; the relay waits for them", t.Leaderless, t.Partitions)
		return t, true
	default:
		r.pass(label, "exists; partitions: %d", t.Partitions)
		return t, true
	}
	return t, false
}

// durable looks at what keeps acked records.
func (r *report) durable(label string, t Topic) {
	isr, _ := strconv.Atoi(t.Config["min.insync.replicas"])
	switch {
	case isr > t.Replicas:
		r.add(label+" replication", Fail, "lower min.insync.replicas or raise the replication factor",
			"min.insync.replicas is %d with a replication factor of %d: nothing can ever be written", isr, t.Replicas)
	case t.Replicas < 2:
		r.add(label+" replication", Warn, "use a replication factor of 3 and min.insync.replicas of 2", "replication factor %d: a broker that is lost takes acked events with it", t.Replicas)
	case isr < 2:
		r.add(label+" replication", Warn, "set min.insync.replicas to 2",
			"replication factor %d with min.insync.replicas %d: an event is acked when one broker has it", t.Replicas, isr)
	case isr == t.Replicas:
		r.add(label+" replication", Warn, "raise the replication factor to "+strconv.Itoa(isr+1),
			"replication factor and min.insync.replicas are both %d: while one broker is away nothing can be written", isr)
	default:
		r.pass(label+" replication", "replication factor %d, min.insync.replicas %d", t.Replicas, isr)
	}
	if t.Config["unclean.leader.election.enable"] == "true" {
		r.add(label+" unclean election", Warn, "set unclean.leader.election.enable=false", "a replica that lacks acked events may become leader, and they are lost")
	} else {
		r.pass(label+" unclean election", "off")
	}
}

func (r *report) topic(label string, t Topic, w Want) {
	if t.ConfigErr != nil {
		r.add(label+" configuration", Warn, "grant DESCRIBE_CONFIGS on it to this user", "%v", t.ConfigErr)
		return
	}
	r.durable(label, t)
	if limit, err := strconv.ParseInt(t.Config["max.message.bytes"], 10, 64); err == nil {
		if limit < w.MaxBatchBytes {
			r.add(label+" max.message.bytes", Warn, "raise it to what the largest event needs", "%d is less than kafka.max_batch_bytes, %d; batches are kept below it, and a larger event halts its partition", limit, w.MaxBatchBytes)
		} else {
			r.pass(label+" max.message.bytes", "%d; a larger event halts its partition", limit)
		}
	}
	if strings.Contains(t.Config["cleanup.policy"], "compact") {
		r.add(label+" cleanup.policy", Warn, "set cleanup.policy=delete", "compact: of events with the same key only the last is kept, and one without a key is refused")
	}
	ms, err := strconv.ParseInt(t.Config["retention.ms"], 10, 64)
	switch kept := time.Duration(ms) * time.Millisecond; {
	case err != nil || ms < 0 || ms > int64(1<<62/time.Millisecond):
		r.pass(label+" retention", "without limit in time")
	case kept < shortRetention:
		r.add(label+" retention", Warn, "raise retention.ms", "%s: a consumer that is away for longer misses events, and events older than that when published are removed at once", kept)
	default:
		r.pass(label+" retention", "%s", kept)
	}
}

// markTopic must keep the last mark of each slot for ever, in one order.
func (r *report) markTopic(label string, t Topic) {
	if t.Partitions != 1 {
		r.add(label, Fail, "delete it and run cdc-relay setup, or choose another checkpoint.topic", "has %d partitions; the marks need one", t.Partitions)
	}
	if t.ConfigErr != nil {
		r.add(label+" configuration", Warn, "grant DESCRIBE_CONFIGS on it to this user", "%v", t.ConfigErr)
		return
	}
	if policy := t.Config["cleanup.policy"]; policy != "compact" {
		r.add(label+" cleanup.policy", Fail, "set cleanup.policy=compact", "%s: the mark is removed after a while, and the relay then refuses to start", policy)
	} else {
		r.pass(label+" cleanup.policy", "compact")
	}
	r.durable(label, t)
}
