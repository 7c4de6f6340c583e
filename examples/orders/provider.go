package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"

	"github.com/cdc-relay/cdc-relay/idempotency"
)

// provider stands for a mail service that is not ours. It sends a mail once per key, and
// one without a key as often as it is asked. It keeps all in memory: real ones forget a
// key after a day or so, and this one when it ends.
type provider struct {
	mu      sync.Mutex
	keys    map[string]message
	mails   []sentMail
	repeats int // that were dropped
}

type sentMail struct {
	message
	Key string `json:"key"`
}

// provide is the role of the provider.
func provide(ctx context.Context, s settings) error { return serveHTTP(ctx, s.listen, newProvider()) }

func newProvider() http.Handler {
	p := &provider{keys: map[string]message{}, mails: []sentMail{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mails", p.send)
	mux.HandleFunc("GET /mails", p.list)
	return mux
}

func (p *provider) send(w http.ResponseWriter, r *http.Request) {
	var mail message
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&mail); err != nil || mail.To == "" {
		http.Error(w, "send a JSON object with to and subject", http.StatusBadRequest)
		return
	}
	key := r.Header.Get(idempotency.Header)
	p.mu.Lock() // over look-up and mail, so that two requests with one key send one
	defer p.mu.Unlock()
	if first, known := p.keys[key]; known {
		if first != mail {
			http.Error(w, "the key came before with another mail", http.StatusUnprocessableEntity)
			return
		}
		p.repeats++
		slog.Info("mail dropped: its key came before", "key", key)
		return
	}
	if key != "" {
		p.keys[key] = mail
	}
	p.mails = append(p.mails, sentMail{mail, key})
	slog.Info("mail sent", "key", key)
	w.WriteHeader(http.StatusAccepted)
}

func (p *provider) list(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	answer, err := json.Marshal(map[string]any{"mails": p.mails, "repeats": p.repeats})
	p.mu.Unlock()
	if err != nil {
		http.Error(w, "the mails could not be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // whoever asked has gone away
}
