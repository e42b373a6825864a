package main

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"kvconductor/cmd/internal/sim/proxy"
	"kvconductor/internal/must"
)

// portsKnown reports whether the system tells which connections a process has.
const portsKnown = runtime.GOOS == "linux"

// connections tells those of some processes from others, by the ports that they begin at.
type connections struct {
	pids []string

	mu    sync.Mutex
	began map[int]bool // whether a connection that was open at the beginning is theirs; nil: ask again; guarded by mu
}

// connectionsOf knows the connections that are open now. It takes a look for each newer one.
func connectionsOf(pids ...int) *connections {
	c := new(connections)
	for _, pid := range pids {
		c.pids = append(c.pids, strconv.Itoa(pid))
	}
	c.began = c.look()
	return c
}

// settle lets all ports be looked up: those of connections that ended are given away again.
func (c *connections) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began = nil
}

// own reports whether a connection begins at one of the processes.
func (c *connections) own(from net.Addr) bool {
	port := from.(*net.TCPAddr).Port
	c.mu.Lock()
	own, known := c.began[port]
	c.mu.Unlock()
	if !known {
		own = c.look()[port]
	}
	return own
}

// look returns the ports of all connections, true for those of the processes.
func (c *connections) look() map[int]bool {
	sockets := make(map[string]bool)
	for _, pid := range c.pids {
		files, _ := os.ReadDir("/proc/" + pid + "/fd") // none of a process that is dead
		for _, file := range files {
			to, _ := os.Readlink("/proc/" + pid + "/fd/" + file.Name())
			sockets[to] = true
		}
	}
	table, _ := os.ReadFile("/proc/self/net/tcp")
	ports := make(map[int]bool)
	for row := range strings.Lines(string(table)) {
		var n, host, port int
		columns := strings.Fields(row)
		if _, err := fmt.Sscanf(row, "%d: %x:%x", &n, &host, &port); err == nil && len(columns) > 9 {
			ports[port] = ports[port] || sockets["socket:["+columns[9]+"]"]
		}
	}
	return ports
}

// bar bars connections from proxies.
func bar(c *connections, ways ...*proxy.Proxy) {
	for _, w := range ways {
		w.Bar(c.own)
	}
	c.settle()
}

// pid is the id of the process.
func (p *process) pid() int { return p.cmd.Process.Pid }

// TestConnections holds that connections of this process are known, those of before and later ones,
// and no others.
func TestConnections(t *testing.T) {
	if !portsKnown {
		t.Skip("the system does not tell which connections a process has")
	}
	p := serveProcess(t, "")
	dial := func() net.Addr {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		must.Succeed(t, err)
		t.Cleanup(func() { c.Close() })
		return c.LocalAddr()
	}
	before := dial()
	mine, other := connectionsOf(os.Getpid()), connectionsOf(p.pid())
	for _, from := range []net.Addr{before, dial()} {
		for range 2 {
			if !mine.own(from) || other.own(from) {
				t.Errorf("connection from %v: of this process %t, of the server %t", from, mine.own(from), other.own(from))
			}
			mine.settle()
		}
	}
}
