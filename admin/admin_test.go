package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/sink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a relay whose status the test sets.
type source struct {
	mu sync.Mutex
	s  relay.Status
}

func (s *source) status() relay.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.s
}

func (s *source) set(st relay.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s = st
}

func busy(now time.Time) relay.Status {
	safe := int64(77)
	return relay.Status{
		State: relay.StateStreaming, Ready: true, Since: now.Add(-time.Minute), Slot: "s", Publication: "p",
		Received: 400, Acked: 300, Durable: 200, Confirmed: 100, ServerLSN: 1100, RestartLSN: 50,
		LagBytes: 1000, RetainedBytes: 1050, SafeWALBytes: &safe, WatchedAt: now,
		OldestUnacked: now.Add(-3 * time.Second), DecodedTransactions: 5, DecodedRows: 6, DecodedMessages: 61, IgnoredMessages: 62, DecodedBytes: 7, Reconnects: 2,
		SourceErrors: map[sink.ErrorKey]uint64{{Class: fault.Retry, Code: "57P01"}: 4},
		History:      &relay.HistoryStatus{Slot: "h", From: 60, To: 100, Since: now.Add(-time.Hour), RetainedBytes: 1060, Dropped: 1},
		Gaps:         []checkpoint.Gap{{To: 99, Reason: "adopted", Found: now}},
		Halts:        []sink.Refusal{{Topic: "t", ID: "i1", LSN: 90, Reason: errors.New("too large"), At: now}},
		Lanes: []sink.LaneStatus{
			{Topic: "t", Halted: &sink.Refusal{}, Since: now}, {Topic: "ok", Queued: 3},
			{Topic: "u", LastError: "NOT_LEADER_OR_FOLLOWER", Since: now},
		},
		Sink: sink.Stats{
			Published: 11, PublishedSize: 12, Requests: 13, Retries: 14, InFlightBytes: 15, BudgetBytes: 16,
			Errors: map[sink.ErrorKey]uint64{{Class: fault.Refresh, Code: "timeout"}: 9},
			Topics: map[string]uint64{"t": 8, "u": 3},
		},
	}
}

func TestMetrics_PassTheLinter(t *testing.T) {
	src := &source{s: busy(time.Now())}
	m := NewMetrics("v1", "abc")
	m.Watch(src.status)
	m.ObserveAck(3 * time.Millisecond)
	m.ObserveAck(-time.Second)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) != 0 {
		t.Errorf("%v %v", err, problems)
	}
	got := make(map[string]bool)
	for _, f := range families {
		got[f.GetName()] = true
		if n := f.GetName(); !strings.HasPrefix(n, "cdc_relay_") && !strings.HasPrefix(n, "go_") && !strings.HasPrefix(n, "process_") {
			t.Errorf("%s has no prefix", n)
		}
	}
	for _, want := range []string{"cdc_relay_build_info", "cdc_relay_commit_to_ack_seconds", "cdc_relay_safe_wal_bytes", "go_goroutines", "process_resident_memory_bytes"} {
		if !got[want] {
			t.Errorf("no %s", want)
		}
	}
}

