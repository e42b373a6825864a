package conductor_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/events/wire"
	"example.com/conductor/internal/must"
)

func engineAt(instance string, rank int) registration.Registration {
	return registration.Registration{
		Endpoint: fmt.Sprintf("ipc://%s/%d", instance, rank), Type: "vLLM", Model: "m", Instance: instance, BlockSize: 16, Rank: rank,
	}
}

func word(instance, path string, more ...string) args {
	a := args{word: instance, keys: map[string]string{"path": path}}
	for i := 0; i < len(more); i += 2 {
		a.keys[more[i]] = more[i+1]
	}
	return a
}

// TestCloseWhileEnginesPublish ends everything while four engines store and remove.
func TestCloseWhileEnginesPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		var publishing sync.WaitGroup
		for i := range 4 {
			name := fmt.Sprint("I", i)
			must.Succeed(t, b.conductor.Register(engineAt(name, 0), ingest.RegisterOptions{}))
			publishing.Go(func() {
				for range 200 {
					b.publish(word(name, "a/b/c"), b.storeEvent(word(name, "a/b/c")))
					b.publish(word(name, "a/b/c"), b.removeEvent(word(name, "a/b/c")))
				}
			})
		}
		for range 2 {
			publishing.Go(b.conductor.Close)
		}
		publishing.Wait()
		if err := b.conductor.Register(engineAt("late", 0), ingest.RegisterOptions{}); !errors.Is(err, ingest.ErrClosed) {
			t.Errorf("registered after the end: %v", err)
		}
	})
}

// TestRegisterManyAtOnce registers configured and announced sources side by side.
func TestRegisterManyAtOnce(t *testing.T) {
	b := newBench()
	defer b.conductor.Close()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			must.Report(t, b.conductor.Register(engineAt(fmt.Sprint("I", i), 0), ingest.RegisterOptions{Static: i < 8}))
		})
	}
	all.Wait()
	answer := b.conductor.Query(match.Query{Model: "m", BlockSize: 16})
	if n := len(b.conductor.Services()); n != 16 || len(answer.Rows) != 16 {
		t.Errorf("%d sources, %d rows", n, len(answer.Rows))
	}
}

