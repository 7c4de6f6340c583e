package live

import (
	"encoding/json"
	"slices"
	"sync"
	"time"
)

// What is kept, so that a demo which runs for days needs no more memory than one of an hour.
const (
	keepWalks  = 50
	keepEvents = 2000 // for clients that come back with the number of the last event that they saw
	keepSteps  = 200  // of a walk; none of ours has so many
)

// Box is a place of the picture.
type Box string

// The boxes, in the order of the path.
const (
	Request     Box = "request"
	Transaction Box = "transaction"
	Relay       Box = "relay"
	Partition   Box = "partition"
	Worker      Box = "worker"
	Effect      Box = "effect"
	Offset      Box = "offset"
)

// Kind says what happened at a box.
type Kind string

// The kinds of steps.
const (
	Passed   Kind = "passed"
	Waits    Kind = "waits"
	Killed   Kind = "killed"
	Started  Kind = "started"
	Repeated Kind = "repeated"
	Skipped  Kind = "skipped"
	Failed   Kind = "failed"
)

// Outcome of a walk.
type Outcome string

// The outcomes.
const (
	Running       Outcome = "running"
	AsExpected    Outcome = "as_expected"
	NotAsExpected Outcome = "not_as_expected"
)

// Fact is a value that was read.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Fields are the values of the walk's order at the moment of a step.
type Fields struct {
	Order   string `json:"order"`
	Outbox  string `json:"outbox"`
	Effects string `json:"effects"`
	Offset  string `json:"offset"`
}

// Step is one thing that happened. Seq numbers all events, N the steps of the walk.
type Step struct {
	Seq    int64  `json:"seq"`
	Walk   string `json:"walk"`
	N      int    `json:"n"`
	At     Time   `json:"at"`
	Box    Box    `json:"box"`
	Kind   Kind   `json:"kind"`
	Title  string `json:"title"`
	Text   string `json:"text"`
	Facts  []Fact `json:"facts"`
	Fields Fields `json:"fields"`
}

// Walk is one run of a scenario. Expected and Got are pairs k=v with a space between them.
type Walk struct {
	Seq      int64   `json:"seq"`
	ID       string  `json:"id"`
	Scenario string  `json:"scenario"`
	Began    Time    `json:"began"`
	Ended    *Time   `json:"ended"`
	Outcome  Outcome `json:"outcome"`
	Expected string  `json:"expected"`
	Got      string  `json:"got"`
	Problem  string  `json:"problem"`
}

// Process is a process of the stage, as it was seen last.
type Process struct {
	Seq    int64  `json:"seq"`
	Name   string `json:"name"`
	Up     bool   `json:"up"`
	PID    int    `json:"pid"`
	Starts int    `json:"starts"`
}

// Time is written in RFC 3339 with microseconds, in UTC.
type Time struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	return t.UTC().AppendFormat(nil, `"2006-01-02T15:04:05.000000Z07:00"`), nil
}

// event is one line of the log that clients follow.
type event struct {
	seq  int64
	name string // step, walk, process
	data []byte // JSON
}

// recorder keeps walks, their steps and the processes, and tells subscribers of each change. It is safe for use by any
// goroutine, and blocks on none of them: a subscriber that does not keep up is dropped.
type recorder struct {
	mu        sync.Mutex
	seq       int64
	events    []event // the last ones, in the order of seq
	walks     []*recording
	processes []Process
	subs      map[*subscription]bool
	closed    bool
}

type recording struct {
	Walk  Walk   `json:"walk"`
	Steps []Step `json:"steps"`
}

// subscription is a client that follows. events is closed by the recorder, when the client is too slow or at the end.
type subscription struct{ events chan event }

const subscriptionBuffer = 256

func newRecorder() *recorder { return &recorder{subs: map[*subscription]bool{}} }

