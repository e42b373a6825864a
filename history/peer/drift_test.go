package peer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"

	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/events/wire"
	"example.com/conductor/history/peer"
	"example.com/conductor/internal/must"
)

// web is a transport to the handlers of hosts.
type web map[string]http.Handler

func (w web) RoundTrip(r *http.Request) (*http.Response, error) {
	h := w[r.URL.Host]
	if h == nil {
		return nil, errors.New("no route to host")
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec.Result(), nil
}

// lines is a log that a test reads while a server writes it.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// twin is one of two servers that follow the same publishers.
type twin struct {
	c       *conductor.Conductor
	r       *peer.Peers
	log     lines
	deaf    atomic.Int64 // batches whose events it loses from now on
	handler http.Handler
}

func newTwin(n *streamtest.Network, w web, host string, seed uint64, peers ...string) *twin {
	t := new(twin)
	t.c = conductor.New(conductor.Options{
		HashSeed: seed, KeepClientHashes: true, Log: zerolog.Nop(),
		Stream: stream.Config{Transport: n, ReplayTimeout: 5 * time.Second, StaleAfter: 30 * time.Second, Queue: 1024,
			Decode: func(batch []byte) (events.Batch, error) {
				b, err := wire.Decode(batch, wire.DefaultLimits)
				if t.deaf.Add(-1) >= 0 {
					b.Events = nil
				}
				return b, err
			}},
	})
	opts := admin.Options{
		Dialect:  conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 16, Version: "test"},
		Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	t.handler = admin.New(t.c, opts)
	w[host] = t.handler
	t.r = peer.New(peer.Config{
		Peers: peers, Digests: peer.Digests{Path: admin.DigestPath, Read: admin.ReadDigests},
		Client: &http.Client{Transport: w}, Log: zerolog.New(&t.log),
	})
	return t
}

// follow registers an engine.
func (t *twin) follow(tb testing.TB, instance string) {
	tb.Helper()
	must.Succeed(tb, t.c.Register(registration.Registration{
		Endpoint: "tcp://" + instance + ":1", ReplayEndpoint: "tcp://" + instance + ":1", Type: registration.TypeVLLM,
		Model: "m", Instance: instance, BlockSize: 4,
	}, ingest.RegisterOptions{}))
}

// digest returns the digest of an engine.
func (t *twin) digest(tb testing.TB, instance string) ingest.SourceDigest {
	tb.Helper()
	all := t.c.Sources().Digests(instance + "|default|0")
	if len(all) != 1 || all[0].Mark == nil {
		tb.Fatalf("%s: %+v", instance, all)
	}
	return all[0]
}

// stored is an event of a chain of blocks, all with different tokens.
func stored(first, blocks int) any {
	hashes, tokens := []uint64{}, []uint32{}
	for i := range blocks {
		hashes = append(hashes, uint64(first+i))
		for k := range 4 {
			tokens = append(tokens, uint32(4*(first+i)+k))
		}
	}
	return map[string]any{
		"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens, "block_size": 4, "lora_id": nil,
		"medium": "GPU", "lora_name": nil,
	}
}

func removed(hashes ...uint64) any {
	return map[string]any{"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}
}

// say publishes events as one batch.
func say(p *streamtest.Publisher, events ...any) {
	p.Publish(streamtest.EncodeBatch(float64(p.NextSequence())+0.5, 0, events...))
}

// run compares until the test ends.
func (t *twin) run(tb testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.r.Compare(ctx, t.c, time.Minute)
	}()
	tb.Cleanup(func() {
		cancel()
		<-done
		t.c.Close()
	})
}

// TestCompareResyncs lets one of two replicas lose the events of a batch, of an engine that is
// idle from then on or goes on talking. Two rounds confirm the difference. Resyncs end it.
func TestCompareResyncs(t *testing.T) {
	for _, talks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n, w := new(streamtest.Network), web{}
			a, b := newTwin(n, w, "a", 7, "http://b/"), newTwin(n, w, "b", 7, "http://a")
			a.follow(t, "e")
			b.follow(t, "e")
			a.run(t)
			b.run(t)
			synctest.Wait()
			p := n.PublisherAt("tcp://e:1")
			for i := range 200 {
				say(p, stored(1000*i, 1+i%5))
				synctest.Wait()
				if i == 99 {
					b.deaf.Store(1)
				}
			}
			at := 200
			rounds := func(k int) {
				for range k * 6 {
					time.Sleep(10 * time.Second)
					for range 40 {
						if at++; talks {
							say(p, stored(1000*at, 3), removed(uint64(1000*(at-50))))
						}
					}
					synctest.Wait()
				}
			}
			if x, y := a.digest(t, "e"), b.digest(t, "e"); x.Mark.Seq != y.Mark.Seq || x.Missing != "" || y.Missing != "" ||
				x.Mark.Blocks != y.Mark.Blocks+1 {
				t.Fatalf("%+v\n%+v", x.Mark, y.Mark)
			}
			time.Sleep(time.Second)
			rounds(1)
			if d := a.r.Drift(); d.Sources[peer.Suspected] != 1 || d.Resyncs+d.Differences != 0 {
				t.Errorf("talks %t, after one round: %+v", talks, d)
			}
			rounds(1)
			// The first that confirms it resyncs. The other one finds no batch in common meanwhile.
			x, y := a.r.Drift(), b.r.Drift()
			if n := x.Differences + y.Differences; n == 0 || n != x.Resyncs+y.Resyncs {
				t.Errorf("talks %t, after two rounds: %+v\n%+v", talks, x, y)
			}
			text := a.log.String() + b.log.String()
			if !strings.Contains(text, "a replica holds other blocks") || !strings.Contains(text, `"source":"e|default|0"`) || !talks &&
				!strings.Contains(text, "blocks here, ") {
				t.Errorf("talks %t: %s", talks, text)
			}
			rounds(3)
			here, there := a.digest(t, "e"), b.digest(t, "e")
			if *here.Mark != *there.Mark || there.Epoch != 2 || here.Mark.Blocks == 0 {
				t.Errorf("talks %t: %+v\n%+v", talks, here, there)
			}
			for _, side := range []*twin{a, b} {
				if d := side.r.Drift(); d.Sources[peer.Equal] != 1 || d.Resyncs > 1 || d.Blocks == 0 {
					t.Errorf("talks %t, at the end: %+v", talks, d)
				}
				for _, err := range side.c.Check() {
					t.Error(err)
				}
			}
		})
	}
}

