// Package live is the engine of the live picture: it runs the whole path as real processes, places orders over HTTP, follows
// the event of each from box to box by looking at PostgreSQL, Kafka, the provider and the workers' logs, and records every
// step with the values that it read. An HTTP API serves the recordings, as they grow, to the page.
//
// A process is held at each arrow until the values there are read, so that each step shows a state that really was. What a
// scenario breaks it breaks with SIGKILL or by holding, and every walk ends with what was expected beside what was got,
// counted in rows and offsets.
package live

import (
	"context"
	"net/http"
	"sync"

	"github.com/cdc-relay/cdc-relay/lab/stage"
)

// Engine runs scenarios on a stage. Start makes one; Close ends it, and not the stage.
type Engine struct {
	stage *stage.Stage
	rec   *recorder
	watch *watcher
	look  *observer

	versions map[string]string
	life     context.Context // until Close
	end      context.CancelFunc
	wg       sync.WaitGroup // of the goroutines that life owns

	mu      sync.Mutex
	running context.CancelFunc // of the scenario, or of putting right; nil: none
	idle    chan struct{}      // closed when it has ended
	walks   int
}

// Start makes an engine for a stage on which all processes run, with options DeadLetters and one partition.
func Start(ctx context.Context, s *stage.Stage) (*Engine, error) {
	e := &Engine{stage: s, rec: newRecorder()}
	e.life, e.end = context.WithCancel(context.Background())
	var err error
	if e.watch, err = newWatcher(s.KafkaAddr()); err != nil {
		return nil, err
	}
	if e.look, err = newObserver(ctx, s, e.watch); err != nil {
		e.watch.close()
		return nil, err
	}
	e.versions = e.look.versions(ctx)
	e.wg.Go(func() { e.watch.run(e.life) })
	e.wg.Go(func() { e.watchProcesses(e.life) })
	return e, nil
}

// Close ends the scenario that runs and all streams of events, and returns when nothing of the engine runs any more.
// Closing twice is safe.
func (e *Engine) Close() {
	e.end()
	e.rec.close()
	e.wg.Wait()
	e.watch.close()
	e.look.close()
}

// Handler serves the API under /api/, and page for everything else.
func (e *Engine) Handler(page http.Handler) http.Handler { return newAPI(e, page) }