// TestRegisterAndUnregisterAtOnce comes and goes with keys, half of them the same one:
// it is there or not, and never in between.
func TestRegisterAndUnregisterAtOnce(t *testing.T) {
	b := newBench()
	defer b.conductor.Close()
	var all sync.WaitGroup
	for i := range 8 {
		r := engineAt("shared", 0)
		if i%2 == 1 {
			r = engineAt(fmt.Sprint("I", i), 0)
		}
		all.Go(func() {
			for range 5 {
				must.Report(t, b.conductor.Register(r, ingest.RegisterOptions{}))
				if _, err := b.conductor.Unregister(r.Key()); err != nil && (i%2 == 1 || !errors.Is(err, ingest.ErrNotFound)) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if left := b.conductor.Services(); len(left) != 0 {
		t.Errorf("%d are left", len(left))
	}
}

// TestOneProfileWins registers one context with two algorithms at once.
func TestOneProfileWins(t *testing.T) {
	for range 20 {
		b := newBench()
		var all sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			r := engineAt(fmt.Sprint("I", i), 0)
			r.Profile = profileOf([]string{"sha256_cbor/0", "sha256/0"}[i%2])
			all.Go(func() { errs[i] = b.conductor.Register(r, ingest.RegisterOptions{}) })
		}
		all.Wait()
		refused := 0
		for _, err := range errs {
			var conflict *catalog.ProfileConflictError
			switch {
			case errors.As(err, &conflict):
				refused++
			case err != nil:
				t.Error(err)
			}
		}
		in := b.conductor.Services()
		if refused != 4 || len(in) != 4 || slices.ContainsFunc(in, func(s status.Source) bool { return s.Profile != in[0].Profile }) {
			t.Errorf("%d refused, %d registered: %v", refused, len(in), in)
		}
		b.conductor.Close()
	}
}

// TestConflictsTellNoSecrets registers beside a source whose seed and salt others must not learn from the refusal.
func TestConflictsTellNoSecrets(t *testing.T) {
	b := newBench()
	defer b.conductor.Close()
	theirs := engineAt("theirs", 0)
	theirs.Profile, theirs.Salt = profileOf("sha256/4711"), "pepper"
	must.Succeed(t, b.conductor.Register(theirs, ingest.RegisterOptions{}))
	f := func(name, algorithm, salt, field string) {
		t.Helper()
		r := engineAt(name, 0)
		r.Profile, r.Salt = profileOf(algorithm), salt
		err := b.conductor.Register(r, ingest.RegisterOptions{})
		said := fmt.Sprint(err)
		if err == nil || !strings.Contains(said, field) || strings.Contains(said, "4711") || strings.Contains(said, "pepper") {
			t.Errorf("%s with %s and the salt %q: %v", name, algorithm, salt, err)
		}
	}
	f("theirs", "sha256/0", "pepper", "hash_profile")
	f("theirs", "sha256_cbor/0", "pepper", "hash_profile")
	f("theirs", "sha256/4711", "guess", "additionalsalt")
	f("other", "sha256/0", "pepper", "python_hash_seed")
	f("other", "sha256_cbor/0", "pepper", "algorithm")
}

// held is a decoder that stops at batches with a certain model in them.
type held struct{ entered, release chan struct{} }

func (h *held) decode(payload []byte) (events.Batch, error) {
	if bytes.Contains(payload, []byte("hold on")) {
		close(h.entered)
		<-h.release
	}
	return wire.Decode(payload, wire.DefaultLimits)
}

// holding is a bench with an engine a whose batch is being handled.
func holding() (*bench, *held) {
	h := &held{entered: make(chan struct{}), release: make(chan struct{})}
	n := new(streamtest.Network)
	b := &bench{network: n, conductor: conductor.New(conductor.Options{
		HashSeed: 1337, Log: zerolog.Nop(),
		Stream: stream.Config{Transport: n, Decode: h.decode, ReplayTimeout: 5 * time.Second, Queue: 1024, Replays: stream.NewLimiter(8)},
	})}
	if err := b.conductor.Register(engineAt("a", 0), ingest.RegisterOptions{}); err != nil {
		panic(err)
	}
	synctest.Wait()
	e := b.storeEvent(word("a", "x/y")).(map[string]any)
	e["note"] = "hold on"
	b.publish(word("a", ""), e)
	<-h.entered
	return b, h
}

// rows are the blocks of x/y each instance has.
func (b *bench) rows() string {
	out := ""
	for _, r := range b.conductor.Query(match.Query{Model: "m", BlockSize: 16, Tokens: promptOf("x/y", 16)}).Rows {
		out += fmt.Sprintf("%s:%d ", r.Instance, r.Longest)
	}
	return out
}

// TestUnregisterWaits unregisters an engine whose batch is being handled: it returns once
// that is over, and leaves nothing. The key is free at once, for a source of its own.
func TestUnregisterWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := holding()
		defer b.conductor.Close()
		over := make(chan error, 1)
		go func() {
			_, err := b.conductor.Unregister(registration.Key{Instance: "a"})
			over <- err
		}()
		synctest.Wait()
		if len(over) != 0 {
			t.Error("it did not wait for the batch")
		}
		if _, err := b.conductor.Unregister(registration.Key{Instance: "a"}); !errors.Is(err, ingest.ErrNotFound) {
			t.Errorf("a second time: %v", err)
		}
		if err := b.conductor.Register(engineAt("a", 0), ingest.RegisterOptions{}); err != nil {
			t.Errorf("registered meanwhile: %v", err)
		}
		close(h.release)
		must.Report(t, <-over)
		synctest.Wait()
		if got := b.rows(); got != "a:0 " {
			t.Errorf("left is %s", got)
		}
		b.publish(word("a", ""), b.storeEvent(word("a", "x")))
		synctest.Wait()
		if got := b.rows(); got != "a:1 " {
			t.Errorf("the next one has %s", got)
		}
	})
}

