package idempotency

import (
	"encoding/json"
	"net/http"
)

// problem is an answer of the middleware itself, by RFC 9457.
type problem struct {
	status int
	code   string
	detail string
}

var (
	missingKey    = problem{http.StatusBadRequest, "missing-key", errNoKey.Error() + "; make a key per request, and send it with every retry"}
	malformedKey  = problem{http.StatusBadRequest, "malformed-key", errBadKey.Error()}
	unreadable    = problem{http.StatusBadRequest, "unreadable-body", "the body of the request could not be read to its end"}
	unknownClient = problem{http.StatusUnauthorized, "unknown-client", "the request names no client to whom a key could belong"}
	inFlight      = problem{http.StatusConflict, "in-flight", "a request with this key is being processed; try again to be told its answer"}
	bodyTooLarge  = problem{http.StatusRequestEntityTooLarge, "body-too-large", "the body of the request is above the limit"}
	keyReused     = problem{http.StatusUnprocessableEntity, "key-reused", "this key came before with another request; use a new key for a new request"}
	failed        = problem{http.StatusInternalServerError, "failed", "the request failed and had no effect; it may be sent again with the same key"}
	answerLost    = problem{http.StatusInternalServerError, "answer-lost", "an earlier request with this key may have had its effect, and its answer is not known"}
	unavailable   = problem{http.StatusServiceUnavailable, "unavailable", "it is not known whether the request had its effect; send it again with the same key"}
)

// answer is the problem as it is told.
func (p problem) answer(docs string) answer {
	body := struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
		Code   string `json:"code"`
	}{"about:blank", http.StatusText(p.status), p.status, p.detail, p.code}
	if docs != "" {
		body.Type = docs + "#" + p.code
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings always can be
	}
	h := http.Header{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}}
	if p.status == http.StatusConflict || p.status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	return answer{p.status, h, append(b, '\n')}
}
