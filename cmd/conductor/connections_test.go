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

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/proxy"
)

// portsKnown reports whether the system tells which connections a process has.
const portsKnown = runtime.GOOS == "linux"

// connections tells those of some processes from others.
type connections struct {
	pids []string

	mu   sync.Mutex
	seen map[ports]bool // connections at the last look, true for those of the processes; guarded by mu
}

// ports are where a connection on this machine begins and ends, in hexadecimal digits.
type ports struct{ from, to string }

func connectionsOf(pids ...int) *connections {
	c := &connections{}
	for _, pid := range pids {
		c.pids = append(c.pids, strconv.Itoa(pid))
	}
	c.look()
	return c
}

// own reports whether a connection that was accepted here begins at one of the processes.
func (c *connections) own(accepted net.Conn) bool {
	digits := func(a net.Addr) string { return fmt.Sprintf("%04X", a.(*net.TCPAddr).Port) }
	key := ports{digits(accepted.RemoteAddr()), digits(accepted.LocalAddr())}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.seen[key]; !known {
		c.look()
	}
	return c.seen[key]
}

// look looks at all connections. c.mu is held, or c is new.
func (c *connections) look() {
	sockets := make(map[string]bool)
	for _, pid := range c.pids {
		files, _ := os.ReadDir("/proc/" + pid + "/fd") // none of a process that is dead
		for _, file := range files {
			to, _ := os.Readlink("/proc/" + pid + "/fd/" + file.Name())
			sockets[to] = true
		}
	}
	table, _ := os.ReadFile("/proc/self/net/tcp")
	c.seen = make(map[ports]bool)
	for row := range strings.Lines(string(table)) {
		columns := strings.Fields(row) // number, both addresses, seven more, inode of the socket
		if len(columns) < 10 {
			continue
		}
		_, from, _ := strings.Cut(columns[1], ":")
		_, to, _ := strings.Cut(columns[2], ":")
		c.seen[ports{from, to}] = sockets["socket:["+columns[9]+"]"]
	}
}

// bar bars connections from proxies.
func bar(c *connections, ways ...*proxy.Proxy) {
	for _, w := range ways {
		w.Bar(c.own)
	}
}

// pid is the id of the process.
func (p *process) pid() int { return p.cmd.Process.Pid }

// TestConnections holds that connections of this process are known, those of before and later ones,
// and no others.
func TestConnections(t *testing.T) {
	t.Parallel()
	if !portsKnown {
		t.Skip("the system does not tell which connections a process has")
	}
	p := serveProcess(t, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	accepted := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		must.Succeed(t, err)
		t.Cleanup(func() { c.Close() })
		other, err := l.Accept()
		must.Succeed(t, err)
		t.Cleanup(func() { other.Close() })
		return other
	}
	before := accepted()
	mine, others := connectionsOf(os.Getpid()), connectionsOf(p.pid())
	for i, c := range []net.Conn{before, accepted()} {
		if !mine.own(c) || others.own(c) {
			t.Errorf("connection %d: of this process %t, of the server %t", i, mine.own(c), others.own(c))
		}
	}
}