// TestCompareKeepsForeign has the replay service of another engine, so that each replica has what came live since it follows. A resync
// would bring nothing back.
func TestCompareKeepsForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, w := new(streamtest.Network), web{}
		sides := []*twin{newTwin(n, w, "a", 7, "http://b/"), newTwin(n, w, "b", 7, "http://a")}
		e, other := n.PublisherAt("tcp://e:1"), n.PublisherAt("tcp://other:1")
		for i := range 60 {
			say(other, stored(1e6+1000*i, 1))
		}
		for i, side := range sides {
			must.Succeed(t, side.c.Register(registration.Registration{
				Endpoint: "tcp://e:1", ReplayEndpoint: "tcp://other:1", Type: registration.TypeVLLM,
				Model: "m", Instance: "e", BlockSize: 4,
			}, ingest.RegisterOptions{}))
			side.run(t)
			for k := range 20 {
				synctest.Wait()
				say(e, stored(1e5*(i+1)+1000*k, 2))
				time.Sleep(200 * time.Millisecond)
			}
		}
		before := []ingest.SourceDigest{sides[0].digest(t, "e"), sides[1].digest(t, "e")}
		time.Sleep(20 * time.Minute)
		for i, side := range sides {
			now := side.digest(t, "e")
			if !now.ForeignReplay || now.CanRestore() || now.Epoch != before[i].Epoch || *now.Mark != *before[i].Mark {
				t.Errorf("side %d: %+v, was %+v", i, now, before[i])
			}
			if d := side.r.Drift(); d.Differences == 0 || d.Resyncs != 0 {
				t.Errorf("side %d: %+v", i, d)
			}
		}
	})
}

