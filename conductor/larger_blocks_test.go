package conductor_test

import (
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// TestLargerBlocksOfOldSnapshots recovers larger blocks from a snapshot that tells their sizes, and from one of a release that
// counted their parts one by one. In both cases the removal takes all of a block.
func TestLargerBlocksOfOldSnapshots(t *testing.T) {
	for _, old := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			network := new(streamtest.Network)
			a := openReplica(t, network)
			a.run("register one block_size=2")
			a.run(`event one json=["BlockStored",[40,80],null,[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],8,null,"GPU"]`)
			img, chunks := imageOf(t, a.conductor)
			if old {
				img.Deployments[0].Holders[0].Chunk = 0
			}
			b, open := newReplica(t, network)
			b.run("register one block_size=2")
			r := b.conductor.Sources().Snapshots().Recover(0)
			must.Succeed(t, r.Image(img))
			l, err := r.Deployment(img, &img.Deployments[0])
			must.Succeed(t, err)
			for _, c := range chunks {
				must.Succeed(t, l.Chunk(c.kind, c.bytes))
			}
			must.Succeed(t, l.Done())
			r.Done()
			open()
			<-time.After(time.Minute)
			for removed, want := range []string{"one|default|0 Blocks=8\n", "one|default|0 Blocks=4\n"} {
				if removed > 0 {
					a.run(`event one json=["BlockRemoved",[80],"GPU"]`)
					<-time.After(time.Minute)
				}
				if got := b.run("services show=Blocks"); got != want {
					t.Errorf("old %t, %d removed: %s want %s", old, removed, got, want)
				}
			}
			for _, err := range b.conductor.Check() {
				t.Error(err)
			}
		})
	}
}
