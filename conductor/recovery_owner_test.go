package conductor_test

import (
	"errors"
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

// A source that a recovery fills waits for it, also where the gate opens before: it goes on behind its mark. One that is
// replaced or unregistered meanwhile is left to its own replay.
func TestRecoveryHoldsSourcesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openReplica(t, new(streamtest.Network))
		for _, line := range []string{
			"register one rank=0", "register one rank=1", "register two rank=0", "store one rank=0 path=a/b", "store one rank=1 path=a/b/c",
			"store two rank=0 path=a",
		} {
			a.run(line)
		}
		b, open := newReplica(t, a.network)
		for _, line := range []string{"register one rank=0", "register one rank=1", "register two rank=0"} {
			b.run(line)
		}
		r := b.conductor.Sources().Snapshots().Recover(time.Hour)
		bringImage(t, a.conductor, r)
		open()
		synctest.Wait()
		a.run("store one rank=0 path=a/b/c")
		b.run("unregister one rank=1")
		b.run("register one rank=1")
		b.run("unregister two rank=0")
		synctest.Wait()
		r.Done()
		<-time.After(time.Minute)
		for _, row := range b.conductor.Services() {
			want := map[int]string{0: ingest.FromPeer, 1: ingest.FromReplay}[row.Rank]
			if row.State != "synced" || row.HistoryFrom != want || row.Instance != "one" {
				t.Errorf("%s is %s, %s, from %s, want %s", row.Key(), row.State, row.Reason, row.HistoryFrom, want)
			}
		}
		a.run("unregister two rank=0")
		if got, want := answers(b, "none"), answers(a, "none"); got != want {
			t.Error(difference(got, want))
		}
		for _, err := range b.conductor.Check() {
			t.Error(err)
		}
		compareDigests(t, a.conductor, b.conductor)
	})
}

// Of two recoveries of a source, the first one alone fills it.
func TestRecoveryOwnsItsSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openReplica(t, new(streamtest.Network))
		a.run("register one rank=0")
		a.run("store one rank=0 path=a/b")
		b, open := newReplica(t, a.network)
		b.run("register one rank=0")
		first, second := b.conductor.Sources().Snapshots().Recover(0), b.conductor.Sources().Snapshots().Recover(0)
		bringImage(t, a.conductor, first)
		bringImage(t, a.conductor, second)
		second.Done()
		open()
		synctest.Wait()
		first.Done()
		<-time.After(time.Minute)
		if first.Blocks != 2 || second.Blocks != 0 {
			t.Errorf("%d blocks by the first recovery, %d by the second", first.Blocks, second.Blocks)
		}
		if got, want := answers(b, "none"), answers(a, "none"); got != want {
			t.Error(difference(got, want))
		}
		for _, err := range b.conductor.Check() {
			t.Error(err)
		}
	})
}

// TestRecoveryBesideStores brings a deployment back while a source that nobody has recovered stores blocks of the same
// prompts there: as they are, pieces of chains would be there twice.
func TestRecoveryBesideStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openReplica(t, new(streamtest.Network))
		for _, line := range []string{"register one rank=0", "register two rank=0"} {
			a.run(line)
		}
		for _, path := range []string{"a/b/c", "a/b/a", "b/a"} {
			a.run("store one rank=0 path=" + path)
			a.run("store two rank=0 path=" + path)
		}
		for _, early := range []bool{true, false} {
			b := openReplica(t, a.network)
			img, chunks := imageOf(t, a.conductor)
			for i := range img.Sources {
				if img.Sources[i].Instance == "two" {
					img.Sources[i] = image.Source{} // left out
				}
			}
			if early {
				b.run("register two rank=0")
				<-time.After(time.Minute)
			}
			load := func(beside bool) (r *ingest.Recovery, err error) {
				r = b.conductor.Sources().Snapshots().Recover(time.Hour)
				r.Refill, r.Beside = true, beside
				must.Succeed(t, r.Image(img))
				l, err := r.Deployment(img, &img.Deployments[0])
				must.Succeed(t, err)
				if !early && !beside {
					b.run("register two rank=0")
					<-time.After(time.Minute)
				}
				for _, c := range chunks {
					if err := l.Chunk(c.kind, c.bytes); err != nil {
						return r, err
					}
				}
				return r, l.Done()
			}
			r, err := load(false)
			if errors.Is(err, index.ErrOthers) != !early {
				t.Fatalf("the other source was early: %t: %v", early, err)
			}
			if err != nil {
				r.Undo()
				r, err = load(true)
			}
			must.Succeed(t, err)
			r.Done()
			b.run("register one rank=0")
			<-time.After(time.Minute)
			if got, want := answers(b, "none"), answers(a, "none"); got != want {
				t.Error(difference(got, want))
			}
			for _, err := range b.conductor.Check() {
				t.Error(err)
			}
			compareDigests(t, a.conductor, b.conductor)
		}
	})
}

