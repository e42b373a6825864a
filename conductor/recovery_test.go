package conductor_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"

	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
	"example.com/conductor/tiers"
)

// newReplica is a bench on another's network, behind a gate.
func newReplica(t *testing.T, n *streamtest.Network) (b *bench, open func()) {
	gate := make(chan struct{})
	c := conductor.New(conductor.Options{
		HashSeed: 1337, KeepClientHashes: true, Gate: gate, Log: zerolog.Nop(),
		Stream: stream.Config{
			Transport: n, ReplayTimeout: 5 * time.Second, StaleAfter: 30 * time.Second, Queue: 1024, Replays: stream.NewLimiter(8),
		},
	})
	opts := admin.Options{
		Dialect:  conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 16, Version: "test"},
		Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	r := admin.New(c, opts)
	conductorhttp.Mount(r, c, opts.Dialect)
	t.Cleanup(c.Close)
	return &bench{conductor: c, handler: r, network: n}, func() { close(gate) }
}

// openReplica is one whose gate is open.
func openReplica(t *testing.T, n *streamtest.Network) *bench {
	b, open := newReplica(t, n)
	open()
	return b
}

// recoverFrom brings what one Conductor holds into another; with marks false as from
// a peer that knows only instances and ranks.
func recoverFrom(t *testing.T, from, to *conductor.Conductor, marks bool, ttl time.Duration) *ingest.Recovery {
	t.Helper()
	r := to.Sources().Snapshots().Recover(ttl)
	bring(t, from, r, marks, func() {})
	r.Done()
	return r
}

// bring does it all but for the end, and calls between before every stretch.
func bring(t *testing.T, from *conductor.Conductor, r *ingest.Recovery, marks bool, between func()) {
	t.Helper()
	snap := from.Sources().Snapshots().Take()
	if marks {
		for _, m := range snap.Sources {
			must.Succeed(t, r.Source(m))
		}
	}
	for tier := tiers.Device; tier <= tiers.Other; tier++ {
		snap.Walk(tier, func(s *ingest.Stored) bool {
			st := *s
			if !marks {
				if s.Waiting || s.ClientHashes[0] == 0 {
					return true
				}
				st.Source = registration.Registration{
					Instance: s.Source.Instance, Tenant: s.Tenant, Model: s.Model, BlockSize: s.BlockSize, Rank: int(s.Rank),
					Type: registration.TypeVLLM,
				}
			}
			if s.Gone { // as a dump tells it
				stretch := *s.Stretch
				stretch.HasParent, stretch.Parent = false, 0
				st.Stretch = &stretch
			}
			between()
			must.Succeed(t, r.Stored(&st))
			return true
		})
	}
}

// story makes random commands for a fleet of two instances with two ranks and one
// with one, which cannot replay.
type story struct {
	rng *rand.Rand
	// plain stories have no events whose outcome depends on what other sources, whose
	// order is not promised, have said before.
	plain bool
	done  []string // the commands until now, for reports
}

var fleetOf = []string{"one rank=0", "one rank=1", "two rank=0", "two rank=1", "three rank=0 replay=no"}

func (s *story) pick(of ...string) string { return of[s.rng.IntN(len(of))] }

// contexts are the words of a command about an adapter and a salt. Names of blocks
// differ between them, as engines hash both.
var contexts = []string{"", " salt=s", " lora=l", " salt=s lora=l"}

func (s *story) path(context int) string {
	names := make([]string, 1+s.rng.IntN(5))
	for i := range names {
		names[i] = s.pick("a", "b", "c") + fmt.Sprint(context)
	}
	return strings.Join(names, "/")
}

