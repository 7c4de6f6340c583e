// Package netproxy has TCP proxies on loopback that cut, freeze, delay and hold what passes between a process and a server:
// raw, and with knowledge of Kafka's and of PostgreSQL's frames. It needs no testing package.
package netproxy

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Proxy is a TCP proxy on loopback that can cut, freeze, delay and hold what passes through it, until Close.
//
//	proxy, err := netproxy.New()
//	proxy.SetTarget(addr)
//	proxy.Freeze() // connections stay open, nothing passes, new ones are taken and get no answer
//	proxy.Restore()
type Proxy struct {
	gate
	listener net.Listener
	// pipe carries one connection until one side ends.
	pipe func(client, server net.Conn)
	wg   sync.WaitGroup
	// answers holds what a raw proxy gets from the server.
	answers holds[struct{}]

	connMu sync.Mutex
	target string
	conns  map[net.Conn]bool
	cut    bool
	closed bool
}

// New starts a proxy on a free port; connections fail until SetTarget.
func New() (*Proxy, error) {
	p := &Proxy{}
	p.pipe = p.pipeBytes
	return p, p.listen()
}

// pipeBytes passes both directions as they come.
func (p *Proxy) pipeBytes(client, server net.Conn) {
	gone := make(chan struct{}) // closed when one direction has ended
	var once sync.Once
	end := func() { once.Do(func() { close(gone) }) }
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { // ends with the connection
		defer wg.Done()
		p.copy(server, client, false, gone, end)
	}()
	p.copy(client, server, true, gone, end)
	wg.Wait()
}

func (p *Proxy) listen() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("start a proxy: %w", err)
	}
	p.listener, p.conns = l, map[net.Conn]bool{}
	p.gate.changed = make(chan struct{})
	p.wg.Add(1)
	go p.accept() // ends by Close
	return nil
}

// HoldAnswers keeps from the client what comes from the server, until the hold is released.
func (p *Proxy) HoldAnswers() *Hold { return p.answers.add(func(struct{}) bool { return true }) }

// Addr is the host:port to connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Port is the port to connect to.
func (p *Proxy) Port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// SetTarget says where new connections go.
func (p *Proxy) SetTarget(addr string) {
	p.connMu.Lock()
	defer p.connMu.Unlock()
	p.target = addr
}

// Cut resets all connections, and every new one, until Restore.
func (p *Proxy) Cut() {
	p.connMu.Lock()
	p.cut = true
	p.connMu.Unlock()
	p.Reset()
}

// Reset resets all open connections once; new ones are served.
func (p *Proxy) Reset() {
	p.connMu.Lock()
	defer p.connMu.Unlock()
	for c := range p.conns {
		reset(c)
	}
	p.wake()
}

// Freeze lets nothing pass any more, in either direction, as a network that drops packets: connections stay open, and new
// ones are taken and never answered.
func (p *Proxy) Freeze() { p.set(true, p.currentDelay()) }

// Delay holds every piece of data that comes from the server back for d.
func (p *Proxy) Delay(d time.Duration) { p.set(p.isFrozen(), d) }

// Restore undoes Cut, Freeze and Delay; what was frozen passes now.
func (p *Proxy) Restore() {
	p.connMu.Lock()
	p.cut = false
	p.connMu.Unlock()
	p.set(false, 0)
}

// Connections is the number of open client connections.
func (p *Proxy) Connections() int {
	p.connMu.Lock()
	defer p.connMu.Unlock()
	return len(p.conns) / 2
}

// Close ends the proxy and all its connections; closing twice is safe.
func (p *Proxy) Close() {
	p.connMu.Lock()
	p.closed = true
	p.connMu.Unlock()
	p.listener.Close()
	p.Reset()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	defer p.wg.Done()
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Add(1)
		go func() { // ends with the connection
			defer p.wg.Done()
			p.serve(c)
		}()
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.connMu.Lock()
	target, refuse := p.target, p.cut || p.target == ""
	p.connMu.Unlock()
	if refuse {
		reset(client)
		return
	}
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		reset(client)
		return
	}
	p.connMu.Lock()
	if p.cut || p.closed {
		p.connMu.Unlock()
		reset(client)
		server.Close()
		return
	}
	p.conns[client], p.conns[server] = true, true
	p.connMu.Unlock()
	p.pipe(client, server)
	p.connMu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.connMu.Unlock()
	client.Close()
	server.Close()
}

// alive tells whether the connection is still one of the proxy's: a frozen copier gives up when it is not.
func (p *Proxy) alive(c net.Conn) bool {
	p.connMu.Lock()
	defer p.connMu.Unlock()
	return p.conns[c] && !p.closed
}

// copy passes data from one side to the other until either ends, and then closes both, except that a clean end of one
// direction is passed on as such.
func (p *Proxy) copy(to, from net.Conn, fromServer bool, gone <-chan struct{}, end func()) {
	defer end()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !p.pass(fromServer, func() bool { return p.alive(from) }) {
				break
			}
			if fromServer && !p.answers.await(struct{}{}, gone) {
				break
			}
			if _, werr := to.Write(buf[:n]); werr != nil {
				break
			}
		}
		if err == io.EOF {
			if tcp, ok := to.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
				return
			}
		}
		if err != nil {
			break
		}
	}
	to.Close()
	from.Close()
}

// reset closes a connection so that the other side sees a reset at once.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

// gate is what each piece of data passes.
type gate struct {
	mu      sync.Mutex
	frozen  bool
	delay   time.Duration
	changed chan struct{} // closed and replaced at each change
}

func (g *gate) set(frozen bool, delay time.Duration) {
	g.mu.Lock()
	g.frozen, g.delay = frozen, delay
	g.mu.Unlock()
	g.wake()
}

func (g *gate) isFrozen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.frozen
}

func (g *gate) currentDelay() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.delay
}

func (g *gate) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.changed)
	g.changed = make(chan struct{})
}

// pass returns when data may pass; false when the connection died in between.
func (g *gate) pass(fromServer bool, alive func() bool) bool {
	if d := g.currentDelay(); fromServer && d > 0 {
		time.Sleep(d)
	}
	for {
		g.mu.Lock()
		frozen, changed := g.frozen, g.changed
		g.mu.Unlock()
		if !frozen {
			return true
		}
		<-changed
		if !alive() {
			return false
		}
	}
}

// Abandon resets all open connections and returns when nothing of them is left, neither in the proxy nor in a hold: what a
// dead process had said and a hold still has can then not be delivered any more. New connections are served.
func (p *Proxy) Abandon() {
	p.Reset()
	for p.Connections() > 0 {
		time.Sleep(time.Millisecond)
	}
}