func TestMetrics_ShowTheStatus(t *testing.T) {
	now := time.Unix(1e9, 0)
	src := &source{s: busy(now)}
	c := newCollector(src.status, func() time.Time { return now })
	want := `
# HELP cdc_relay_confirmed_lag_bytes WAL between the confirmed position and the server's end of WAL.
# TYPE cdc_relay_confirmed_lag_bytes gauge
cdc_relay_confirmed_lag_bytes 1000
# HELP cdc_relay_decoded_messages_total Logical messages with the configured prefix read from the slot.
# TYPE cdc_relay_decoded_messages_total counter
cdc_relay_decoded_messages_total 61
# HELP cdc_relay_errors_total Errors by side (source or kafka), class (retry, refresh, poison or stop) and code.
# TYPE cdc_relay_errors_total counter
cdc_relay_errors_total{class="refresh",code="timeout",side="kafka"} 9
cdc_relay_errors_total{class="retry",code="57P01",side="source"} 4
# HELP cdc_relay_failing_partitions Topic-partitions whose last attempt failed, or that are halted.
# TYPE cdc_relay_failing_partitions gauge
cdc_relay_failing_partitions 2
# HELP cdc_relay_halted_records Records that can never be written and hold up their topic-partition, or reading.
# TYPE cdc_relay_halted_records gauge
cdc_relay_halted_records 1
# HELP cdc_relay_history_available 1 when there is a range that can be replayed, 0 when the history slot is gone or lost; missing without a history.
# TYPE cdc_relay_history_available gauge
cdc_relay_history_available 1
# HELP cdc_relay_history_drops_total Times that the history slot was dropped, because more WAL was kept for it than history.hard_max_bytes.
# TYPE cdc_relay_history_drops_total counter
cdc_relay_history_drops_total 1
# HELP cdc_relay_history_retained_wal_bytes WAL that the server keeps for the history slot, from its restart position to the end of WAL.
# TYPE cdc_relay_history_retained_wal_bytes gauge
cdc_relay_history_retained_wal_bytes 1060
# HELP cdc_relay_history_start_timestamp_seconds All that was committed since this time can be replayed; missing while no time is known.
# TYPE cdc_relay_history_start_timestamp_seconds gauge
cdc_relay_history_start_timestamp_seconds 9.999964e+08
# HELP cdc_relay_ignored_messages_total Logical messages with the configured prefix that are not transactional, and so are never published.
# TYPE cdc_relay_ignored_messages_total counter
cdc_relay_ignored_messages_total 62
# HELP cdc_relay_oldest_unpublished_age_seconds Age of the oldest transaction that is not fully acked, by its commit time; 0 when there is none.
# TYPE cdc_relay_oldest_unpublished_age_seconds gauge
cdc_relay_oldest_unpublished_age_seconds 3
# HELP cdc_relay_position_bytes Positions in the WAL: received, acked, durable (the saved mark), confirmed, the server's end of WAL, and history_start: from where events can be replayed.
# TYPE cdc_relay_position_bytes gauge
cdc_relay_position_bytes{position="acked"} 300
cdc_relay_position_bytes{position="confirmed"} 100
cdc_relay_position_bytes{position="durable"} 200
cdc_relay_position_bytes{position="history_start"} 60
cdc_relay_position_bytes{position="received"} 400
cdc_relay_position_bytes{position="server"} 1100
# HELP cdc_relay_ready 1 when ready, as active or as standby, else 0.
# TYPE cdc_relay_ready gauge
cdc_relay_ready 1
# HELP cdc_relay_topic_published_records_total Records acked by the brokers, by topic; past 200 topics the rest is counted as other.
# TYPE cdc_relay_topic_published_records_total counter
cdc_relay_topic_published_records_total{topic="t"} 8
cdc_relay_topic_published_records_total{topic="u"} 3
`
	names := []string{"cdc_relay_confirmed_lag_bytes", "cdc_relay_decoded_messages_total", "cdc_relay_ignored_messages_total", "cdc_relay_errors_total", "cdc_relay_failing_partitions",
		"cdc_relay_halted_records", "cdc_relay_oldest_unpublished_age_seconds", "cdc_relay_position_bytes", "cdc_relay_ready",
		"cdc_relay_topic_published_records_total", "cdc_relay_history_available", "cdc_relay_history_drops_total",
		"cdc_relay_history_retained_wal_bytes", "cdc_relay_history_start_timestamp_seconds"}
	if got := collect(t, c, names...); got != strings.TrimPrefix(want, "\n") {
		t.Errorf("got:\n%s\nwant:%s", got, want)
	}
	src.set(relay.Status{State: relay.StateStarting})
	if got := collect(t, c, "cdc_relay_confirmed_lag_bytes", "cdc_relay_position_bytes"); got != "" {
		t.Errorf("shows what is not known yet: %s", got)
	}
}