func (s *story) command() string {
	who := s.pick(fleetOf...)
	context := max(s.rng.IntN(len(contexts)+2)-2, 0)
	path := s.path(context)
	from := s.rng.IntN(strings.Count(path, "/") + 1)
	if s.plain {
		from = 0
	}
	where := fmt.Sprintf("%s path=%s from=%d medium=%s", who, path, from, s.pick("GPU", "GPU", "CPU", "DISK", "ODD"))
	switch n := s.rng.IntN(100); {
	case n < 60:
		return "store " + where + contexts[context]
	case n < 65 && !s.plain:
		return "store " + where + contexts[context] + " tokens=no"
	case n < 94:
		return "remove " + where
	case n < 96:
		return "clear " + who
	default:
		return "restart " + s.pick(fleetOf[:4]...) // of one without replays that is not seen in time: rule PEER-1
	}
}

// do runs a command at some replicas.
func (s *story) do(line string, on ...*bench) {
	s.done = append(s.done, line)
	for _, b := range on {
		b.run(line)
	}
	if strings.HasPrefix(line, "restart") {
		<-time.After(10 * time.Second) // so that nothing is published while no source listens
	}
}

// announce runs a command, unless that would restart an engine.
func (s *story) announce(on *bench) {
	if line := s.command(); !strings.HasPrefix(line, "restart") {
		s.do(line, on)
	}
}

// settle waits until all is applied. What waits for another source joins with the next event of its own.
func (s *story) settle(on *bench) {
	<-time.After(time.Minute)
	for range 2 {
		for _, who := range fleetOf {
			s.do("remove "+who+" path=z", on)
		}
		<-time.After(time.Minute)
	}
}

// answers are those to all short prompts, in every context.
func answers(b *bench, without string) string {
	var out strings.Builder
	var grow func(path string, context, deep int)
	grow = func(path string, context, deep int) {
		fmt.Fprintf(&out, "%s%s\n", path, contexts[context])
		for _, row := range strings.Split(b.run("query path="+path+contexts[context]), "\n") {
			// Which adapters were announced once is not carried, so what holds nothing is a row or none.
			if row != "" && row != "{}" && !strings.Contains(row, `"longest_matched":0`) && !strings.HasPrefix(row, without) {
				fmt.Fprintln(&out, row)
			}
		}
		if deep < 4 {
			for _, name := range []string{"a", "b", "c"} {
				grow(strings.TrimPrefix(path+"/"+name+fmt.Sprint(context), "/"), context, deep+1)
			}
		}
	}
	for context := range contexts {
		grow("", context, 0)
	}
	return out.String()
}

// compareDigests holds that sources of two Conductors that stand at the same batch have the same
// digest, unless one knows the place of a block that the other does not know.
func compareDigests(t *testing.T, a, b *conductor.Conductor) {
	t.Helper()
	theirs := make(map[registration.Key]ingest.SourceDigest)
	for _, d := range b.Sources().Digests("") {
		theirs[d.Key()] = d
	}
	for _, x := range a.Sources().Digests("") {
		y := theirs[x.Key()]
		if x.Mark == nil || y.Mark == nil || x.Mark.Seq != y.Mark.Seq || x.Mark.Print != y.Mark.Print {
			continue
		}
		if x.Mark.Blocks != y.Mark.Blocks || x.Mark.Loose == y.Mark.Loose && x.Mark.Sum != y.Mark.Sum {
			t.Errorf("%s: %+v %q\n%+v %q\n%+v\n%+v", x.Key(), *x.Mark, x.Missing, *y.Mark, y.Missing, x.Deployments, y.Deployments)
		}
	}
}

// A replica recovered at any moment answers as the original does: at once, and
// later, whichever sources it knew before and whichever are registered afterwards. An image
// says the same as stretches of blocks.
func TestRecoveryModel(t *testing.T) {
	t.Run("stretches", func(t *testing.T) {
		testRecovery(t, func(t *testing.T, from, to *conductor.Conductor) *ingest.Recovery {
			return recoverFrom(t, from, to, true, 0)
		})
	})
	t.Run("image", func(t *testing.T) {
		testRecovery(t, func(t *testing.T, from, to *conductor.Conductor) *ingest.Recovery {
			return recoverImage(t, from, to, 1)
		})
	})
	t.Run("image twice", func(t *testing.T) { // the second finds all blocks there
		testRecovery(t, func(t *testing.T, from, to *conductor.Conductor) *ingest.Recovery {
			return recoverImage(t, from, to, 2)
		})
	})
}

