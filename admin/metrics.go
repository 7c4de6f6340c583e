package admin

import (
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/sink"
)

const namespace = "cdc_relay"

// maxTopics bounds the values of the label topic; the rest is counted as other.
const (
	maxTopics  = 200
	otherTopic = "other"
)

// states are all values of the label state.
var states = []relay.State{
	relay.StateStarting, relay.StateStandby, relay.StateStreaming, relay.StateReconnecting,
	relay.StateHalted, relay.StateStopping, relay.StateStopped,
}

// Metrics are the relay's metrics on a registry of their own. They are read from
// the relay's status when they are asked for, except the histogram.
type Metrics struct {
	registry *prometheus.Registry
	toAck    prometheus.Histogram
}

// NewMetrics returns metrics of the build and the process.
func NewMetrics(version, revision string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		toAck: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "commit_to_ack_seconds",
			Help:    "Time from a transaction's commit, by the server's clock, to the ack of its last record, by this machine's clock.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Always 1; the labels name the build.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "goversion": runtime.Version()},
	})
	info.Set(1)
	m.registry.MustRegister(m.toAck, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Watch adds the metrics of a relay's status, which must be safe for use from any
// goroutine. It is called once.
func (m *Metrics) Watch(status func() relay.Status) {
	m.registry.MustRegister(newCollector(status, time.Now))
}

// ObserveAck records the time from a commit to its last ack. A clock that is
// behind the server's counts as no time.
func (m *Metrics) ObserveAck(d time.Duration) { m.toAck.Observe(max(d, 0).Seconds()) }

// collector turns a status into metrics.
type collector struct {
	status func() relay.Status
	now    func() time.Time

	mu     sync.Mutex
	topics map[string]bool // that have a label of their own
}

func newCollector(status func() relay.Status, now func() time.Time) *collector {
	return &collector{status: status, now: now, topics: make(map[string]bool)}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

var (
	readyDesc    = desc("ready", "1 when ready, as active or as standby, else 0.")
	stateDesc    = desc("state", "1 for the state that the relay is in, else 0.", "state")
	txDesc       = desc("decoded_transactions_total", "Transactions read from the slot.")
	rowsDesc     = desc("decoded_rows_total", "Inserted rows read from the slot.")
	messagesDesc = desc("decoded_messages_total", "Logical messages with the configured prefix read from the slot.")
	ignoredDesc  = desc("ignored_messages_total", "Logical messages with the configured prefix that are not transactional, and so are never published.")
	bytesDesc    = desc("decoded_bytes_total", "Bytes read from the slot.")
	pubDesc      = desc("published_records_total", "Records acked by the brokers.")
	pubBytesDesc = desc("published_bytes_total", "Bytes of the records acked by the brokers, encoded and before compression.")
	topicDesc    = desc("topic_published_records_total", "Records acked by the brokers, by topic; past 200 topics the rest is counted as other.", "topic")
	requestsDesc = desc("produce_requests_total", "Produce requests sent.")
	retriesDesc  = desc("produce_retries_total", "Record batches sent again.")
	resetsDesc   = desc("producer_id_resets_total", "Times that a topic-partition began anew as another producer, because the brokers did not know it any more; records may have been written twice then.")
	errorsDesc   = desc("errors_total", "Errors by side (source or kafka), class (retry, refresh, poison or stop) and code.", "side", "class", "code")
	inFlightDesc = desc("in_flight_bytes", "Bytes taken from the in-flight budget.")
	budgetDesc   = desc("in_flight_budget_bytes", "The in-flight budget.")
	ageDesc      = desc("oldest_unpublished_age_seconds", "Age of the oldest transaction that is not fully acked, by its commit time; 0 when there is none.")
	lagDesc      = desc("confirmed_lag_bytes", "WAL between the confirmed position and the server's end of WAL.")
	retainedDesc = desc("retained_wal_bytes", "WAL that the server keeps for the slot.")
	safeDesc     = desc("safe_wal_bytes", "WAL that can still be written before the slot is in danger of being lost; missing without a limit.")
	positionDesc = desc("position_bytes", "Positions in the WAL: received, acked, durable (the saved mark), confirmed, the server's end of WAL, and history_start: from where events can be replayed.", "position")
	napsDesc     = desc("receive_naps_total", "Pauses between two reads of a busy stream; see source.coalesce_reads.")
	reconnDesc   = desc("reconnects_total", "Times that the replication connection was made again.")
	haltsDesc    = desc("halted_records", "Records that can never be written and hold up their topic-partition, or reading.")
	failingDesc  = desc("failing_partitions", "Topic-partitions whose last attempt failed, or that are halted.")
	histUpDesc   = desc("history_available", "1 when there is a range that can be replayed, 0 when the history slot is gone or lost; missing without a history.")
	histKeptDesc = desc("history_retained_wal_bytes", "WAL that the server keeps for the history slot, from its restart position to the end of WAL.")
	histTimeDesc = desc("history_start_timestamp_seconds", "All that was committed since this time can be replayed; missing while no time is known.")
	histDropDesc = desc("history_drops_total", "Times that the history slot was dropped, because more WAL was kept for it than history.hard_max_bytes.")
	deletedDesc  = desc("retention_deleted_rows_total", "Published rows that were deleted from the outbox tables.")
	droppedDesc  = desc("retention_dropped_partitions_total", "Partitions of the outbox tables that were dropped, their rows published.")
	madeDesc     = desc("retention_made_partitions_total", "Partitions of the outbox tables that were made ahead.")
	detachedDesc = desc("retention_detached_partitions", "Partitions that were detached and are not dropped yet.")
	untilDesc    = desc("retention_partitions_until_timestamp_seconds", "Up to when all outbox tables have partitions; missing while it is not known.")
	blockedDesc  = desc("retention_blocked", "1 while retention deletes nothing because something stands in its way, else 0; the status says what.")
	markedDesc   = desc("marked_rows_total", "Published rows that were marked in the outbox tables.")
	unmarkedDesc = desc("unmarked_rows", "Rows that are published, or on their way, and not marked yet.")
	markFailDesc = desc("marking_failing", "1 while published rows cannot be marked, so that nothing behind them is confirmed, else 0; the status says why.")
	gapsDesc     = desc("open_gaps", "Ranges that may never have been published, kept with the mark.")

	allDescs = []*prometheus.Desc{readyDesc, stateDesc, txDesc, rowsDesc, messagesDesc, ignoredDesc, bytesDesc, pubDesc, pubBytesDesc, topicDesc,
		requestsDesc, retriesDesc, resetsDesc, errorsDesc, inFlightDesc, budgetDesc, ageDesc, lagDesc, retainedDesc, safeDesc,
		positionDesc, napsDesc, reconnDesc, haltsDesc, failingDesc, deletedDesc,
		droppedDesc, madeDesc, detachedDesc, untilDesc, blockedDesc, markedDesc, unmarkedDesc, markFailDesc, gapsDesc, histUpDesc, histKeptDesc, histTimeDesc, histDropDesc}
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range allDescs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(readyDesc, oneIf(s.Ready))
	for _, st := range states {
		gauge(stateDesc, oneIf(st == s.State), string(st))
	}
	counter(txDesc, s.DecodedTransactions)
	counter(rowsDesc, s.DecodedRows)
	counter(messagesDesc, s.DecodedMessages)
	counter(ignoredDesc, s.IgnoredMessages)
	counter(bytesDesc, s.DecodedBytes)
	counter(napsDesc, s.ReceiveNaps)
	counter(reconnDesc, s.Reconnects)

	counter(pubDesc, s.Sink.Published)
	counter(pubBytesDesc, s.Sink.PublishedSize)
	counter(requestsDesc, s.Sink.Requests)
	counter(retriesDesc, s.Sink.Retries)
	counter(resetsDesc, s.Sink.ProducerIDResets)
	for topic, n := range c.limitTopics(s.Sink.Topics) {
		counter(topicDesc, n, topic)
	}
	c.errors(s.SourceErrors, "source", counter)
	c.errors(s.Sink.Errors, "kafka", counter)
	gauge(inFlightDesc, float64(s.Sink.InFlightBytes))
	gauge(budgetDesc, float64(s.Sink.BudgetBytes))

	gauge(ageDesc, age(s.OldestUnacked, c.now()))
	if !s.WatchedAt.IsZero() {
		gauge(lagDesc, float64(s.LagBytes))
		gauge(retainedDesc, float64(s.RetainedBytes))
		if s.SafeWALBytes != nil {
			gauge(safeDesc, float64(*s.SafeWALBytes))
		}
	}
	for name, lsn := range map[string]uint64{"received": uint64(s.Received), "acked": uint64(s.Acked),
		"durable": uint64(s.Durable), "confirmed": uint64(s.Confirmed), "server": uint64(s.ServerLSN)} {
		if lsn != 0 {
			gauge(positionDesc, float64(lsn), name)
		}
	}
	if h := s.History; h != nil {
		c.history(h, gauge, counter)
	}
	gauge(haltsDesc, float64(len(s.Halts)))
	gauge(failingDesc, float64(failing(s.Lanes)))
	gauge(gapsDesc, float64(len(s.Gaps)))
	if r := s.Retention; r != nil {
		counter(deletedDesc, r.Deleted)
		if p := r.Partitions; p != nil {
			counter(droppedDesc, p.Dropped)
			counter(madeDesc, p.Made)
			gauge(detachedDesc, float64(len(p.Detached)))
			if p.Until != nil {
				gauge(untilDesc, float64(p.Until.Unix()))
			}
		}
		gauge(blockedDesc, oneIf(r.Blocked != ""))
	}
	if m := s.Marking; m != nil {
		counter(markedDesc, m.Marked)
		gauge(unmarkedDesc, float64(m.Held))
		gauge(markFailDesc, oneIf(m.Failing != ""))
	}
}

func (c *collector) history(h *relay.HistoryStatus, gauge func(*prometheus.Desc, float64, ...string), counter func(*prometheus.Desc, uint64, ...string)) {
	gauge(histUpDesc, oneIf(h.Problem == ""))
	counter(histDropDesc, h.Dropped)
	gauge(histKeptDesc, float64(h.RetainedBytes))
	if h.From != 0 {
		gauge(positionDesc, float64(h.From), "history_start")
	}
	if !h.Since.IsZero() {
		gauge(histTimeDesc, float64(h.Since.UnixMilli())/1000)
	}
}

func (c *collector) errors(errs map[sink.ErrorKey]uint64, side string, counter func(*prometheus.Desc, uint64, ...string)) {
	type labels struct{ class, code string }
	sum := make(map[labels]uint64)
	for k, n := range errs {
		sum[labels{k.Class.String(), label(k.Code)}] += n
	}
	for l, n := range sum {
		counter(errorsDesc, n, side, l.class, l.code)
	}
}

// limitTopics keeps the first maxTopics topics that it ever saw and adds up the
// others, so that each series only rises.
func (c *collector) limitTopics(topics map[string]uint64) map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]uint64, len(topics))
	for topic, n := range topics {
		name := label(topic)
		if name != otherTopic && !c.topics[name] {
			if len(c.topics) >= maxTopics {
				name = otherTopic
			} else {
				c.topics[name] = true
			}
		}
		out[name] += n
	}
	return out
}

func label(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func failing(lanes []sink.LaneStatus) int {
	n := 0
	for _, l := range lanes {
		if l.Halted != nil || !l.Since.IsZero() {
			n++
		}
	}
	return n
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
