package server

import (
	"net"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Neighbourhood returns what bounds of an address count: the address, or of an IPv6 address its
// network of 64 bits, as one machine has all addresses of that.
func Neighbourhood(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Is4() || ip.Is4In6() {
		return address
	}
	return netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
}

// Connections bounds the open connections of all listeners. 0 is no bound. A connection beyond
// a bound is closed at once. Its methods are safe for concurrent use.
type Connections struct {
	mu         sync.Mutex
	most       int            // over all clients; guarded by mu
	perAddress int            // guarded by mu
	open       int            // guarded by mu
	byAddress  map[string]int // guarded by mu
	refused    uint64         // guarded by mu
}

// SetBounds replaces the bounds. Open connections stay.
func (c *Connections) SetBounds(most, perAddress int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most, c.perAddress = most, perAddress
}

// enter counts a connection. It reports false if the connection is beyond a bound.
func (c *Connections) enter(address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > 0 && c.open >= c.most || c.perAddress > 0 && c.byAddress[address] >= c.perAddress {
		c.refused++
		return false
	}
	if c.byAddress == nil {
		c.byAddress = make(map[string]int)
	}
	c.open++
	c.byAddress[address]++
	return true
}

func (c *Connections) leave(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if c.byAddress[address]--; c.byAddress[address] == 0 {
		delete(c.byAddress, address)
	}
}

var (
	descConnections        = prometheus.NewDesc("conductor_connections", "Open connections, of HTTP and of gRPC.", nil, nil)
	descConnectionsRefused = prometheus.NewDesc("conductor_connections_refused_total", "Connections closed because of limits.max_connections or limits.connections_per_address.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Connections) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Connections) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(descConnections, prometheus.GaugeValue, float64(c.open))
	ch <- prometheus.MustNewConstMetric(descConnectionsRefused, prometheus.CounterValue, float64(c.refused))
}

// boundedListener accepts connections within the bounds.
type boundedListener struct {
	net.Listener
	bounds *Connections
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		address = Neighbourhood(address)
		if !l.bounds.enter(address) {
			c.Close()
			continue
		}
		return &boundedConn{tcpConn: c.(tcpConn), leave: sync.OnceFunc(func() { l.bounds.leave(address) })}, nil
	}
}

// boundedConn gives its place back when it is closed.
type boundedConn struct {
	tcpConn
	leave func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.leave()
	return c.tcpConn.Close()
}
