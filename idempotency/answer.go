package idempotency

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// ReplayedHeader is "true" in an answer that was told before.
const ReplayedHeader = "Idempotency-Replayed"

// answer is what a client is told.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) send(w http.ResponseWriter) {
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	if a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	w.WriteHeader(a.status)
	if len(a.body) > 0 {
		_, _ = w.Write(a.body) // the client has gone: it asks again
	}
}

// transient tells answers that ask to try again: they are not kept, and nor is what
// was done for them.
func (a answer) transient() bool {
	switch a.status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return a.status >= 500
}

// keep returns the headers that are stored, as JSON.
func (a answer) keep(names []string) (string, error) {
	kept := http.Header{}
	for _, name := range names {
		if values := a.header.Values(name); len(values) > 0 {
			kept[http.CanonicalHeaderKey(name)] = values
		}
	}
	b, err := json.Marshal(kept)
	return string(b), err
}

// stored is the answer of a row.
func stored(status int, headers string, body []byte) (answer, error) {
	a := answer{status: status, header: http.Header{}, body: body}
	if err := json.Unmarshal([]byte(headers), &a.header); err != nil {
		return answer{}, fmt.Errorf("read the headers of a stored answer: %w", err)
	}
	a.header.Set(ReplayedHeader, "true")
	return a, nil
}

// recorder holds a handler's answer back until the commit. It is no http.Flusher, so
// that a handler that wants to stream is told.
type recorder struct {
	answer
	limit    int
	tooLarge bool
}

func newRecorder(limit int) *recorder {
	return &recorder{answer: answer{header: http.Header{}}, limit: limit}
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status != 0 || status >= 100 && status < 200 {
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("idempotency: WriteHeader(%d) is no status", status)) // as net/http does
	}
	r.status = status
	r.header = r.header.Clone() // what is set later is too late, as everywhere
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.status == http.StatusNoContent || r.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	if r.tooLarge || len(r.body)+len(b) > r.limit {
		r.tooLarge, r.body = true, nil
		return 0, ErrAnswerTooLarge
	}
	r.body = append(r.body, b...)
	return len(b), nil
}
