// Package freeport finds addresses for servers that are started later, by this process or another.
//
// A listener on port 0 that is closed again leaves a port that the system may give to another
// before the server takes it: to a connection, or to a listener on port 0. So the ports here are below
// those that systems hand out, which begin at 32768 on Linux and at 49152 elsewhere.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The ports to choose from, the last one excluded. A node of a Redis cluster takes the port 10000 above
// its own too, which is below 32768 as well.
const first, last = 14_000, 20_000

// tries is how many ports may be taken before the search is given up.
const tries = 1000

var (
	mu    sync.Mutex
	given = make(map[int]bool) // guarded by mu
)

// Address returns a loopback address, "127.0.0.1:port", on which nothing listens. This process gets no
// address twice.
func Address() (string, error) {
	mu.Lock()
	defer mu.Unlock()
	err := errors.New("all ports were given away")
	for range tries {
		port := first + rand.IntN(last-first)
		if given[port] {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err != nil {
			continue
		}
		given[port] = true
		return l.Addr().String(), l.Close()
	}
	return "", err
}
