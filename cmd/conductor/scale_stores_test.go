package main

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/lab/sim/proxy"
)

// sharedStore is the store of an arena: one server, or a group.
type sharedStore struct {
	*redistest.Server                         // faults disturb this one
	servers           []*redistest.Server     // of a group, those that keep data
	sentinels         []*redistest.Server     // of a group with such
	fronts            map[string]*proxy.Proxy // of a group, by the addresses of all its servers
	settings          func(own string) string // own is a replica's proxy to the only server
}

// openOne starts a store of one server. Each replica has a proxy of its own in front of it.
func openOne(t *testing.T) *sharedStore {
	return &sharedStore{Server: redistest.Start(t), settings: func(own string) string { return "url: 'redis://" + own + "'" }}
}

// front puts a proxy in front of a server of a group. All replicas share the proxy: they connect to
// what the servers say of each other.
func (s *sharedStore) front(t *testing.T) redistest.Front {
	s.fronts = make(map[string]*proxy.Proxy)
	return func(addr string) string {
		p, err := proxy.Open(addr)
		must.Succeed(t, err)
		t.Cleanup(p.Close)
		s.fronts[addr] = p
		return p.Addr()
	}
}

// openSentinels starts a store whose master the Sentinels name.
func openSentinels(t *testing.T) *sharedStore {
	s := new(sharedStore)
	master, replica, sentinels := redistest.StartSentinels(t, s.front(t))
	s.Server, s.servers, s.sentinels = master, []*redistest.Server{master, replica}, sentinels
	s.settings = func(string) string {
		return fmt.Sprintf("url: 'redis://%s', addresses: ['%s', '%s'], master: %s", sentinels[0].Front, sentinels[1].Front,
			sentinels[2].Front, redistest.Master)
	}
	return s
}

// openCluster starts a store of three nodes. The first one is disturbed.
func openCluster(t *testing.T) *sharedStore {
	s := new(sharedStore)
	s.servers = redistest.StartCluster(t, s.front(t))
	s.Server = s.servers[0]
	s.settings = func(string) string {
		return fmt.Sprintf("url: 'redis://%s', addresses: ['%s', '%s'], cluster: true", s.servers[1].Front, s.servers[0].Front,
			s.servers[2].Front)
	}
	return s
}

// groupFaults are about a store of several servers.
var groupFaults = []fault{
	{name: "the stop of a master", do: func(a *arena) {
		master := a.master()
		master.Pause()
		a.work(outlasting)
		master.Continue() // with Sentinels, another is the master now, and this one does not know it yet
	}},
	{name: "a replica without a master", not: !portsKnown, do: func(a *arena) {
		a.part([]*proxy.Proxy{a.shared.fronts[a.master().Addr]}, a.replicas[0])
	}},
	{name: "slow ways in the store", do: func(a *arena) { a.slow(slices.Collect(maps.Values(a.shared.fronts))) }},
}

// masterFaults are about a master that Sentinels replace.
var masterFaults = []fault{
	{name: "two halves with a master each", not: !portsKnown, do: func(a *arena) {
		old, alone := a.master(), a.replicas[0]
		a.halve(alone.pid(), old, a.shared.sentinels[0])
		a.work(outlasting)
		eventually(a.t, "the other half has no master", func() (string, bool) {
			return "", slices.ContainsFunc(a.shared.servers, func(s *redistest.Server) bool { return s != old && s.Role() == "master" })
		})
		a.work(outlasting)
		for _, r := range a.replicas {
			eventually(a.t, "halved, a replica has no store", func() (string, bool) {
				_, text := get(r.url + "/ready")
				return old.Role() + " " + text, old.Role() == "master" && metric(r.process, "conductor_store_up") == 1
			})
		}
		for _, way := range a.shared.fronts {
			way.Bar(nil)
		}
		eventually(a.t, "the old master stays one", func() (string, bool) { return old.Role(), old.Role() == "slave" })
	}},
	{name: "the death of a master", do: func(a *arena) {
		master := a.master()
		master.Kill()
		a.work(outlasting)
		master.Run()
	}},
}

// halve parts a process and servers of the store from all others.
func (a *arena) halve(pid int, servers ...*redistest.Server) {
	a.t.Helper()
	pids, here := []int{pid}, make(map[string]bool)
	for _, s := range servers {
		pids, here[s.Addr] = append(pids, s.Pid()), true
	}
	c := connectionsOf(pids...)
	for addr, way := range a.shared.fronts {
		way.Bar(func(reader net.Conn) bool { return here[addr] != c.own(reader) })
	}
}

// master returns a server of the store that takes writes: the only one with Sentinels, the first one
// of a cluster.
func (a *arena) master() (master *redistest.Server) {
	a.t.Helper()
	eventually(a.t, "not one master", func() (string, bool) {
		var masters []*redistest.Server
		for _, s := range a.shared.servers {
			if s.Role() == "master" {
				masters = append(masters, s)
			}
		}
		if len(masters) > 0 {
			master = masters[0]
		}
		return fmt.Sprintf("%d masters", len(masters)), len(masters) == 1 || len(masters) > 1 && len(a.shared.sentinels) == 0
	})
	return master
}
