package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvconductor/internal/must"
	"kvconductor/internal/redistest"
)

// outlasting is longer than a replica's lease.
const outlasting = 5500 * time.Millisecond

// TestScaleFaults kills, stops, cuts off and slows down replicas and their store while fleets work.
// After each fault every replica has what an undisturbed server has, and no settled answer was wrong.
// SCALE_FAULTS=1 plays all faults in all modes, else three in two modes.
func TestScaleFaults(t *testing.T) {
	all := os.Getenv("SCALE_FAULTS") == "1"
	one := func(t *testing.T) (*redistest.Server, func(string) string) {
		shared := redistest.Start(t)
		return shared, func(own string) string { return "url: 'redis://" + own + "'" }
	}
	for _, mode := range []struct {
		name, settings, store string
		always                bool // not with SCALE_FAULTS=1 alone
		open                  func(t *testing.T) (*redistest.Server, func(own string) string)
		faults                []fault
	}{
		{"shards", "cluster: {mode: shards}\n", "", true, one, faults},
		{"log", "", ", ingest: log", true, one, append(faults[:len(faults):len(faults)], tailFaults...)},
		{"shards and log", "cluster: {mode: shards}\n", ", ingest: log", false, one, append(faults[:len(faults):len(faults)], tailFaults...)},
		{"one owner", "cluster: {mode: shards, owners: 1}\n", "", false, one, faults},
		{"replicas", "", "", false, one, faults},
		{"sentinels", "cluster: {mode: shards}\n", ", ingest: log", false, openSentinels, groupFaults},
		{"cluster", "cluster: {mode: shards}\n", ", ingest: log", false, openCluster, groupFaults[:1]},
	} {
		if !mode.always && !all {
			continue
		}
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			shared, store := mode.open(t)
			models := 2
			if all {
				models = 4
			}
			a := newArena(t, mode.settings, shared, func(own string) string { return store(own) + mode.store }, models)
			a.whole("the start")
			for i, f := range mode.faults {
				if i >= 3 && !all {
					break
				}
				a.work(time.Second)
				f.do(a)
				a.work(time.Second)
				a.whole(f.name)
			}
			a.end()
		})
	}
}

// openSentinels starts a store whose master the Sentinels name. It has no proxies in front: replicas
// connect to what the Sentinels say.
func openSentinels(t *testing.T) (*redistest.Server, func(string) string) {
	master, _, sentinels := redistest.StartSentinels(t)
	return master, func(string) string {
		return fmt.Sprintf("url: '%s', addresses: ['%s', '%s'], master: %s", sentinels[0].URL(), sentinels[1].Addr, sentinels[2].Addr, redistest.Master)
	}
}

// openCluster starts a store of three nodes. The first one is disturbed.
func openCluster(t *testing.T) (*redistest.Server, func(string) string) {
	nodes := redistest.StartCluster(t)
	return nodes[0], func(string) string {
		return fmt.Sprintf("url: '%s', addresses: ['%s', '%s'], cluster: true", nodes[1].URL(), nodes[0].Addr, nodes[2].Addr)
	}
}

// fault is something that happens to an arena, until it is over.
type fault struct {
	name string
	do   func(a *arena)
}

// faults are in the order in which they are played.
var faults = []fault{
	{"the death of a replica", func(a *arena) {
		a.kill(a.replicas[0])
		a.work(outlasting)
		a.join()
	}},
	{"the store was emptied", func(a *arena) { a.shared.Empty() }},
	{"the stop of a replica", func(a *arena) { a.stopFor(a.replicas[0].process, outlasting) }},
	{"the death of the store", func(a *arena) {
		a.shared.Kill()
		a.work(outlasting)
		a.shared.Run()
	}},
	{"the stop of the store", func(a *arena) {
		a.shared.Pause()
		a.work(outlasting)
		a.shared.Continue()
	}},
	{"a replica without the store", func(a *arena) {
		r := a.replicas[0]
		r.store.Turn(nowhere)
		a.work(outlasting)
		r.store.Turn(a.shared.Addr)
	}},
	{"a replica that no other reaches", func(a *arena) {
		r := a.replicas[0]
		r.peers.Turn(nowhere)
		a.work(outlasting)
		r.peers.Turn(strings.TrimPrefix(r.url, "http://"))
	}},
	{"slow ways", func(a *arena) {
		for range 50 {
			for _, r := range a.replicas {
				r.store.Hold(90 * time.Millisecond)
				r.peers.Hold(60 * time.Millisecond)
			}
			a.work(100 * time.Millisecond)
		}
	}},
	{"two deaths and a stop", func(a *arena) {
		a.kill(a.replicas[0])
		a.join()
		stopped := a.replicas[0].process
		must.Succeed(a.t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
		a.work(outlasting)
		a.kill(a.replicas[1])
		must.Succeed(a.t, stopped.cmd.Process.Signal(syscall.SIGCONT))
		a.work(outlasting)
		a.join()
	}},
}

// tailFaults are about the replica that writes the logs of sources.
var tailFaults = []fault{
	{"the death of a tail", func(a *arena) {
		a.kill(a.tail())
		a.work(outlasting)
		a.join()
	}},
	{"the stop of a tail", func(a *arena) { a.stopFor(a.tail().process, outlasting) }},
	{"a tail without the store", func(a *arena) {
		r := a.tail()
		r.store.Turn(nowhere)
		a.work(outlasting)
		r.store.Turn(a.shared.Addr)
	}},
}

// groupFaults are about a store of several servers.
var groupFaults = []fault{
	{"the stop of a node", func(a *arena) {
		a.shared.Pause()
		a.work(outlasting)
		a.shared.Continue()
	}},
	{"the death of a master", func(a *arena) {
		a.shared.Kill()
		a.work(outlasting)
	}},
}

// tail returns a replica that writes logs.
func (a *arena) tail() (tail *runningReplica) {
	a.t.Helper()
	eventually(a.t, "no replica writes a log", func() (string, bool) {
		for _, r := range a.replicas {
			if metric(r.process, "conductor_log_leases") > 0 {
				tail = r
			}
		}
		return "", tail != nil
	})
	return tail
}
