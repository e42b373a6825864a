package conductor_test

import (
	"slices"
	"testing"

	"kvconductor/conductor"
	"kvconductor/index"
	"kvconductor/internal/must"
)

// imageChunk is a chunk of a context of an image.
type imageChunk struct {
	context int
	kind    index.ChunkKind
	bytes   []byte
}

// imageOf returns the image of a Conductor.
func imageOf(t testing.TB, c *conductor.Conductor) (img *conductor.Image, chunks []imageChunk) {
	t.Helper()
	must.Succeed(t, c.WriteImage(nil, func(head *conductor.Image) error {
		img = head
		return nil
	}, func(context int, kind index.ChunkKind, _ int, bytes []byte) error {
		chunks = append(chunks, imageChunk{context, kind, slices.Clone(bytes)})
		return nil
	}))
	return img, chunks
}

// bringImage brings what one Conductor holds into another, as an image.
func bringImage(t testing.TB, from *conductor.Conductor, r *conductor.Recovery) {
	t.Helper()
	img, chunks := imageOf(t, from)
	must.Succeed(t, r.Image(img))
	for i := range img.Contexts {
		l, err := r.Context(img, &img.Contexts[i])
		must.Succeed(t, err)
		for _, c := range chunks {
			if c.context == i {
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
