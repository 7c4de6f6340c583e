package inbox

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts events of one or more runners for Prometheus: register it, and give
// its Observe to Config.
//
//	m := inbox.NewMetrics("billing")
//	prometheus.MustRegister(m)
//	config.Observe = m.Observe
type Metrics struct {
	records, waits, lost *prometheus.CounterVec
	lag                  *prometheus.GaugeVec
	letters, age         prometheus.Gauge
}

// NewMetrics returns the metrics of a consumer, which is their label.
func NewMetrics(consumer string) *Metrics {
	labels := prometheus.Labels{"consumer": consumer}
	counter := func(name, help string, by ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "inbox_" + name, Help: help, ConstLabels: labels}, by)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "inbox_" + name, Help: help, ConstLabels: labels})
	}
	return &Metrics{
		records: counter("records_total", "Records by what became of them.", "outcome"),
		waits:   counter("interruptions_total", "Times that the database, Kafka or the group did not answer, or a cleanup failed.", "kind"),
		lost:    counter("lost_offsets_total", "Offsets that retention deleted before they were read. Alert on any.", "topic"),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "inbox_lag_records", Help: "Records of the partition that are not handled.", ConstLabels: labels},
			[]string{"topic", "partition"}),
		letters: gauge("dead_letters_open", "Dead letters that nobody has redriven or discarded."),
		age:     gauge("dead_letter_oldest_seconds", "Age of the oldest of them; 0 for none."),
	}
}

// Observe is for Config.Observe.
func (m *Metrics) Observe(e Event) {
	switch e.Kind {
	case Processed, Duplicates, Skipped:
		m.records.WithLabelValues(string(e.Kind)).Add(float64(e.N))
	case Retried, SentToRetry, DeadLettered:
		m.records.WithLabelValues(string(e.Kind)).Inc()
	case Waiting, OffsetRefused, OffsetsAhead, GroupFailed, CleanupFailed:
		m.waits.WithLabelValues(string(e.Kind)).Inc()
	case OffsetsLost:
		m.lost.WithLabelValues(e.Topic).Add(float64(e.N))
	case Lag:
		m.lag.WithLabelValues(e.Topic, strconv.Itoa(e.Partition)).Set(float64(e.N))
	case Revoked:
		m.lag.DeleteLabelValues(e.Topic, strconv.Itoa(e.Partition))
	case DeadLetterAge:
		m.letters.Set(float64(e.N))
		m.age.Set(e.Age.Seconds())
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.records, m.waits, m.lost, m.lag, m.letters, m.age}
}

// Describe is that of a prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect is that of a prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}
