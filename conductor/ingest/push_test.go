package ingest

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/zeebo/blake3"

	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// pushBench is a Conductor with an engine that is never reached, and a source that LMCache calls.
type pushBench struct {
	t      *testing.T
	c      *server
	seq    uint64
	chunks []lmcache.Entry
	tokens []uint32
}

func newPushBench(t *testing.T) *pushBench {
	c := newServer(serverOptions{HashSeed: 1337, GhostBytes: 1 << 20, Log: zerolog.Nop(),
		Stream: stream.Config{Transport: new(streamtest.Network)}})
	t.Cleanup(c.Close)
	b := &pushBench{t: t, c: c}
	must.Succeed(t, c.Register(registration.Registration{Endpoint: "tcp://h:1", Type: registration.TypeVLLM, Model: "m", Instance: "e",
		BlockSize: 4}, RegisterOptions{}))
	b.register("n")
	prefix := "none"
	for i := range 4 {
		e := lmcache.Entry{Model: "m", Offset: 8 * i, World: 1}
		buf := []byte(prefix)
		for j := range 8 {
			e.Tokens = append(e.Tokens, uint32(100*i+j))
			buf = binary.BigEndian.AppendUint32(buf, e.Tokens[j])
		}
		sum := blake3.Sum256(buf)
		prefix = string(sum[:])
		e.Hash = prefix
		b.tokens, b.chunks = append(b.tokens, e.Tokens...), append(b.chunks, e)
	}
	return b
}

func (b *pushBench) register(instance string) {
	b.t.Helper()
	must.Succeed(b.t, b.c.Register(registration.Registration{Endpoint: registration.EndpointPush, Type: registration.TypeLMCache,
		Model: "m", Instance: instance, BlockSize: 4}, RegisterOptions{}))
}

// store reports chunks as one instance, or as shared storage.
func (b *pushBench) store(shared bool, chunks ...lmcache.Entry) {
	b.t.Helper()
	b.seq++
	batch := lmcache.Batch{Instance: "n", Incarnation: 1, Seq: b.seq, Type: lmcache.Store, Tier: "l1", Backend: "dram", Entries: chunks}
	if shared {
		batch.Tier, batch.Backend, batch.Shared = "l2", "fs", true
	}
	if p, err := b.c.sources.Pushes().Push(b.t.Context(), nil, &batch); err != nil || p.Outcome != lmcache.Applied {
		b.t.Fatalf("batch %d is %s, %v", b.seq, p.Outcome, err)
	}
}

// finds compares how many blocks of the prompt the engine is said to have.
func (b *pushBench) finds(want int) {
	b.t.Helper()
	got := -1
	b.c.Answer(&match.Query{Tenant: scope.DefaultTenant, Model: "m", BlockSize: 4, Tokens: b.tokens}, func(ans *match.Answer) {
		for i := range ans.Rows {
			got = ans.Rows[i].Longest
		}
	})
	if got != want {
		b.t.Errorf("the engine has %d blocks, want %d", got, want)
	}
}

// is compares state and reason of a source.
func (b *pushBench) is(instance string, state stream.State, reason string) {
	b.t.Helper()
	for _, s := range b.c.Services() {
		if s.Instance == instance && (s.State != state || s.Reason != reason) {
			b.t.Errorf("%s is %s %q, want %s %q", instance, s.State, s.Reason, state, reason)
		}
	}
}

// What passes by during a pause is lost, so the source starts over (LMCACHE-6).
func TestPausedPush(t *testing.T) {
	b := newPushBench(t)
	key := registration.Key{Instance: "n", Tenant: scope.DefaultTenant}
	b.is("n", stream.Connecting, "")
	b.store(false, b.chunks[:2]...)
	b.finds(4)
	b.is("n", stream.Synced, "")
	must.Succeed(t, b.c.Sources().SetPaused(key, true))
	b.is("n", stream.Paused, "")
	b.store(false, b.chunks[2])
	b.finds(4)
	must.Succeed(t, b.c.Sources().SetPaused(key, false))
	b.is("n", stream.Partial, stream.ReasonGap)
	b.store(false, b.chunks[0])
	b.finds(2)
	b.is("n", stream.Partial, stream.ReasonUnknown)
	for _, err := range b.c.Check() {
		t.Error(err)
	}
}

// A resync drops everything. Reports go on behind it (LMCACHE-6).
func TestResyncedPush(t *testing.T) {
	b := newPushBench(t)
	b.store(false, b.chunks...)
	b.finds(8)
	b.c.sources.sources[registration.Key{Instance: "n", Tenant: scope.DefaultTenant}].feed.Resync("test")
	b.store(false, b.chunks[:3]...)
	b.finds(6)
	b.is("n", stream.Partial, stream.ReasonUnknown)
	if epoch := b.c.Services()[1].Epoch; epoch < 2 {
		t.Errorf("epoch %d, want a later one", epoch)
	}
}