// publish numbers and keeps an event; r.mu is held.
func (r *recorder) publish(name string, v any, seq *int64) {
	r.seq++
	*seq = r.seq
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own types
	}
	ev := event{r.seq, name, data}
	if len(r.events) == keepEvents {
		r.events = slices.Delete(r.events, 0, keepEvents/4)
	}
	r.events = append(r.events, ev)
	for s := range r.subs {
		select {
		case s.events <- ev:
		default:
			r.drop(s)
		}
	}
}

func (r *recorder) drop(s *subscription) {
	if r.subs[s] {
		delete(r.subs, s)
		close(s.events)
	}
}

// begin records the beginning of a walk.
func (r *recorder) begin(id, scenario, expected string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.walks) == keepWalks {
		r.walks = slices.Delete(r.walks, 0, 1)
	}
	w := &recording{Walk: Walk{ID: id, Scenario: scenario, Began: Time{time.Now()}, Outcome: Running, Expected: expected}, Steps: []Step{}}
	r.walks = append(r.walks, w)
	r.publish("walk", &w.Walk, &w.Walk.Seq)
}

// step records one; its Seq, N and At are set here.
func (r *recorder) step(s Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.find(s.Walk)
	if w == nil || len(w.Steps) == keepSteps {
		return
	}
	s.N, s.At = len(w.Steps)+1, Time{time.Now()}
	if s.Facts == nil {
		s.Facts = []Fact{}
	}
	r.publish("step", &s, &s.Seq)
	w.Steps = append(w.Steps, s)
}

// finish records the end of a walk.
func (r *recorder) finish(id string, outcome Outcome, got, problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.find(id)
	if w == nil {
		return
	}
	now := Time{time.Now()}
	w.Walk.Ended, w.Walk.Outcome, w.Walk.Got, w.Walk.Problem = &now, outcome, got, problem
	r.publish("walk", &w.Walk, &w.Walk.Seq)
}

// process records how a process is, if that is new.
func (r *recorder) process(p Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.processes, func(known Process) bool { return known.Name == p.Name })
	if i < 0 {
		i = len(r.processes)
		r.processes = append(r.processes, Process{Name: p.Name})
	} else if known := r.processes[i]; known.Up == p.Up && known.PID == p.PID && known.Starts == p.Starts {
		return
	}
	r.processes[i] = p
	r.publish("process", &r.processes[i], &r.processes[i].Seq)
}

func (r *recorder) find(id string) *recording {
	for _, w := range r.walks {
		if w.Walk.ID == id {
			return w
		}
	}
	return nil
}

// walk is a copy of a recording.
func (r *recorder) walk(id string) (recording, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.find(id)
	if w == nil {
		return recording{}, false
	}
	return recording{w.Walk, slices.Clone(w.Steps)}, true
}

// state is all but the steps, as of event seq.
func (r *recorder) state() (seq int64, processes []Process, walks []Walk) {
	r.mu.Lock()
	defer r.mu.Unlock()
	walks = make([]Walk, 0, len(r.walks))
	for _, w := range r.walks {
		walks = append(walks, w.Walk)
	}
	return r.seq, append([]Process{}, r.processes...), walks
}

// subscribe returns the events behind number after that are still kept, and what follows. A number that was never given is
// one of an engine before this one: then all that is kept. End it by unsubscribe. nil: at the end of the engine, or when
// there are too many.
func (r *recorder) subscribe(after int64) ([]event, *subscription) {
	const most = 64
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.subs) >= most {
		return nil, nil
	}
	if after > r.seq {
		after = 0
	}
	from := len(r.events)
	for from > 0 && r.events[from-1].seq > after {
		from--
	}
	s := &subscription{events: make(chan event, subscriptionBuffer)}
	r.subs[s] = true
	return slices.Clone(r.events[from:]), s
}

func (r *recorder) unsubscribe(s *subscription) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(s)
}

// close ends all subscriptions; there are no new ones.
func (r *recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for s := range r.subs {
		r.drop(s)
	}
}
