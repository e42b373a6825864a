package server

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Neighbourhood returns the part of an address that bounds count by: an address of IPv4, or the network of 64 bits of an
// address of IPv6, because one machine has all addresses of such a network.
func Neighbourhood(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Is4() || ip.Is4In6() {
		return address
	}
	return netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
}

// Connections bounds the open connections of all listeners. A connection goes through three states:
//
//	silent --a whole request header (Asks)--> asking --a request that the guard admits (Admits)--> admitted
//
// A boundedListener closes a silent connection when its time is over, whatever the client sends meanwhile: half
// a header, or frames of HTTP/2 that ask for nothing. Where a bound is reached, the oldest connection that
// is not admitted makes room for a new one: one of the same address if that address is at its
// bound, else one of any. The new one is closed only if all others are admitted, so that clients which just
// connect keep out none that have something to ask.
//
// The methods are safe for concurrent use.
type Connections struct {
	// Log tells of bounds that are reached. Set it before the first connection.
	Log zerolog.Logger

	mu         sync.Mutex
	most       int                   // over all clients, 0 for no bound; guarded by mu
	perAddress int                   // 0 for no bound; guarded by mu
	open       int                   // guarded by mu
	strangers  list.List             // of *boundedConn that are not admitted, the oldest first; guarded by mu
	neighbours map[string]*neighbour // by Neighbourhood; guarded by mu
	closed     [len(reasons)]uint64  // guarded by mu
	told       [len(reasons)]time.Time
}

// neighbour is the open connections of one address. Connections.mu guards it.
type neighbour struct {
	open      int
	strangers list.List // of *boundedConn that are not admitted, the oldest first
}

// Why a connection was closed: as the new one, or to make room for a new one.
const (
	atAddress = iota
	roomAtAddress
	atAll
	roomAtAll
)

var reasons = [...]struct{ name, text string }{
	atAddress: {"connections_per_address",
		"an address has limits.connections_per_address connections, and further ones are closed; if it is a proxy or an ingress, all " +
			"of its clients count as one: raise the setting"},
	roomAtAddress: {"room_at_address",
		"an address has limits.connections_per_address connections: the oldest without an admitted request are closed for new ones; if " +
			"it is a proxy or an ingress, all of its clients count as one: raise the setting"},
	atAll: {"max_connections", "all connections that the server may have are open, and further ones are closed"},
	roomAtAll: {"room",
		"all connections that the server may have are open: the oldest without an admitted request are closed for new ones"},
}

// logPause lies between two lines of the log for one reason.
const logPause = time.Minute

// SetBounds replaces the bounds; 0 is no bound. Open connections stay.
func (c *Connections) SetBounds(most, perAddress int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most, c.perAddress = most, perAddress
}

// ConnectionStats is how many connections are open.
type ConnectionStats struct {
	Open, Addresses int
	Most            int // 0 for no bound
}

// Stats returns how many connections are open.
func (c *Connections) Stats() ConnectionStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ConnectionStats{Open: c.open, Addresses: len(c.neighbours), Most: c.most}
}

// countConn counts a connection, and closes another one where a bound is reached. It reports false if the
// connection has to be closed itself.
func (c *Connections) countConn(b *boundedConn) bool {
	c.mu.Lock()
	n := c.neighbours[b.address]
	if n == nil {
		n = new(neighbour)
	}
	reason := -1
	var old *list.Element
	switch {
	case c.perAddress > 0 && n.open >= c.perAddress:
		if reason, old = atAddress, n.strangers.Front(); old != nil {
			reason = roomAtAddress
		}
	case c.most > 0 && c.open >= c.most:
		if reason, old = atAll, c.strangers.Front(); old != nil {
			reason = roomAtAll
		}
	}
	if reason >= 0 {
		c.closed[reason]++
		c.logBound(reason, b.address, n.open)
	}
	if reason >= 0 && old == nil {
		c.mu.Unlock()
		return false
	}
	var leaves *boundedConn
	if old != nil {
		leaves = old.Value.(*boundedConn)
		c.forgetConn(leaves)
	}
	if c.neighbours == nil {
		c.neighbours = make(map[string]*neighbour)
	}
	c.neighbours[b.address] = n
	c.open++
	n.open++
	b.neighbour, b.entry, b.neighbourEntry = n, c.strangers.PushBack(b), n.strangers.PushBack(b)
	c.mu.Unlock()
	if leaves != nil {
		leaves.limit.Stop()
		leaves.tcpConn.Close()
	}
	return true
}

// removeConn gives the slot of a connection back, if it still has one.
func (c *Connections) removeConn(b *boundedConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetConn(b)
}

// forgetConn does what removeConn does, for callers that hold c.mu.
func (c *Connections) forgetConn(b *boundedConn) {
	if b.neighbour == nil {
		return
	}
	c.removeStranger(b)
	c.open--
	if b.neighbour.open--; b.neighbour.open == 0 {
		delete(c.neighbours, b.address)
	}
	b.neighbour = nil
}