func testRecovery(t *testing.T, bring func(t *testing.T, from, to *conductor.Conductor) *ingest.Recovery) {
	const seed = 1
	for i := range times(10) {
		synctest.Test(t, func(t *testing.T) {
			s := story{rng: rand.New(rand.NewPCG(seed, uint64(i)))}
			a := openReplica(t, new(streamtest.Network))
			for _, who := range fleetOf {
				s.do("register "+who, a)
			}
			for range s.rng.IntN(80) {
				s.do(s.command(), a)
			}
			b, open := newReplica(t, a.network)
			known := s.rng.IntN(len(fleetOf) + 1)
			for _, who := range fleetOf[:known] {
				s.do("register "+who, b)
			}
			for range s.rng.IntN(10) { // what the replica hears before the mark
				s.announce(a)
			}
			s.done = append(s.done, "snapshot")
			r := bring(t, a.conductor, b.conductor)
			same := func(when, without string) {
				t.Helper()
				if got, want := answers(b, without), answers(a, without); got != want {
					t.Fatalf("seed %d, %d: %s: %d blocks, %d refused\n%s\nhistory:\n%s", seed, i, when, r.Blocks, r.Refused,
						difference(got, want), strings.Join(s.done, "\n"))
				}
				for _, err := range b.conductor.Check() {
					t.Fatal(err)
				}
				compareDigests(t, a.conductor, b.conductor)
			}
			same("before the gate opens", "none")
			s.plain = true
			for range s.rng.IntN(5) {
				s.announce(a)
			}
			open()
			<-time.After(time.Minute)
			for _, who := range fleetOf[known:] {
				if !strings.Contains(who, "replay=no") {
					s.do("register "+who, b)
				}
			}
			if known == len(fleetOf) {
				for range s.rng.IntN(30) {
					s.do(s.command(), a)
				}
			}
			s.settle(a)
			if known < len(fleetOf) {
				same("later", "default three") // the replica has no more of it
			} else {
				same("later", "none")
			}
		})
	}
}

// difference is the first answer that differs.
func difference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	question := ""
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("%s\ngot  %s\nwant %s", question, g[i], w[i])
		}
		if g[i] != "" && !strings.HasPrefix(g[i], "default ") {
			question = g[i]
		}
	}
	return "one is longer"
}

// A peer that knows no marks tells a guess: it answers at once, removals apply to
// it, and it goes when the publisher's own history is whole.
func TestRecoveryWithoutMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openReplica(t, new(streamtest.Network))
		run := func(b *bench, lines ...string) (last string) {
			for _, line := range lines {
				last = b.run(line)
			}
			return last
		}
		run(a, "register one", "register two replay=no", "store one path=a/b/c", "store one path=a/b medium=CPU", "store two path=a/b/c",
			"store two path=a/x")
		peer, openPeer := newReplica(t, a.network) // knows a block that the engine has dropped meanwhile
		run(peer, "register one", "register two replay=no")
		recoverFrom(t, a.conductor, peer.conductor, true, 0)
		openPeer()
		run(a, "remove one path=a/b/c from=2")

		b, open := newReplica(t, a.network)
		run(b, "register one", "register two replay=no")
		gone, _ := newReplica(t, new(streamtest.Network)) // what peer knew before
		run(gone, "register one", "register two replay=no")
		stale := recoverFrom(t, peer.conductor, gone.conductor, true, 0)
		recoverFrom(t, gone.conductor, b.conductor, false, 0)
		if stale.Blocks == 0 {
			t.Fatal("nothing was recovered")
		}
		f := func(when, query, want string) {
			t.Helper()
			if got := b.run(query); !strings.Contains(got, want) {
				t.Errorf("%s: %s: %s, want %s", when, query, got, want)
			}
		}
		f("before the gate opens", "query path=a/b/c instance=two", `"longest_matched":48,"GPU":48`)
		f("before the gate opens", "query path=a/b instance=one", `"longest_matched":32,"GPU":32,"CPU":32`)
		open()
		<-time.After(10 * time.Second)
		f("later", "query path=a/b/c instance=one", `"longest_matched":32,"GPU":32,"CPU":32`)
		if got := run(b, "services show=State,Reason,Blocks"); !strings.Contains(got, "one|default|0 State=synced Reason= Blocks=4") {
			t.Errorf("%s", got)
		}
		run(b, "remove two path=a/b/c from=2")
		f("a removal", "query path=a/b/c instance=two", `"longest_matched":32,"GPU":32`)
		f("what nobody replays stays", "query path=a/x instance=two", `"longest_matched":32`)
	})
}