// TestCompareResyncsPartialSide lets one of two replicas begin when the engine has forgotten
// its first two batches. That one alone resyncs, ever more rarely, since it cannot heal.
func TestCompareResyncsPartialSide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, w := new(streamtest.Network), web{}
		a, b := newTwin(n, w, "a", 7, "http://b"), newTwin(n, w, "b", 7, "http://a")
		p := n.PublisherAt("tcp://e:1")
		a.follow(t, "e")
		synctest.Wait()
		p.PublishOnce(streamtest.EncodeBatch(0.5, 0, stored(1, 2)))
		p.PublishOnce(streamtest.EncodeBatch(0.5, 0, stored(50, 1)))
		say(p, stored(100, 2))
		b.follow(t, "e")
		a.run(t)
		time.Sleep(time.Second) // the whole side compares before the other one resyncs
		b.run(t)
		synctest.Wait()
		say(p, stored(200, 2))
		synctest.Wait()
		if x, y := a.digest(t, "e"), b.digest(t, "e"); x.Missing != "" || y.Missing != stream.ReasonOverrun || x.Mark.Seq != y.Mark.Seq ||
			x.Mark.Blocks != 7 || y.Mark.Blocks != 4 {
			t.Fatalf("%+v\n%+v", x, y)
		}
		resyncs := func(at time.Duration, want uint64) {
			t.Helper()
			time.Sleep(at)
			synctest.Wait()
			if d, e := a.r.Drift(), b.r.Drift(); d.Resyncs != 0 || e.Resyncs != want || d.Differences != 1 || e.Differences != 1 {
				t.Errorf("%+v\n%+v", d, e)
			}
		}
		resyncs(2*time.Minute+2*time.Second, 1)
		found := a.c.Services()[0].Findings
		if len(found) != 1 || found[0].Code != "drift" ||
			!strings.Contains(found[0].Message, "this server holds 7 blocks and the replica http://b 4") {
			t.Errorf("%+v", found)
		}
		resyncs(9*time.Minute, 1)
		resyncs(3*time.Minute, 2)
		resyncs(15*time.Minute, 2)
		resyncs(6*time.Minute, 3)
		if e := a.digest(t, "e").Epoch; e != 1 {
			t.Errorf("the whole side is in epoch %d", e)
		}
	})
}

// TestCompareFindsWhoIsBehind holds one side back, and lets it go on.
func TestCompareFindsWhoIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, w := new(streamtest.Network), web{}
		a, b := newTwin(n, w, "a", 7, "http://b"), newTwin(n, w, "b", 7, "http://a")
		defer a.c.Close()
		defer b.c.Close()
		for _, side := range []*twin{a, b} {
			side.follow(t, "e")
			side.run(t)
		}
		synctest.Wait()
		p := n.PublisherAt("tcp://e:1")
		say(p, stored(1, 3))
		synctest.Wait()
		must.Succeed(t, b.c.Sources().SetPaused(registration.Key{Instance: "e", Tenant: scope.DefaultTenant}, true))
		say(p, stored(100, 2))
		say(p, stored(200, 2))
		look := func(after time.Duration, behind uint64, finding string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			found := ""
			for _, f := range b.c.Services()[0].Findings {
				found += f.Code + ": " + f.Message
			}
			if d := b.r.Drift(); d.Behind != behind || !strings.HasPrefix(found, finding) || finding == "" && found != "" {
				t.Errorf("%d batches behind, finding %q", d.Behind, found)
			}
			if d := a.r.Drift(); d.Behind != 0 || len(a.c.Services()[0].Findings) != 0 {
				t.Errorf("the other side: %+v, %+v", d, a.c.Services()[0].Findings)
			}
		}
		look(61*time.Second, 2, "")
		look(time.Minute, 2, "behind: the replica http://a has applied 2 batches more")
		must.Succeed(t, b.c.Sources().SetPaused(registration.Key{Instance: "e", Tenant: scope.DefaultTenant}, false))
		look(time.Minute, 0, "")
	})
}

// TestCompareLeavesAlone has peers that cannot be compared with. Each is one line of the log.
func TestCompareLeavesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, w := new(streamtest.Network), web{}
		a, b := newTwin(n, w, "a", 7, "http://seed", "http://old", "http://gone", "http://torn", "http://b"), newTwin(n, w, "b", 7)
		other := newTwin(n, w, "seed", 8)
		w["old"] = http.NotFoundHandler()
		w["torn"] = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(rw, `{"hash_seed":7,"sources":[{"settings":"zz"}]}`)
		})
		for _, side := range []*twin{a, b, other} {
			side.follow(t, "e")
		}
		defer b.c.Close()
		defer other.c.Close()
		other.deaf.Store(1)
		a.run(t)
		synctest.Wait()
		say(n.PublisherAt("tcp://e:1"), stored(1, 3))
		time.Sleep(5*time.Minute + time.Second)
		synctest.Wait()
		text := a.log.String()
		for _, want := range []string{
			`"peer":"http://seed","error":"it has another hash.seed"`, `"peer":"http://old","error":"it has no digests`,
			`"peer":"http://gone"`, `"peer":"http://torn"`,
		} {
			if strings.Count(text, want) != 1 {
				t.Errorf("want %s once in\n%s", want, text)
			}
		}
		if d := a.r.Drift(); strings.Count(text, "\n") != 4 || !reflect.DeepEqual(d.Sources, map[string]int{peer.Equal: 1}) ||
			d.Blocks != 3 || d.Compared.IsZero() {
			t.Errorf("%+v\n%s", d, text)
		}
		// A registration that differs is not compared.
		must.Succeed(t, b.c.Register(registration.Registration{
			Endpoint: "tcp://e:1", ReplayEndpoint: "tcp://e:1", Type: registration.TypeVLLM, Model: "m", Instance: "e", BlockSize: 4,
			Copies: registration.CopiesSet,
		}, ingest.RegisterOptions{Replace: true}))
		time.Sleep(time.Minute)
		synctest.Wait()
		if d := a.r.Drift(); !reflect.DeepEqual(d.Sources, map[string]int{peer.Incomparable: 1}) {
			t.Errorf("%+v", d)
		}
	})
}

