package conductor_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kvconductor/conductor"
	"kvconductor/events/stream/streamtest"
	"kvconductor/index"
	"kvconductor/internal/must"
)

// imageChunk is a chunk of a deployment of an image.
type imageChunk struct {
	deployment int
	kind       index.ChunkKind
	bytes      []byte
}

// imageOf returns the image of a Conductor.
func imageOf(t testing.TB, c *conductor.Conductor) (img *conductor.Image, chunks []imageChunk) {
	t.Helper()
	must.Succeed(t, c.WriteImage(nil, func(head *conductor.Image) error {
		img = head
		return nil
	}, func(deployment int, kind index.ChunkKind, _ int, bytes []byte) error {
		chunks = append(chunks, imageChunk{deployment, kind, slices.Clone(bytes)})
		return nil
	}))
	return img, chunks
}

// bringImage brings what one Conductor holds into another, as an image.
func bringImage(t testing.TB, from *conductor.Conductor, r *conductor.Recovery) {
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
func recoverImage(t testing.TB, from, to *conductor.Conductor, times int) *conductor.Recovery {
	t.Helper()
	r := to.Recover(0)
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
