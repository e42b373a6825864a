package conductor_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/index"
	"example.com/conductor/internal/must"
)

// imageChunk is a chunk of a deployment of an image.
type imageChunk struct {
	deployment int
	kind       index.ChunkKind
	bytes      []byte
}

// imageOf returns the image of a Conductor.
func imageOf(t testing.TB, c *conductor.Conductor) (img *image.Head, chunks []imageChunk) {
	t.Helper()
	must.Succeed(t, c.Sources().Snapshots().WriteImage(nil, func(head *image.Head) error {
		img = head
		return nil
	}, func(deployment int, kind index.ChunkKind, _ int, bytes []byte) error {
		chunks = append(chunks, imageChunk{deployment, kind, slices.Clone(bytes)})
		return nil
	}))
	return img, chunks
}

// bringImage brings what one Conductor holds into another, as an image.
func bringImage(t testing.TB, from *conductor.Conductor, r *ingest.Recovery) {
	t.Helper()
	img, chunks := imageOf(t, from)
	must.Succeed(t, r.Image(img))
	for i := range img.Deployments {
		l, err := r.Deployment(img, &img.Deployments[i])
		must.Succeed(t, err)
		for _, c := range chunks {
			if c.deployment == i {
				must.Succeed(t, l.Chunk(c.kind, c.bytes))
			}
		}
		must.Succeed(t, l.Done())
	}
}

// recoverImage brings an image of one Conductor into another, some times.
func recoverImage(t testing.TB, from, to *conductor.Conductor, times int) *ingest.Recovery {
	t.Helper()
	r := to.Sources().Snapshots().Recover(0)
	for range times {
		bringImage(t, from, r)
	}
	r.Done()
	return r
}

// TestImagesOfOneDeployment recovers two sources of a model from two servers that know one each: the
// second image finds blocks of the first in its deployment.
func TestImagesOfOneDeployment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(streamtest.Network)
		both, first, second := openReplica(t, network), openReplica(t, network), openReplica(t, network)
		for _, b := range []*bench{both, first} {
			b.run("register one rank=0")
		}
		for _, b := range []*bench{both, second} {
			b.run("register two rank=0")
		}
		both.run("store one rank=0 path=a0/b0/c0")
		both.run("store two rank=0 path=a0/b0/a0")
		both.run("store two rank=0 path=a0/b0 medium=CPU")
		b, open := newReplica(t, network)
		b.run("register one rank=0")
		b.run("register two rank=0")
		for i, from := range []*bench{first, second} {
			if r := recoverImage(t, from.conductor, b.conductor, 1); r.Blocks != []int{3, 5}[i] || r.Refused != 0 {
				t.Errorf("image %d: %d blocks, %d refused", i+1, r.Blocks, r.Refused)
			}
		}
		if got, want := answers(b, "none"), answers(both, "none"); got != want {
			t.Error(difference(got, want))
		}
		compareDigests(t, both.conductor, b.conductor)
		open()
		both.run("remove two rank=0 path=a0/b0/a0 from=2")
		<-time.After(time.Minute)
		if got, want := answers(b, "none"), answers(both, "none"); got != want {
			t.Error("after a removal", difference(got, want))
		}
		for _, err := range b.conductor.Check() {
			t.Error(err)
		}
	})
}

// TestRemovalsAfterRecovery removes blocks that a server has from a replica or a snapshot, of engines
// whose hashes leave an adapter or a salt out. Which constants their names have is known there too.
func TestRemovalsAfterRecovery(t *testing.T) {
	engines := []struct{ name, register, store, remove, later string }{
		{"adapter of SGLang", "register one type=SGLang", "store one path=a/b lora=l", "remove one path=a/b", ""},
		{"adapter of SGLang next to a salt", "register one type=SGLang salt=s", "store one path=a/b lora=l", "remove one path=a/b", ""},
		{"registered adapter", "register one lora=l", "store one path=a/b", "remove one path=a/b", ""},
		{"salt of an envelope", "register one type=Standard", "standard one id=1 path=a/b salt=s",
			"standard one id=2 kind=removed path=a/b", ""},
		{"adapter registered later", "register one", "store one path=a/b", "remove one path=a/b", "register one lora=k"},
		{"another adapter registered later", "register one lora=l", "store one path=a/b", "remove one path=a/b", "register one lora=k"},
	}
	ways := map[string]func(t *testing.T, from, to *conductor.Conductor){
		"image":     func(t *testing.T, from, to *conductor.Conductor) { recoverImage(t, from, to, 1) },
		"two":       func(t *testing.T, from, to *conductor.Conductor) { recoverImage(t, from, to, 2) },
		"stretches": func(t *testing.T, from, to *conductor.Conductor) { recoverFrom(t, from, to, true, time.Hour) },
	}
	for _, e := range engines {
		for way, bring := range ways {
			for _, first := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %s, registered %t", e.name, way, first), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						a := openReplica(t, new(streamtest.Network))
						a.run(e.register)
						a.run(e.store)
						b, open := newReplica(t, a.network)
						if first && e.later == "" {
							b.run(e.register)
						}
						bring(t, a.conductor, b.conductor)
						if e.later != "" {
							b.run(e.later)
						} else if !first {
							b.run(e.register)
						}
						open()
						f := func(when string, want int) {
							t.Helper()
							<-time.After(time.Minute)
							for _, x := range []*bench{a, b} {
								if got := x.conductor.Services()[0].Blocks; got != want {
									t.Errorf("%s: %d blocks, want %d", when, got, want)
								}
							}
						}
						f("stored", 2)
						a.run(e.remove)
						f("removed", 0)
					})
				})
			}
		}
	}
}

// TestZeroHashAfterRecovery holds that a server which recovers a source knows that its publisher has
// announced a block of hash 0, though the block has left: a parent 0 stays that block.
func TestZeroHashAfterRecovery(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a := openReplica(t, new(streamtest.Network))
			a.run("register one block_size=2")
			a.run(`event one json=["BlockStored",[0,1],null,[1,2,3,4],2,null,"GPU"]`)
			a.run(`event one json=["BlockRemoved",[1,0],"GPU"]`)
			b, open := newReplica(t, a.network)
			if first {
				b.run("register one block_size=2")
			}
			recoverImage(t, a.conductor, b.conductor, 1)
			if !first {
				b.run("register one block_size=2")
			}
			img, _ := imageOf(t, b.conductor)
			if m, err := image.ReadSource(img.Sources[0].Fields()); err != nil || !m.ZeroHash {
				t.Errorf("registered first %t: fields say %t (%v)", first, m.ZeroHash, err)
			}
			open()
			<-time.After(time.Minute)
			a.run(`event one json=["BlockStored",[2],0,[5,6],2,null,"GPU"]`)
			<-time.After(time.Minute)
			if got := b.run("services show=Blocks,Orphans"); got != "one|default|0 Blocks=1 Orphans=1\n" {
				t.Errorf("registered first %t: %s", first, got)
			}
		})
	}
}
