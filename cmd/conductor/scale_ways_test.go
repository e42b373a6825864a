package main

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"time"

	"example.com/conductor/internal/clocktest"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/proxy"
)

// wayFaults are about the network between two servers, or a server and engines.
var wayFaults = []fault{
	{name: "a replica without engines", not: !portsKnown, do: func(a *arena) { a.part(a.stage.Ways(), a.replicas[0]) }},
	{name: "engines that no replica reaches", do: func(a *arena) {
		for _, w := range a.stage.Ways() {
			w.Bar(func(net.Conn) bool { return true })
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
		bar(connectionsOf(other.pid()), one.peers)
		bar(connectionsOf(one.pid()), other.peers)
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

// part cuts a replica off from servers behind proxies for a while.
func (a *arena) part(ways []*proxy.Proxy, from *runningReplica) {
	a.t.Helper()
	bar(connectionsOf(from.pid()), ways...)
	a.work(outlasting)
	for _, w := range ways {
		w.Bar(nil)
	}
}

// slow lets what passes be late for a while.
func (a *arena) slow(ways []*proxy.Proxy) {
	a.t.Helper()
	for range 50 {
		for i, w := range ways {
			w.Hold(time.Duration(60+10*(i%4)) * time.Millisecond)
		}
		a.work(100 * time.Millisecond)
	}
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
