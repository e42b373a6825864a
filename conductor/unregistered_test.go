package conductor_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/events/stream/streamtest"
)

// TestUnregisteredDuringRecovery lets a source be unregistered while a replica starts, known there or not. No snapshot from before
// brings it back, whichever place it is of, until a client registers it again.
func TestUnregisteredDuringRecovery(t *testing.T) {
	for _, lines := range [][]string{{"register one", "unregister one"}, {"unregister one"}} {
		synctest.Test(t, func(t *testing.T) {
			a := openReplica(t, new(streamtest.Network))
			runAll(a, "register one", "register two", "store one path=a/b", "store two path=a")
			b, open := newReplica(t, a.network)
			recoverFrom(t, a.conductor, b.conductor, true, time.Minute)
			runAll(b, lines...)
			recoverFrom(t, a.conductor, b.conductor, true, time.Minute)
			expectSources(t, b, "two|default|0")
			b.run("register one")
			recoverFrom(t, a.conductor, b.conductor, true, time.Minute)
			open()
			synctest.Wait()
			if got := b.run("query path=a/b instance=one"); !strings.Contains(got, `"longest_matched":32`) {
				t.Errorf("%q: registered again: %s", lines, got)
			}
		})
	}
}

// TestRegisteredAgainDuringRecovery: a recovery that found a source unregistered gives it nothing, also once it is registered
// again, because its mark and a part of its blocks may have been passed over. The next place fills it, or its publisher does.
func TestRegisteredAgainDuringRecovery(t *testing.T) {
	for _, another := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a := openReplica(t, new(streamtest.Network))
			runAll(a, "register one", "store one path=a/b", "store one path=c", "remove one path=c")
			b, open := newReplica(t, a.network)
			runAll(b, "register one", "unregister one")
			r, stretches := b.conductor.Sources().Snapshots().Recover(time.Minute), 0
			bring(t, a.conductor, r, true, func() {
				if stretches++; stretches == 1 {
					b.run("register one")
				}
			})
			r.Done()
			if got := b.run("services show=Blocks"); stretches == 0 || got != "one|default|0 Blocks=0\n" {
				t.Errorf("%d stretches, %s", stretches, got)
			}
			want := 0
			if another {
				want = recoverFrom(t, a.conductor, b.conductor, true, time.Minute).Blocks
				if want != 2 {
					t.Errorf("the next place brings %d blocks", want)
				}
			}
			open()
			<-time.After(time.Minute)
			if got, want := answers(b, "none"), answers(a, "none"); got != want {
				t.Error(difference(got, want))
			}
			if got := b.run("services show=State,Blocks"); got != "one|default|0 State=synced Blocks=2\n" {
				t.Error(got)
			}
			for _, err := range b.conductor.Check() {
				t.Error(err)
			}
		})
	}
}

// TestUnregisteredNamesAreBounded: who unregisters names that no source has, fills the room for such names. It neither
// takes that of the sources that were registered here, nor that of other tenants.
func TestUnregisteredNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openReplica(t, new(streamtest.Network))
		runAll(a, "register one", "register two", "register three", "register one tenant=t", "store one path=a")
		b, open := newReplica(t, a.network)
		b.conductor.Tune(conductor.Tunables{MaxSources: 3})
		for _, name := range []string{"u", "v", "w", "x"} {
			b.run("unregister " + name)
		}
		runAll(b, "register one", "unregister one", "register two", "unregister two", "unregister one tenant=t")
		recoverFrom(t, a.conductor, b.conductor, true, time.Minute)
		expectSources(t, b, "three|default|0")
		open()
	})
}

// TestUnregisteredRankOfDump: a dump without sources names ranks. The rank of a source that was unregistered here is not taken
// for one that another source of the instance speaks for.
func TestUnregisteredRankOfDump(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  string
	}{
		{[]string{"register one rank=0", "register one rank=1", "unregister one rank=1"}, `"longest_matched":0`},
		{[]string{"register one rank=0", "register one rank=1", "unregister one rank=1", "unregister one rank=1"}, `"longest_matched":0`},
		{[]string{"register one rank=0"}, `"longest_matched":32`},
		{[]string{"register one rank=0", "unregister one rank=1"}, `"longest_matched":32`}, // rank 0 may speak for it
	} {
		synctest.Test(t, func(t *testing.T) {
			a := openReplica(t, new(streamtest.Network))
			runAll(a, "register one rank=0", "register one rank=1", "store one rank=0 path=a", "store one rank=1 path=c/d")
			b, open := newReplica(t, a.network)
			runAll(b, c.lines...)
			recoverFrom(t, a.conductor, b.conductor, false, time.Minute)
			if got := b.run("query path=c/d instance=one"); !strings.Contains(got, c.want) {
				t.Errorf("%q: %s, want %s", c.lines, got, c.want)
			}
			if got := b.run("query path=a instance=one"); !strings.Contains(got, `"longest_matched":16`) {
				t.Errorf("%q: rank 0: %s", c.lines, got)
			}
			open()
		})
	}
}

// expectSources requires the keys of the sources that a replica has.
func expectSources(t *testing.T, b *bench, want ...string) {
	t.Helper()
	var got []string
	for _, s := range b.conductor.Services() {
		got = append(got, s.Key().String())
	}
	if g, w := strings.Join(got, " "), strings.Join(want, " "); g != w {
		t.Errorf("sources %s, want %s", g, w)
	}
}
