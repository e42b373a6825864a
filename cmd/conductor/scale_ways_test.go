package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"kvconductor/cmd/internal/sim/proxy"
	"kvconductor/internal/clocktest"
	"kvconductor/internal/must"
)

// wayFaults are about the network between two servers, or a server and engines.
var wayFaults = []fault{
	{name: "a replica without engines", not: !portsKnown, do: func(a *arena) { a.part(a.stage.Ways(), a.replicas[0]) }},
	{name: "engines that no replica reaches", do: func(a *arena) {
		for _, w := range a.stage.Ways() {
			w.Bar(func(net.Addr) bool { return true })
		}
		a.work(outlasting)
		for _, w := range a.stage.Ways() {
			w.Bar(nil)
		}
	}},
	{name: "silent ways to engines", do: func(a *arena) {
		for _, w := range a.stage.Ways() {
			w.Hold(outlasting)
		}
		a.work(outlasting)
	}},
	{name: "two replicas that do not reach each other", not: !portsKnown, do: func(a *arena) {
		one, other := a.replicas[0], a.replicas[1]
		one.peers.Bar(other.connected)
		other.peers.Bar(one.connected)
		a.work(outlasting)
		one.peers.Bar(nil)
		other.peers.Bar(nil)
	}},
}

// ahead is further than a lease is long.
const ahead = 10 * time.Second

// clockFaults are about replicas whose clocks are apart.
var clockFaults = []fault{
	{name: "a clock ten seconds ahead", not: !clocktest.Works, do: func(a *arena) {
		a.set(a.replicas[0], ahead)
		a.work(outlasting)
		a.set(a.replicas[0], 0)
	}},
	{name: "a clock ten seconds behind", not: !clocktest.Works, do: func(a *arena) {
		a.set(a.replicas[0], -ahead)
		a.work(outlasting)
		a.set(a.replicas[0], 0)
	}},
	{name: "deaths with clocks apart", not: !clocktest.Works, do: func(a *arena) {
		a.set(a.replicas[1], ahead)
		a.set(a.replicas[2], -ahead)
		a.kill(a.replicas[0])
		a.work(outlasting)
		a.join(-ahead)
		a.kill(a.replicas[0])
		a.join(ahead)
		a.work(outlasting)
		a.whole("deaths, clocks still apart")
		for _, r := range a.replicas {
			a.set(r, 0)
		}
		a.work(outlasting)
	}},
}

// set sets the clock of a replica, whose answers then have another date.
func (a *arena) set(r *runningReplica, ahead time.Duration) {
	a.t.Helper()
	r.clock.Set(ahead)
	a.dated(r, ahead)
}

// dated holds that the clock of a replica is ahead.
func (a *arena) dated(r *runningReplica, ahead time.Duration) {
	a.t.Helper()
	before := time.Now().Truncate(time.Second)
	resp, err := http.Get(r.url + "/health")
	must.Succeed(a.t, err)
	resp.Body.Close()
	date, err := http.ParseTime(resp.Header.Get("Date"))
	must.Succeed(a.t, err)
	if at := date.Add(-ahead); at.Before(before) || at.After(time.Now()) {
		a.t.Errorf("ahead by %v, replica %s says %v, it is %v", ahead, r.url, date, time.Now())
	}
}

// part cuts replicas off from a server behind proxies for a while.
func (a *arena) part(ways []*proxy.Proxy, from ...*runningReplica) {
	a.t.Helper()
	for _, w := range ways {
		w.Bar(func(client net.Addr) bool {
			return slices.ContainsFunc(from, func(r *runningReplica) bool { return r.connected(client) })
		})
	}
	a.work(outlasting)
	for _, w := range ways {
		w.Bar(nil)
	}
}

// portsKnown reports whether the system tells which connections a process has.
const portsKnown = runtime.GOOS == "linux"

// connected reports whether an address is that of a connection of the process.
func (p *process) connected(address net.Addr) bool {
	about := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	table, err := os.ReadFile(about + "net/tcp")
	if err != nil {
		return false // it is dead
	}
	own := fmt.Sprintf(":%04X", address.(*net.TCPAddr).Port)
	for row := range strings.Lines(string(table)) {
		columns := strings.Fields(row)
		if len(columns) < 10 || !strings.HasSuffix(columns[1], own) {
			continue
		}
		files, _ := filepath.Glob(about + "fd/*")
		for _, file := range files {
			if to, _ := os.Readlink(file); to == "socket:["+columns[9]+"]" {
				return true
			}
		}
	}
	return false
}

// owners returns the replicas that serve the first model.
func (a *arena) owners() (all []*runningReplica) {
	a.t.Helper()
	var answer clusterAnswer
	eventually(a.t, "the first shard has no owner", func() (string, bool) {
		_, text := get(a.replicas[0].url + "/admin/cluster")
		must.Succeed(a.t, json.Unmarshal([]byte(text), &answer))
		return text, answer.Mode != "shards" || len(answer.Shards) > 0 && len(answer.Shards[0].Owners) > 0 && !answer.Shards[0].Moving
	})
	if answer.Mode != "shards" {
		return slices.Clone(a.replicas)
	}
	first := answer.Shards[0]
	for _, of := range first.Replicas {
		for _, r := range a.replicas {
			if slices.Contains(first.Owners, of.ID) && of.URL == "http://"+r.peers.Addr() {
				all = append(all, r)
			}
		}
	}
	if len(all) != len(first.Owners) {
		a.t.Fatalf("%d of the owners are known: %+v", len(all), first)
	}
	return all
}

// shelved waits until a replica has blocks from the shelf.
func (a *arena) shelved(r *runningReplica) {
	a.t.Helper()
	metricFrom(a.t, r.process, "conductor_shelf_loaded_blocks_total", 1)
}

// TestConnected holds that connections of this process are known, and no others.
func TestConnected(t *testing.T) {
	if !portsKnown {
		t.Skip("the system does not tell which connections a process has")
	}
	p := serveProcess(t, "")
	c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	must.Succeed(t, err)
	defer c.Close()
	self := &process{cmd: command()}
	self.cmd.Process, err = os.FindProcess(os.Getpid())
	must.Succeed(t, err)
	if !self.connected(c.LocalAddr()) {
		t.Error("a connection of this process is not known")
	}
	if p.connected(c.LocalAddr()) {
		t.Error("a connection of this process is taken for the server's")
	}
}