// TestRecoveredSourcesExpire requires that blocks of a peer whose source is not registered
// here answer for a while and go. A registration in time takes them over.
func TestRecoveredSourcesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openReplica(t, new(streamtest.Network))
		for _, line := range []string{"register one replay=no", "register two replay=no", "store one path=a/b", "store two path=a"} {
			a.run(line)
		}
		b, open := newReplica(t, a.network)
		recoverFrom(t, a.conductor, b.conductor, true, time.Minute)
		open()
		f := func(query, want string) {
			t.Helper()
			if got := b.run(query); !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		}
		f("query path=a/b instance=one", `"longest_matched":32`)
		f("services show=State,Reason,LastSeq", "one|default|0 State=partial Reason=not_registered LastSeq=0\ntwo")
		b.run("register one replay=no")
		f("query path=a/b instance=one", `"longest_matched":32`)
		<-time.After(2 * time.Minute)
		f("query path=a/b instance=one", `"longest_matched":32`)
		f("query path=a/b instance=two", `"longest_matched":0`)
		f("services show=Blocks", "one|default|0 Blocks=2\n")
		if got := b.run("services show=Blocks"); strings.Contains(got, "two") {
			t.Errorf("%s", got)
		}
		if n := len(b.conductor.Registrations()); n != 1 {
			t.Errorf("%d registrations", n)
		}
	})
}

// TestRegisterDuringRecovery requires that a registration or its end during a recovery has the
// effect that it has before or after the recovery, also with the gate open. A recovery that is undone
// leaves nothing.
func TestRegisterDuringRecovery(t *testing.T) {
	for n := range 16 {
		whole, opened, at := n&1 != 0, n&2 != 0, n>>2
		synctest.Test(t, func(t *testing.T) {
			a := openReplica(t, new(streamtest.Network))
			for _, line := range []string{"register one", "register two", "store one path=a/b", "store two path=a", "store one path=c",
				"store two path=d", "remove one path=c"} {
				a.run(line)
			}
			b, open := newReplica(t, a.network)
			if opened {
				open()
			}
			r, n := b.conductor.Sources().Snapshots().Recover(time.Minute), 0
			bring(t, a.conductor, r, true, func() {
				if n == at {
					b.run("register one")
					b.run("unregister two")
				}
				n++
			})
			if whole {
				r.Done()
			} else {
				r.Undo()
				for _, s := range b.conductor.Services() {
					if s.Recovered || s.Blocks > 0 && !opened {
						t.Errorf("undone at %d, %s holds %d blocks", at, s.Key(), s.Blocks)
					}
				}
			}
			if n < 3 {
				t.Fatalf("%d stretches", n)
			}
			b.run("register one") // at the latest
			if !opened {
				open()
			}
			synctest.Wait()
			a.run("store one path=e")
			<-time.After(time.Second)
			if got := b.run("query path=a/b instance=one"); !strings.Contains(got, `"longest_matched":32`) {
				t.Errorf("whole %t, registered at %d: %s", whole, at, got)
			}
			if got := b.run("services show=State,LastSeq,Blocks"); !strings.Contains(got, "one|default|0 State=synced LastSeq=3 Blocks=3") {
				t.Errorf("whole %t, registered at %d: %s", whole, at, got)
			}
			a.run("remove one path=a/b from=1") // no copy is counted twice
			<-time.After(2 * time.Minute)
			if got := b.run("query path=a/b instance=one"); !strings.Contains(got, `"longest_matched":16`) {
				t.Errorf("whole %t, opened %t, registered at %d: %s", whole, opened, at, got)
			}
			if errs := b.conductor.Check(); len(errs) > 0 {
				t.Error(errs)
			}
			if n := len(b.conductor.Services()); n != 1 {
				t.Errorf("%d sources are left", n)
			}
		})
	}
}

