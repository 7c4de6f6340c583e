// Package admin serves health and metrics over HTTP. It reads the relay's status
// and changes nothing.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Paths that are served.
const (
	LivePath    = "/livez"
	ReadyPath   = "/readyz"
	MetricsPath = "/metrics"
)

// Time-outs of the server: nobody who is slow holds a connection for ever.
const (
	headerTimeout   = 5 * time.Second
	readTimeout     = 10 * time.Second
	writeTimeout    = 30 * time.Second
	idleTimeout     = 60 * time.Second
	shutdownTimeout = 2 * time.Second
	maxHeaderBytes  = 16 << 10
)

// front is the page at /.
const front = `cdc-relay

` + LivePath + `    200 while the process serves
` + ReadyPath + `   200 when streaming with progress, or standing by; else 503 with the reason
` + MetricsPath + `  for Prometheus
`

// Server serves /livez, /readyz and /metrics.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen takes the address, so that a port in use is found before anything
// starts. status must be safe for use from any goroutine.
func Listen(addr string, status func() relay.Status, m *Metrics, version string) (*Server, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, explain(addr, err)
	}
	return &Server{listener: l, http: &http.Server{
		Handler:           handler(status, m, version),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
	}}, nil
}

func explain(addr string, err error) error {
	what := fmt.Sprintf("listen on admin.listen, %s", addr)
	fix := "give admin.listen another address, or the empty string for no health and metrics"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		what = fmt.Sprintf("admin.listen: the port of %s is in use by another process, maybe another relay", addr)
	case errors.Is(err, os.ErrPermission):
		what = fmt.Sprintf("admin.listen: this user may not listen on %s", addr)
	}
	return &fault.Error{Class: fault.Stop, What: what, Fix: fix, Err: err}
}

// Addr is the address that is listened on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve serves until ctx ends, then lets requests in hand finish for a moment. It
// returns nil after that.
func (s *Server) Serve(ctx context.Context) error {
	done := make(chan error, 1) // takes Serve's result without waiting
	go func() { done <- s.http.Serve(s.listener) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve admin.listen: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := s.http.Shutdown(stop); err != nil {
		_ = s.http.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin.listen: %w", err)
	}
	return nil
}

// Close gives the address back; for a Server that was never served.
func (s *Server) Close() error { return s.http.Close() }

func handler(status func() relay.Status, m *Metrics, version string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, front)
	})
	mux.HandleFunc("GET "+LivePath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET "+ReadyPath, func(w http.ResponseWriter, _ *http.Request) {
		s := NewState(status(), version, time.Now())
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !s.Ready {
			if s.Reason == "" {
				s.Reason = "the relay is " + string(s.State)
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		_ = enc.Encode(s)
	})
	mux.Handle("GET "+MetricsPath, promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		Registry: m.registry, MaxRequestsInFlight: 4, Timeout: writeTimeout / 2,
	}))
	return mux
}
