package relay

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/cdc-relay/cdc-relay/route"
	"github.com/cdc-relay/cdc-relay/sink"
	"github.com/cdc-relay/cdc-relay/sink/null"
)

// haltedSink has a lane that is halted.
type haltedSink struct {
	*null.Sink
	lane sink.LaneStatus
}

func (h haltedSink) Lanes() []sink.LaneStatus { return []sink.LaneStatus{h.lane} }

// TestStatus_HaltedSinceTheRefusal: not since streaming began.
func TestStatus_HaltedSinceTheRefusal(t *testing.T) {
	r := New(Config{Slot: "s"}, Deps{Log: zap.NewNop()})
	r.setState(StateStreaming, "")
	at := time.Now().Add(time.Hour)
	r.sink = haltedSink{null.Open(), sink.LaneStatus{Topic: "t", Halted: &sink.Refusal{Topic: "t", ID: "i", Reason: errors.New("too large"), At: at}}}
	if st := r.Status(); st.State != StateHalted || !st.Since.Equal(at) {
		t.Errorf("%s since %s, want %s", st.State, st.Since, at)
	}
}

// TestRun_LeavesItsErrorToTheCaller: the log of a state does not tell it before.
func TestRun_LeavesItsErrorToTheCaller(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	r := New(Config{Slot: "s", Tables: []route.Table{{Schema: "public", Name: "outbox", ID: "id", Payload: "payload", Topic: "t"}}}, Deps{Log: zap.New(core), OpenSink: func(context.Context, sink.Refused) (sink.Sink, error) {
		return nil, errors.New("no such cluster")
	}})
	err := r.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no such cluster") || r.Status().Reason != err.Error() {
		t.Errorf("%v; status says %q", err, r.Status().Reason)
	}
	if logs.Len() != 1 {
		t.Errorf("%d lines, want that of the state alone", logs.Len())
	}
	for _, l := range logs.All() {
		for _, f := range l.Context {
			if strings.Contains(f.String, "no such cluster") {
				t.Errorf("the log has the error too: %s %s", l.Message, f.String)
			}
		}
	}
}