// A chunk whose parent no emitter holds counts once one reports it (LMCACHE-6), also after the
// source that held the parent was unregistered.
func TestParentAtAnotherEmitter(t *testing.T) {
	b := newPushBench(t)
	b.register("pool:fs")
	b.store(false, b.chunks...) // their places are known from here on
	_, err := b.c.Unregister(registration.Key{Instance: "n", Tenant: scope.DefaultTenant})
	must.Succeed(t, err)
	b.finds(0)
	b.register("n")
	b.store(true, b.chunks[2])
	b.store(true, b.chunks[1])
	b.finds(0)
	b.store(false, b.chunks[0])
	b.finds(6)
	b.is("pool:fs", stream.Partial, stream.ReasonUnknown)
	for _, err := range b.c.Check() {
		t.Error(err)
	}
}

// until waits until something is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick, late := time.NewTicker(time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal(what)
		}
	}
}

// hold keeps a source from applying anything until release is called, or the test fails.
func hold(t *testing.T, s *Source) (release func()) {
	s.turn.Lock()
	release = sync.OnceFunc(s.turn.Unlock)
	t.Cleanup(release) // before the Conductor is closed, which waits for the source
	return release
}

// A source that is slow holds up no sender of another, and its own as long as they wait. What waits
// is applied in order once it goes on (LMCACHE-3).
func TestSlowPush(t *testing.T) {
	b := newPushBench(t)
	b.register("o")
	slow := b.c.sources.sources[registration.Key{Instance: "n", Tenant: scope.DefaultTenant}]
	feed := slow.feed.(*pushed)
	push := func(ctx context.Context, instance string, seq uint64, chunks ...lmcache.Entry) (lmcache.Outcome, error) {
		p, err := b.c.sources.Pushes().Push(ctx, nil, &lmcache.Batch{Instance: instance, Incarnation: 1, Seq: seq, Type: lmcache.Store,
			Tier: "l1", Backend: "dram", Entries: chunks})
		return p.Outcome, err
	}
	var taken atomic.Int32 // batches
	feed.mu.Lock()
	feed.decode = func(payload []byte) (events.Batch, error) {
		taken.Add(1)
		return stream.DecodeWithDefaults(payload)
	}
	feed.mu.Unlock()
	b.store(false, b.chunks[0])
	release := hold(t, slow)
	ctx, stop := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	for i := range 2 {
		go func() {
			_, err := push(ctx, "n", uint64(i+2), b.chunks[2*i:2*i+2]...)
			errs <- err
		}()
		// The source has taken one of them, or none if it was about to report that it is synced.
		until(t, "a batch does not reach the source", func() bool { return int(taken.Load())-1+feed.Status().Queued == i+1 })
	}
	if outcome, err := push(t.Context(), "o", 1, b.chunks[0]); err != nil || outcome != lmcache.Applied {
		t.Errorf("next to a slow source: %d, %v", outcome, err)
	}
	b.finds(2)
	stop()
	for range 2 {
		if err := <-errs; !errors.Is(err, ErrBehind) || !errors.Is(err, context.Canceled) {
			t.Errorf("a sender that does not wait gets %v", err)
		}
	}
	release()
	until(t, "what waits is not applied", func() bool { return feed.Status().LastSeq == 2 && feed.Status().Queued == 0 })
	b.finds(8)
	if outcome, err := push(t.Context(), "n", 3, b.chunks...); err != nil || outcome != lmcache.Duplicate {
		t.Errorf("the batch once more: %d, %v", outcome, err)
	}
	if n := b.c.sources.pushes.batches[lmcache.Applied].Load(); n != 4 {
		t.Errorf("%d batches count as applied, want 4", n)
	}
	for _, err := range b.c.Check() {
		t.Error(err)
	}
}

// A source that ends lets its senders go.
func TestUnregisterFreesSenders(t *testing.T) {
	b := newPushBench(t)
	key := registration.Key{Instance: "n", Tenant: scope.DefaultTenant}
	slow := b.c.sources.sources[key]
	release := hold(t, slow)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.store(false, b.chunks...)
	}()
	until(t, "the batch does not reach the source", func() bool { return slow.feed.Status().Connected })
	go b.c.Unregister(key)
	until(t, "the source is there", func() bool { return len(b.c.Services()) == 1 })
	release()
	<-done
}

// What the publisher reported is a part of the memory, and goes with its sources.
func TestPushedMemory(t *testing.T) {
	b := newPushBench(t)
	part := func() int64 {
		t.Helper()
		return b.c.sources.Memory().Pushed
	}
	b.store(false, b.chunks[0])
	one := part()
	b.store(false, b.chunks...)
	four := part()
	_, err := b.c.Unregister(registration.Key{Instance: "n", Tenant: scope.DefaultTenant})
	must.Succeed(t, err)
	if none := part(); none <= 0 || one < none+300 || four < one+3*300 {
		t.Errorf("%d bytes for one chunk, %d for four, %d without the source", one, four, none)
	}
}
