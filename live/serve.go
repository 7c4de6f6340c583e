package live

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// DefaultPort is where the page is, unless somebody else is there.
const DefaultPort = 7070

// Listen listens on loopback. Port 0 is DefaultPort, or a free one where that is taken.
func Listen(port int) (net.Listener, error) {
	at := func(port int) (net.Listener, error) {
		return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	if port != 0 {
		l, err := at(port)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("port %d is taken: give another one, PORT=...: %w", port, err)
		}
		return l, err
	}
	l, err := at(DefaultPort)
	if errors.Is(err, syscall.EADDRINUSE) {
		return at(0)
	}
	return l, err
}

// Serve serves the engine and the page until ctx ends, and returns when no request is open any more. It closes l.
func Serve(ctx context.Context, l net.Listener, e *Engine, page http.Handler) error {
	// No WriteTimeout: a stream of events is long, and has one for each event.
	server := &http.Server{Handler: e.Handler(page), ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := make(chan error, 1)
	ended := context.AfterFunc(ctx, func() {
		e.Close() // ends the streams, for which Shutdown would wait
		within, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		stop <- errors.Join(server.Shutdown(within), server.Close())
	})
	err := server.Serve(l)
	if !ended() {
		return <-stop
	}
	return fmt.Errorf("serve the page: %w", err)
}