// collect returns the named metrics as text.
func collect(t *testing.T, c prometheus.Collector, names ...string) string {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		if slices.Contains(names, f.GetName()) {
			if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b.String()
}

func TestMetrics_TopicsAreBoundedAndOnlyRise(t *testing.T) {
	src := &source{}
	c := newCollector(src.status, time.Now)
	topics := make(map[string]uint64)
	for i := range 150 {
		topics[fmt.Sprintf("a%d", i)] = 1
	}
	before := c.limitTopics(topics)
	for i := range 500 {
		topics[fmt.Sprintf("b%d", i)] = 1
	}
	topics["other"] = 5
	topics["bad\xff"] = 1
	after := c.limitTopics(topics)
	if len(after) > maxTopics+1 {
		t.Errorf("%d labels", len(after))
	}
	var sum uint64
	for topic, n := range after {
		sum += n
		if n < before[topic] {
			t.Errorf("%s went back", topic)
		}
	}
	for topic := range before {
		if after[topic] == 0 {
			t.Errorf("%s is gone", topic)
		}
	}
	if sum != 656 {
		t.Errorf("sum %d", sum)
	}
}

func serve(t *testing.T, src *source) string {
	t.Helper()
	s, err := Listen("127.0.0.1:0", src.status, NewMetrics("v1", ""), "v1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + s.Addr().String()
}

func get(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestServer_ReadinessFollowsTheStatus(t *testing.T) {
	src := &source{}
	url := serve(t, src)
	for _, tc := range []struct {
		s      relay.Status
		code   int
		reason string
	}{
		{relay.Status{State: relay.StateStarting}, 503, "the relay is starting"},
		{relay.Status{State: relay.StateStandby, Ready: true}, 200, ""},
		{busy(time.Now()), 200, ""},
		{relay.Status{State: relay.StateHalted, Reason: "topic t partition 0 is halted"}, 503, "topic t partition 0 is halted"},
	} {
		src.set(tc.s)
		code, body := get(t, http.MethodGet, url+ReadyPath)
		var got State
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		if code != tc.code || got.Reason != tc.reason || got.State != tc.s.State || got.Ready != tc.s.Ready {
			t.Errorf("%s: %d %s", tc.s.State, code, body)
		}
	}
	src.set(busy(time.Now()))
	_, body := get(t, http.MethodGet, url+ReadyPath)
	for _, want := range []string{`"confirmed": "0/64"`, `"reason": "too large"`, `"lag_bytes": 1000`, `"to": "0/63"`, `"last_error": "NOT_LEADER_OR_FOLLOWER"`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}

func TestServer_Pages(t *testing.T) {
	url := serve(t, &source{})
	for _, tc := range []struct {
		method, path string
		code         int
		body         string
	}{
		{http.MethodGet, LivePath, 200, "ok\n"},
		{http.MethodHead, LivePath, 200, ""},
		{http.MethodPost, LivePath, 405, ""},
		{http.MethodGet, MetricsPath, 200, "cdc_relay_build_info{"},
		{http.MethodGet, "/", 200, ReadyPath},
		{http.MethodGet, "/debug/pprof/", 404, ""},
	} {
		code, body := get(t, tc.method, url+tc.path)
		if code != tc.code || !strings.Contains(body, tc.body) {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, code, body)
		}
	}
}

func TestListen_PortInUseNamesPortAndKey(t *testing.T) {
	src := &source{}
	m := NewMetrics("", "")
	first, err := Listen("127.0.0.1:0", src.status, m, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.listener.Close() }()
	addr := first.Addr().String()
	_, err = Listen(addr, src.status, m, "")
	if err == nil || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "admin.listen") || fault.ClassOf(err) != fault.Stop {
		t.Error(err)
	}
}

func TestState_TheServerIsNotBehindWhatItSent(t *testing.T) {
	s := busy(time.Now())
	s.ServerLSN, s.Received = 0x100, 0x200
	if got := NewState(s, "", time.Now()).Positions; got.Server != "0/200" || got.Received != "0/200" {
		t.Errorf("%+v", got)
	}
	s.ServerLSN = 0x300
	if got := NewState(s, "", time.Now()).Positions; got.Server != "0/300" {
		t.Errorf("%+v", got)
	}
}

func TestHandler_ShowsThePathsAtTheFront(t *testing.T) {
	src := &source{s: busy(time.Now())}
	h := handler(src.status, NewMetrics("v", ""), "v")
	for path, code := range map[string]int{"/": http.StatusOK, "/other": http.StatusNotFound} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if w.Code != code {
			t.Errorf("%s: %d", path, w.Code)
		}
		for _, p := range []string{LivePath, ReadyPath, MetricsPath} {
			if path == "/" && !strings.Contains(w.Body.String(), "\n"+p+" ") {
				t.Errorf("no %s in %s", p, w.Body)
			}
		}
	}
}