// TestCloseWaits closes twice while a batch is being handled: both wait.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := holding()
		over := make(chan bool, 2)
		for range 2 {
			go func() {
				b.conductor.Close()
				over <- true
			}()
		}
		synctest.Wait()
		if len(over) != 0 {
			t.Errorf("%d did not wait", len(over))
		}
		close(h.release)
		<-over
		<-over
	})
}

// TestAnswersDuringChanges changes one context from seven sides while routers ask: each
// answer has a whole number of blocks of each tier in the order of the cascade. At the end
// the answer follows from the events of the sources that stay.
func TestAnswersDuringChanges(t *testing.T) {
	const rounds = 200
	inBubble(t, func(t *testing.T, b *bench) {
		path := "x/y/z"
		pool := engineAt("pool", 0)
		pool.Type = registration.TypeMooncake
		for _, r := range []registration.Registration{engineAt("a", 1), engineAt("b", 0), engineAt("guest", 0), pool} {
			must.Succeed(t, b.conductor.Register(r, ingest.RegisterOptions{}))
		}
		synctest.Wait() // they listen
		a, guest := word("a", "x", "rank", "1"), word("guest", path)
		first, all, shelf := b.storeEvent(word("a", path, "rank", "1", "hashes", "A")), b.storeEvent(guest), word("pool", path)
		b.publish(a, first)
		b.publish(a, b.removeEvent(word("a", path, "rank", "1", "hashes", "A", "from", "1")))
		b.publishAll(shelf, b.objectEvents(word("pool", path), "stored"))
		synctest.Wait()

		var changing, asking sync.WaitGroup
		stop := make(chan struct{})
		changing.Go(func() { // a block that a has anyway, once more and once less
			for range rounds {
				b.publish(a, b.storeEvent(word("a", "x", "rank", "1", "hashes", "A")))
				b.publish(a, b.removeEvent(word("a", "x", "rank", "1", "hashes", "A")))
			}
		})
		changing.Go(func() {
			for range rounds {
				b.publish(guest, all)
				b.publish(guest, clearEvent(guest))
			}
		})
		changing.Go(func() {
			for range rounds {
				b.publish(word("b", path), b.storeEvent(word("b", path)))
				b.publish(word("b", path), b.removeEvent(word("b", path)))
			}
		})
		changing.Go(func() {
			for range rounds {
				must.Report(t, b.conductor.Register(engineAt("visitor", 0), ingest.RegisterOptions{}))
				if _, err := b.conductor.Unregister(registration.Key{Instance: "visitor"}); err != nil {
					t.Error(err)
				}
			}
		})
		for range 3 {
			asking.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					for _, row := range b.conductor.Query(match.Query{Model: "m", BlockSize: 16, Tokens: promptOf(path, 16)}).Rows {
						if row.Longest > 3 {
							t.Errorf("%s has %d blocks of 3", row.Instance, row.Longest)
						}
						for _, r := range row.Ranks {
							if !(0 <= r.Device && r.Device <= r.Host && r.Host <= r.Disk && r.Disk <= 3) {
								t.Errorf("%s: %+v", row.Instance, r)
							}
						}
					}
				}
			})
		}
		changing.Wait()
		close(stop)
		asking.Wait()
		if _, err := b.conductor.Unregister(registration.Key{Instance: "guest"}); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		got := ""
		for _, row := range b.conductor.Query(match.Query{Model: "m", BlockSize: 16, Tokens: promptOf(path, 16)}).Rows {
			for _, r := range row.Ranks {
				got += fmt.Sprintf("%s rank %d: gpu %d cpu %d of %d; ", row.Instance, r.Rank, r.Device, r.Host, row.Longest)
			}
		}
		if want := "a rank 1: gpu 1 cpu 3 of 3; b rank 0: gpu 0 cpu 3 of 3; "; got != want {
			t.Errorf("in the end %s, want %s", got, want)
		}
		for _, err := range b.conductor.Check() {
			t.Error(err)
		}
	})
}
