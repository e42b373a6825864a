package conductor_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/index"
	"example.com/conductor/internal/must"
)

// takenOver is the deployment of the tests below, and kept another one that the replica has.
var takenOver, kept = scope.Deployment{Tenant: "default", Model: "m", BlockSize: 16}, "other rank=0 model=n"

// takeOver brings the blocks of a deployment from one Conductor into another that runs. It calls
// between before each chunk.
func takeOver(t *testing.T, from, to *conductor.Conductor, between func()) *ingest.Recovery {
	t.Helper()
	r := to.Sources().Snapshots().Recover(time.Hour)
	r.Refill = true
	var img *image.Head
	var chunks []imageChunk
	must.Succeed(t, from.Sources().Snapshots().WriteImage(&takenOver, func(head *image.Head) error {
		img = head
		return nil
	}, func(context int, kind index.ChunkKind, _ int, bytes []byte) error {
		chunks = append(chunks, imageChunk{context, kind, slices.Clone(bytes)})
		return nil
	}))
	for _, m := range img.Sources {
		if m.Model != "m" {
			t.Errorf("the image has a source of %s", m.Model)
		}
	}
	must.Succeed(t, r.Image(img))
	for i := range img.Deployments {
		l, err := r.Deployment(img, &img.Deployments[i])
		must.Succeed(t, err)
		for _, c := range chunks {
			if between(); c.deployment == i {
				must.Succeed(t, l.Chunk(c.kind, c.bytes))
			}
		}
		must.Succeed(t, l.Done())
	}
	r.Done()
	return r
}

// TestTakeoverModel takes a deployment over, again where it was taken over before, while events of
// it and of another deployment go on. The answers are those of the replica that had it.
func TestTakeoverModel(t *testing.T) {
	const seed = 2
	for i := range times(10) {
		synctest.Test(t, func(t *testing.T) {
			s := story{rng: rand.New(rand.NewPCG(seed, uint64(i)))}
			a := openReplica(t, new(streamtest.Network))
			b := openReplica(t, a.network)
			s.do("register "+kept+" clear=all", a, b)
			for _, who := range fleetOf {
				s.do("register "+who+" clear=all", a)
			}
			between := func() {
				if s.rng.IntN(3) == 0 {
					s.do(fmt.Sprintf("%s %s path=%s", s.pick("store", "store", "remove"), kept, s.path(0)), a)
				}
				if s.rng.IntN(3) == 0 {
					s.announce(a)
				}
			}
			var r *ingest.Recovery
			for range 1 + s.rng.IntN(2) {
				for range s.rng.IntN(80) {
					s.do(s.command(), a)
				}
				<-time.After(10 * time.Second)
				s.plain = true
				r = takeOver(t, a.conductor, b.conductor, between)
				s.plain = false
			}
			s.plain = true
			for range s.rng.IntN(10) {
				between()
			}
			for _, who := range fleetOf {
				if !strings.Contains(who, "replay=no") {
					s.do("register "+who+" clear=all", b)
				}
			}
			for range s.rng.IntN(30) {
				between()
			}
			s.settle(a)
			if got, want := answers(b, "default three"), answers(a, "default three"); got != want {
				t.Fatalf("seed %d, %d: %d blocks, %d refused\n%s\nhistory:\n%s", seed, i, r.Blocks, r.Refused, difference(got, want),
					strings.Join(s.done, "\n"))
			}
			for _, path := range []string{"a0", "b0", "c0", "a0/a0", "a0/b0"} {
				question := "query model=n path=" + path
				if got, want := b.run(question), a.run(question); got != want {
					t.Errorf("seed %d, %d: the other deployment answers %s, want %s", seed, i, got, want)
				}
			}
			for _, row := range b.conductor.Services() {
				if registered := !strings.HasPrefix(row.Instance, "three"); registered && row.State != "synced" {
					t.Errorf("seed %d, %d: %s is %s, %s", seed, i, row.Key(), row.State, row.Reason)
				}
			}
			for _, err := range b.conductor.Check() {
				t.Fatal(err)
			}
			compareDigests(t, a.conductor, b.conductor)
		})
	}
}

// TestImageLeavesOutUnsettled requires that no snapshot has a source whose blocks still come.
func TestImageLeavesOutUnsettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openReplica(t, new(streamtest.Network))
		for _, line := range []string{"register one", "store one path=a/b", "store one path=c"} {
			a.run(line)
		}
		b := openReplica(t, a.network)
		chunks := 0
		takeOver(t, a.conductor, b.conductor, func() {
			if img, _ := imageOf(t, b.conductor); len(img.Sources) != 0 || len(img.Deployments) != 0 {
				t.Errorf("%+v", img)
			}
			chunks++
		})
		if img, _ := imageOf(t, b.conductor); len(img.Sources) != 1 || img.Sources[0].Mark == nil || chunks == 0 {
			t.Errorf("%d chunks, %+v", chunks, img)
		}
	})
}

// TestDropUnregistered drops what a takeover has brought and nobody has registered: a source of another model stays, and so
// does one that was registered meanwhile.
func TestDropUnregistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openReplica(t, new(streamtest.Network))
		for _, line := range []string{"register one", "register two", "store one path=a/b", "store two path=c"} {
			a.run(line)
		}
		b := openReplica(t, a.network)
		b.run("register " + kept)
		takeOver(t, a.conductor, b.conductor, func() {})
		b.run("register two")
		b.conductor.Sources().Snapshots().DropUnregistered(scope.Shard{Tenant: "default", Model: "m"})
		synctest.Wait()
		got := ""
		for _, row := range b.conductor.Services() {
			got += fmt.Sprint(row.Instance, " ", row.Recovered, " ", row.Blocks, "; ")
		}
		if want := "other false 0; two false 1; "; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		for _, err := range b.conductor.Check() {
			t.Error(err)
		}
	})
}
