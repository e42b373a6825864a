// Package freeport finds addresses for servers that are started later, by this process or another.
//
// A listener on port 0 that is closed again leaves a port that the system may give to another
// before the server takes it: to a connection, or to a listener on port 0. So the ports here are below
// those that systems hand out, which begin at 32768 on Linux and at 49152 elsewhere. Processes that look
// for addresses at the same time share them out: each keeps a listener claimAbove above a port that it was given.
package freeport

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The ports to choose from, the last one excluded. A node of a Redis cluster takes the port 10000 above
// its own too, which is below 32768 as well.
const first, last = 14_000, 18_000

// claimAbove is how far the listener that claims a port is above it. It is out of the way of the ports and of
// the nodes' others.
const claimAbove = last - first

// tries is how many ports may be taken before the search is given up.
const tries = 1000

var (
	mu     sync.Mutex
	claims []net.Listener // until the process ends; guarded by mu
)

// Address returns a loopback address, "127.0.0.1:port", on which nothing listens. No address is returned
// twice while the process lives that got it first, neither to this process nor to another.
func Address() (string, error) {
	mu.Lock()
	defer mu.Unlock()
	var err error
	for range tries {
		port := first + rand.IntN(last-first)
		var claim, l net.Listener
		if claim, err = listen(port + claimAbove); err != nil {
			continue
		}
		if l, err = listen(port); err != nil {
			claim.Close()
			continue
		}
		claims = append(claims, claim)
		return l.Addr().String(), l.Close()
	}
	return "", err
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}