// TestTakeoverBesideChanges takes a deployment over, again and again, while its sources are registered, replaced and
// unregistered, snapshots are written, other recoveries of the same sources begin and are given up, and engines go on. All
// invariants hold at each step, and in the end the answers are those of the replica that had it.
func TestTakeoverBesideChanges(t *testing.T) {
	const seed = 3
	for i := range times(30) {
		synctest.Test(t, func(t *testing.T) {
			s := story{rng: rand.New(rand.NewPCG(seed, uint64(i))), plain: true}
			a := openReplica(t, new(streamtest.Network))
			fleet := fleetOf[:4] // those that can replay
			for _, who := range fleet {
				s.do("register "+who+" clear=all", a)
			}
			for range 60 {
				s.announce(a)
			}
			b, open := newReplica(t, a.network)
			opened := false
			check := func() {
				t.Helper()
				for _, err := range b.conductor.Check() {
					t.Fatalf("seed %d, %d: %v\nhistory:\n%s", seed, i, err, strings.Join(s.done, "\n"))
				}
			}
			change := func() {
				who := s.pick(fleet...)
				switch s.rng.IntN(7) {
				case 0:
					s.do("register "+who+" clear=all", b)
				case 1:
					s.do("register "+who+" clear=all replace=yes copies="+s.pick("set", "count"), b)
				case 2, 3:
					s.do("unregister "+who, b)
				case 4:
					_, _ = imageOf(t, b.conductor)
				case 5:
					s.announce(a)
				case 6:
					<-time.After(time.Second)
				}
				if !opened && s.rng.IntN(10) == 0 {
					opened = true
					open()
				}
				check()
			}
			var other *ingest.Recovery
			for range 1 + s.rng.IntN(4) {
				for range s.rng.IntN(4) {
					change()
				}
				if s.rng.IntN(2) == 0 {
					other = b.conductor.Sources().Snapshots().Recover(time.Hour)
					bringImage(t, a.conductor, other)
				}
				s.done = append(s.done, "takeover")
				takeOverBeside(t, a.conductor, b.conductor, s.rng.IntN(4) == 0, change)
				check()
				if other != nil {
					if s.rng.IntN(2) == 0 {
						other.Undo()
					} else {
						other.Done()
					}
					other = nil
				}
			}
			if !opened {
				open()
			}
			for _, who := range fleet {
				s.do("register "+who+" clear=all replace=yes", b)
			}
			for range s.rng.IntN(20) {
				s.announce(a)
				check()
			}
			<-time.After(time.Minute)
			for range 2 {
				for _, who := range fleet {
					s.do("remove "+who+" path=z", a)
				}
				<-time.After(time.Minute)
			}
			for _, row := range b.conductor.Services() {
				if row.State != "synced" {
					t.Errorf("seed %d, %d: %s is %s, %s", seed, i, row.Key(), row.State, row.Reason)
				}
			}
			if got, want := answers(b, "none"), answers(a, "none"); got != want {
				t.Fatalf("seed %d, %d: %s\nhistory:\n%s", seed, i, difference(got, want), strings.Join(s.done, "\n"))
			}
			check()
			compareDigests(t, a.conductor, b.conductor)
		})
	}
}

// takeOverBeside is takeOver, again with blocks one by one if other sources store meanwhile, and given up in the middle if
// asked for.
func takeOverBeside(t *testing.T, from, to *conductor.Conductor, gives bool, between func()) {
	t.Helper()
	for _, beside := range []bool{false, true} {
		r := to.Sources().Snapshots().Recover(time.Hour)
		r.Refill, r.Beside = true, beside
		switch err := bringBeside(t, from, r, gives, between); {
		case errors.Is(err, index.ErrOthers) && !beside:
			r.Undo()
			continue
		case err != nil:
			r.Undo()
		default:
			r.Done()
		}
		return
	}
}

var errGivenUp = errors.New("given up")

// bringBeside brings an image into a recovery. It calls between before each part.
func bringBeside(t *testing.T, from *conductor.Conductor, r *ingest.Recovery, gives bool, between func()) error {
	t.Helper()
	img, chunks := imageOfDeployment(t, from, takenOver)
	between()
	must.Succeed(t, r.Image(img))
	for i := range img.Deployments {
		between()
		l, err := r.Deployment(img, &img.Deployments[i])
		must.Succeed(t, err)
		for _, c := range chunks {
			if c.deployment != i {
				continue
			}
			if between(); gives && c.kind == index.ChunkPieces {
				return errGivenUp
			}
			if err := l.Chunk(c.kind, c.bytes); err != nil {
				return err
			}
		}
		between()
		must.Succeed(t, l.Done())
	}
	between()
	return nil
}

// imageOfDeployment is imageOf for one deployment.
func imageOfDeployment(t *testing.T, c *conductor.Conductor, of scope.Deployment) (img *image.Head, chunks []imageChunk) {
	t.Helper()
	must.Succeed(t, c.Sources().Snapshots().WriteImage(&of, func(head *image.Head) error {
		img = head
		return nil
	}, func(deployment int, kind index.ChunkKind, _ int, bytes []byte) error {
		chunks = append(chunks, imageChunk{deployment, kind, slices.Clone(bytes)})
		return nil
	}))
	if len(img.Sources) == 0 {
		t.Fatal(fmt.Sprint(of, " has no sources"))
	}
	return img, chunks
}
