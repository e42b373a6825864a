package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// outlasting is longer than a replica's lease.
const outlasting = 5500 * time.Millisecond

// TestScaleFaults kills, stops, cuts off and slows down replicas and their store while fleets work.
// After each fault every replica has what an undisturbed server has, and no settled answer was wrong.
// SCALE_FAULTS=1 plays all faults in all modes. Another value is a regular expression: faults whose
// names it matches, in all modes. Without it, two faults are played in two modes. The third, a
// replica that stops, has a test of its own for shards: TestShardsSurviveAStoppedReplica.
func TestScaleFaults(t *testing.T) {
	t.Parallel()
	names, err := regexp.Compile(strings.TrimPrefix(os.Getenv("SCALE_FAULTS"), "1"))
	must.Succeed(t, err)
	all := os.Getenv("SCALE_FAULTS") != ""
	single := slices.Concat(faults, wayFaults, clockFaults)
	for _, mode := range []struct {
		name, settings string
		always         bool // not with SCALE_FAULTS alone
		open           func(t *testing.T) *sharedStore
		faults         []fault
	}{
		{"shards", "cluster: {mode: shards}\n", true, openOne, single},
		{"replicas", "", true, openOne, single},
		{"one owner", "cluster: {mode: shards, owners: 1}\n", false, openOne, single},
		{"sentinels", "cluster: {mode: shards}\n", false, openSentinels, slices.Concat(groupFaults, masterFaults)},
		{"cluster", "cluster: {mode: shards}\n", false, openCluster, groupFaults},
	} {
		if !mode.always && !all {
			continue
		}
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			models := 2
			if all {
				models = 4
			}
			a := newArena(t, mode.settings, mode.open(t), models)
			a.whole("the start")
			for i, f := range mode.faults {
				switch {
				case i >= 2 && !all, !names.MatchString(f.name):
					continue
				case f.not:
					t.Logf("left out: %s", f.name)
					continue
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

// fault is something that happens to an arena, until it is over.
type fault struct {
	name string
	do   func(a *arena)
	not  bool // on a system where do cannot
}

// faults are in the order in which they are played.
var faults = []fault{
	{name: "the death of a replica", do: func(a *arena) {
		a.kill(a.replicas[0])
		a.work(outlasting)
		a.join(0)
	}},
	{name: "the store was emptied", do: func(a *arena) { a.shared.Empty() }},
	{name: "the stop of a replica", do: func(a *arena) { a.stopFor(a.replicas[0].process, outlasting) }},
	{name: "the death of the store", do: func(a *arena) {
		a.shared.Kill()
		a.work(outlasting)
		a.shared.Run()
	}},
	{name: "the stop of the store", do: func(a *arena) {
		a.shared.Pause()
		a.work(outlasting)
		a.shared.Continue()
	}},
	{name: "a replica without the store", do: func(a *arena) {
		r := a.replicas[0]
		r.store.Turn(nowhere)
		a.work(outlasting)
		r.store.Turn(a.shared.Addr)
	}},
	{name: "a replica that no other reaches", do: func(a *arena) {
		r := a.replicas[0]
		r.peers.Turn(nowhere)
		a.work(outlasting)
		r.peers.Turn(strings.TrimPrefix(r.url, "http://"))
	}},
	{name: "slow ways", do: func(a *arena) {
		ways := a.stage.Ways()
		for _, r := range a.replicas {
			ways = append(ways, r.store, r.peers)
		}
		a.slow(ways)
	}},
	{name: "the death of all owners", do: func(a *arena) {
		for _, r := range a.owners() {
			a.kill(r)
		}
		if len(a.replicas) > 0 {
			a.work(outlasting)
		} else {
			a.join(0)
		}
		a.shelved(a.replicas[0]) // others may take the blocks from this one
		for len(a.replicas) < 3 {
			a.join(0)
		}
	}},
	{name: "two deaths and a stop", do: func(a *arena) {
		a.kill(a.replicas[0])
		a.join(0)
		stopped := a.replicas[0].process
		must.Succeed(a.t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
		a.work(outlasting)
		a.kill(a.replicas[1])
		must.Succeed(a.t, stopped.cmd.Process.Signal(syscall.SIGCONT))
		a.work(outlasting)
		a.join(0)
	}},
}