// TestCompareUnsettled has two replicas of an engine that announces a block without tokens. One of
// them follows a second engine, which tells the tokens. That is no difference.
func TestCompareUnsettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, w := new(streamtest.Network), web{}
		a, b := newTwin(n, w, "a", 7, "http://b"), newTwin(n, w, "b", 7)
		a.follow(t, "e")
		a.follow(t, "f")
		b.follow(t, "e")
		defer b.c.Close()
		a.run(t)
		synctest.Wait()
		bare := map[string]any{
			"type": "BlockStored", "block_hashes": []uint64{5}, "parent_block_hash": nil, "token_ids": []uint32{}, "block_size": 4,
			"lora_id": nil, "medium": "CPU", "lora_name": nil,
		}
		say(n.PublisherAt("tcp://e:1"), bare)
		say(n.PublisherAt("tcp://f:1"), stored(5, 1))
		time.Sleep(3*time.Minute + time.Second)
		synctest.Wait()
		x, y := a.digest(t, "e").Mark, b.digest(t, "e").Mark
		if x.Blocks != 1 || y.Blocks != 1 || x.Loose != 0 || y.Loose != 1 {
			t.Errorf("%+v\n%+v", x, y)
		}
		if d := a.r.Drift(); !reflect.DeepEqual(d.Sources, map[string]int{peer.Unsettled: 1}) || d.Resyncs != 0 {
			t.Errorf("%+v\n%s", d, &a.log)
		}
	})
}

// TestReplicasOfFlappingPublisher has two replicas follow engines whose connections are cut, that
// lose batches on the way and restart. At the end both hold the same.
func TestReplicasOfFlappingPublisher(t *testing.T) {
	const seed = 1
	for round := range 5 {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(round)))
			n, w := new(streamtest.Network), web{}
			a, b := newTwin(n, w, "a", 7, "http://b"), newTwin(n, w, "b", 7, "http://a")
			engines := []string{"e", "f"}
			for _, e := range engines {
				a.follow(t, e)
				b.follow(t, e)
			}
			a.run(t)
			b.run(t)
			synctest.Wait()
			for range 400 {
				p := n.PublisherAt("tcp://" + engines[rng.IntN(2)] + ":1")
				switch k := rng.IntN(100); {
				case k < 4:
					p.CutConnections()
				case k < 8:
					p.PublishToRing(streamtest.EncodeBatch(0.5, 0, stored(100*rng.IntN(20), 4)))
				case k < 9:
					p.Restart()
				case k < 20:
					time.Sleep(time.Duration(rng.IntN(5000)) * time.Millisecond)
				case k < 50:
					say(p, removed(uint64(100*rng.IntN(20)+rng.IntN(9))))
				default:
					say(p, stored(100*rng.IntN(20), 1+rng.IntN(8)))
				}
			}
			time.Sleep(5 * time.Minute)
			for _, e := range engines {
				say(n.PublisherAt("tcp://"+e+":1"), stored(9000, 2))
			}
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			for _, e := range engines {
				x, y := a.digest(t, e), b.digest(t, e)
				if *x.Mark != *y.Mark || x.Missing != "" || y.Missing != "" {
					t.Errorf("seed %d, round %d, %s:\n%+v\n%+v", seed, round, e, x, y)
				}
			}
			if d := a.r.Drift(); d.Differences != 0 || d.Sources[peer.Equal] != 2 {
				t.Errorf("seed %d, round %d: %+v\n%s", seed, round, d, &a.log)
			}
		})
	}
}
