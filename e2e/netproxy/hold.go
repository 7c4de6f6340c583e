package netproxy

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
)

// Hold keeps what passes one arrow of a proxy, from its making until Release. What is kept when either side's connection
// ends is dropped with the connection: it is delivered to nobody, neither then nor after Release.
type Hold struct {
	reached, released chan struct{}
	reach, release    sync.Once
}

// Reached is closed when the first message stands at the arrow.
func (h *Hold) Reached() <-chan struct{} { return h.reached }

// Wait waits until the first message stands at the arrow, or ctx ends.
func (h *Hold) Wait(ctx context.Context) error {
	select {
	case <-h.reached:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release lets pass what is kept and all that comes. Releasing twice is safe.
func (h *Hold) Release() { h.release.Do(func() { close(h.released) }) }

func (h *Hold) isReleased() bool {
	select {
	case <-h.released:
		return true
	default:
		return false
	}
}

// holds are a proxy's open holds for messages of type M.
type holds[M any] struct {
	mu   sync.Mutex
	list []heldBy[M]
}

type heldBy[M any] struct {
	*Hold
	matches func(M) bool
}

func (hs *holds[M]) add(matches func(M) bool) *Hold {
	h := &Hold{reached: make(chan struct{}), released: make(chan struct{})}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.list = slices.DeleteFunc(hs.list, func(h heldBy[M]) bool { return h.isReleased() })
	hs.list = append(hs.list, heldBy[M]{h, matches})
	return h
}

// await returns when no open hold matches m any more; false when one of ends was closed before.
func (hs *holds[M]) await(m M, ends ...<-chan struct{}) bool {
	hs.mu.Lock()
	list := slices.Clone(hs.list)
	hs.mu.Unlock()
	var gone, dead <-chan struct{}
	if len(ends) > 0 {
		gone = ends[0]
	}
	if len(ends) > 1 {
		dead = ends[1]
	}
	for _, h := range list {
		if h.isReleased() || !h.matches(m) {
			continue
		}
		h.reach.Do(func() { close(h.reached) })
		select {
		case <-h.released:
		case <-gone:
			return false
		case <-dead:
			return false
		}
		// Released and dead at once: what the dead one had said is not delivered late.
		select {
		case <-gone:
			return false
		case <-dead:
			return false
		default:
		}
	}
	return true
}

// frames are the messages of one direction of a connection.
type frames struct {
	next <-chan []byte   // closed at the end of the direction, behind its last message
	gone <-chan struct{} // closed as soon as the end is seen
}

// readFrames reads from a connection apart from whoever passes the frames on, so that the end of a side is seen while a
// frame of it is held. It ends with the connection, or when dead is closed.
func readFrames(wg *sync.WaitGroup, from net.Conn, read func(io.Reader) ([]byte, error), dead <-chan struct{}) frames {
	next, gone := make(chan []byte), make(chan struct{})
	wg.Add(1)
	go func() {
		defer wg.Done()
		defer close(next)
		defer close(gone)
		for {
			frame, err := read(from)
			if err != nil {
				return
			}
			select {
			case next <- frame:
			case <-dead:
				return
			}
		}
	}()
	return frames{next, gone}
}