// removeStranger takes a connection out of those that make room. c.mu is held.
func (c *Connections) removeStranger(b *boundedConn) {
	if b.entry != nil {
		c.strangers.Remove(b.entry)
		b.neighbour.strangers.Remove(b.neighbourEntry)
		b.entry, b.neighbourEntry = nil, nil
	}
}

// logBound writes a line of the log, unless there was one of late. c.mu is held.
func (c *Connections) logBound(reason int, address string, ofAddress int) {
	now := time.Now()
	if last := c.told[reason]; !last.IsZero() && now.Sub(last) < logPause {
		return
	}
	c.told[reason] = now
	c.Log.Warn().Str("address", address).Int("connections_of_address", ofAddress).Int("connections", c.open).Msg(reasons[reason].text)
}

var (
	descConnections        = prometheus.NewDesc("conductor_connections", "Open connections, of HTTP and of gRPC.", nil, nil)
	descConnectionsRefused = prometheus.NewDesc("conductor_connections_refused_total",
		"Connections closed because all connections of the server, or of one address (limits.connections_per_address), were "+
			"taken, by reason: new ones, or, for room and "+
			"room_at_address, old ones without an admitted request.", []string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (c *Connections) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Connections) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(descConnections, prometheus.GaugeValue, float64(c.open))
	for reason, n := range c.closed {
		ch <- prometheus.MustNewConstMetric(descConnectionsRefused, prometheus.CounterValue, float64(n), reasons[reason].name)
	}
}

// boundedListener accepts connections within the bounds. It closes those that have asked for nothing
// after patience.
type boundedListener struct {
	net.Listener
	bounds   *Connections
	patience time.Duration
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		b := &boundedConn{tcpConn: c.(tcpConn), bounds: l.bounds, address: Neighbourhood(address)}
		b.limit = time.AfterFunc(l.patience, b.endSilence)
		if l.bounds.countConn(b) {
			return b, nil
		}
		b.Close()
	}
}

// boundedConn gives its slot back when it is closed.
type boundedConn struct {
	tcpConn
	bounds  *Connections
	address string      // its Neighbourhood
	limit   *time.Timer // ends a silent connection
	asked   atomic.Bool
	known   atomic.Bool // admitted

	neighbour             *neighbour    // nil without a slot; guarded by bounds.mu
	entry, neighbourEntry *list.Element // in the lists of strangers, nil outside of them; guarded by bounds.mu
}

// Close implements net.Conn.
func (b *boundedConn) Close() error {
	b.limit.Stop()
	return b.closeConn()
}

// closeConn does what Close does, but does not stop the timer, because the timer itself may call it.
func (b *boundedConn) closeConn() error {
	b.bounds.removeConn(b)
	return b.tcpConn.Close()
}

// endSilence closes a connection that has asked for nothing.
func (b *boundedConn) endSilence() {
	if !b.asked.Load() {
		b.closeConn()
	}
}

// RemoteAddr implements net.Conn.
func (b *boundedConn) RemoteAddr() net.Addr { return boundedAddr{b.tcpConn.RemoteAddr(), b} }

// boundedAddr is the address of a peer with its connection: TLS, net/http and gRPC hand on no more of a
// connection.
type boundedAddr struct {
	net.Addr
	conn *boundedConn
}

// Asks tells that a whole request header has come over the connection that has an address as its remote one. The
// address of a connection that Servers has not accepted does nothing.
func Asks(from net.Addr) {
	if a, ok := from.(boundedAddr); ok && !a.conn.asked.Load() {
		a.conn.asked.Store(true)
		a.conn.limit.Stop()
	}
}

// Admits tells that the guard has admitted a request over such a connection. Requests to routes that are open to everyone do
// not count.
func Admits(from net.Addr) {
	a, ok := from.(boundedAddr)
	if !ok || a.conn.known.Load() {
		return
	}
	a.conn.known.Store(true)
	a.conn.bounds.mu.Lock()
	defer a.conn.bounds.mu.Unlock()
	a.conn.bounds.removeStranger(a.conn)
}

type peerKey struct{}

// withConn adds a connection to the context of its requests (http.Server.ConnContext).
func withConn(ctx context.Context, c net.Conn) context.Context {
	if a, ok := c.RemoteAddr().(boundedAddr); ok {
		ctx = context.WithValue(ctx, peerKey{}, a)
	}
	return withJoinedConn(ctx, c)
}

// PeerOf returns the address from which a request over HTTP came, for Asks and Admits; nil if Servers has not
// accepted its connection.
func PeerOf(ctx context.Context) net.Addr {
	a, _ := ctx.Value(peerKey{}).(net.Addr)
	return a
}
