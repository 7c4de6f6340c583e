package proc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
)

// Ports are taken from here up to the range from which the kernel takes those of outgoing connections.
const lowestPort = 10_240

var given struct {
	sync.Mutex
	ports map[int]bool
}

// FreePort is a port on loopback that was free a moment ago and that this process was not given before.
//
// It lies below the range of outgoing connections. From within it, a port would be lost to any connection that is made while
// its server is stopped; worse, a client that dials it again and again would one day be given it as its own and be connected
// to itself.
func FreePort() (int, error) {
	given.Lock()
	defer given.Unlock()
	if given.ports == nil {
		given.ports = map[int]bool{}
	}
	span := ephemeralStart() - lowestPort
	if span < 1000 {
		return 0, fmt.Errorf("find a free port: net.ipv4.ip_local_port_range begins at %d and leaves none below", lowestPort+span)
	}
	for range 1000 {
		port := lowestPort + rand.IntN(span)
		if given.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		given.ports[port] = true
		return port, l.Close()
	}
	return 0, errors.New("find a free port: 1000 tries failed")
}

func ephemeralStart() int {
	low := 32768
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(b), &low)
	}
	return low
}