// TestRecoveredBehindGone holds that blocks follow each other in a replica too when a
// block before them has left the peer.
func TestRecoveredBehindGone(t *testing.T) {
	for _, lines := range [][]string{
		{"store one path=a/b/c", "remove one path=a"},
		{"store one path=a/b medium=DISK", "store one path=a/b/c/d", "remove one path=a/b", "remove one path=a medium=DISK"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := openReplica(t, new(streamtest.Network))
			b, open := newReplica(t, a.network)
			runAll(a, append([]string{"register one"}, lines...)...)
			recoverFrom(t, a.conductor, b.conductor, true, 0)
			open()
			b.conductor.Sources().Snapshots().Take().Walk(tiers.Device, func(s *ingest.Stored) bool {
				if len(s.Engine) != 2 {
					t.Errorf("%q: %d blocks follow each other, want 2", lines, len(s.Engine))
				}
				return true
			})
			for _, err := range b.conductor.Check() {
				t.Error(err)
			}
		})
	}
}

// TestRecoveredTenants holds that a peer gives a source blocks of those tenants alone
// that the source may announce for here.
func TestRecoveredTenants(t *testing.T) {
	for line, refused := range map[string]int{"register one": 2, "register one static=yes may_announce=t": 0} {
		synctest.Test(t, func(t *testing.T) {
			a := openReplica(t, new(streamtest.Network))
			b, _ := newReplica(t, a.network)
			a.run("register one static=yes may_announce=t")
			a.run("standard one path=a medium=gpu")
			a.run("standard one path=a/b medium=gpu tenant=t")
			b.run(line)
			r := recoverFrom(t, a.conductor, b.conductor, true, 0)
			if r.Blocks != 3-refused || r.Refused != refused {
				t.Errorf("%s: %d blocks, %d refused", line, r.Blocks, r.Refused)
			}
		})
	}
}

// TestRecoveredRules holds that a source takes no blocks from a peer that its own rules
// leave out, whether it is registered before the recovery or after it.
func TestRecoveredRules(t *testing.T) {
	for _, c := range []struct {
		here   string
		blocks int
	}{
		{"register one static=yes may_announce=t", 6},
		{"register one", 5},
		{"register one owned=drop", 2},
	} {
		for _, first := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				a := openReplica(t, new(streamtest.Network))
				runAll(a, "register one static=yes may_announce=t", "store one path=a/b medium=CPU ownership=kvcr",
					"store one path=z salt=s medium=CPU ownership=kvcr",
					"store one path=a/b", "standard one path=a medium=gpu tenant=t")
				b, open := newReplica(t, a.network)
				if first {
					b.run(c.here)
				}
				r := recoverFrom(t, a.conductor, b.conductor, true, time.Minute)
				if !first {
					b.run(c.here)
				} else if r.Blocks != c.blocks || r.Refused != 6-c.blocks {
					t.Errorf("%s: %d blocks, %d refused", c.here, r.Blocks, r.Refused)
				}
				open()
				synctest.Wait()
				if got, want := b.run("services show=Blocks"), fmt.Sprintf("one|default|0 Blocks=%d\n", c.blocks); got != want {
					t.Errorf("%s, first %t: %s, want %s", c.here, first, got, want)
				}
				b.run("store one path=a/b/c")
				expectServed(t, b, "path=a/b/c", "one", 48)
				for _, err := range b.conductor.Check() {
					t.Error(err)
				}
			})
		}
	}
}
