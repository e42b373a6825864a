package conductor

import (
	"encoding/binary"
	"testing"

	"github.com/rs/zerolog"
	"github.com/zeebo/blake3"

	"kvconductor/conductor/lmcache"
	"kvconductor/events/stream"
	"kvconductor/events/stream/streamtest"
	"kvconductor/internal/must"
)

// pushBench is a Conductor with an engine that is never reached, and a source that LMCache calls.
type pushBench struct {
	t      *testing.T
	c      *Conductor
	seq    uint64
	chunks []lmcache.Entry
	tokens []uint32
}

func newPushBench(t *testing.T) *pushBench {
	c := New(Options{HashSeed: 1337, RecallBytes: 1 << 20, Log: zerolog.Nop(), Stream: stream.Config{Transport: new(streamtest.Network)}})
	t.Cleanup(c.Close)
	b := &pushBench{t: t, c: c}
	must.Succeed(t, c.Register(Registration{Endpoint: "tcp://h:1", Type: TypeVLLM, Model: "m", Instance: "e", BlockSize: 4}, RegisterOptions{}))
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
	must.Succeed(b.t, b.c.Register(Registration{Endpoint: EndpointPush, Type: TypeLMCache, Model: "m", Instance: instance, BlockSize: 4}, RegisterOptions{}))
}

// store reports chunks as one instance, or as shared storage.
func (b *pushBench) store(shared bool, chunks ...lmcache.Entry) {
	b.t.Helper()
	b.seq++
	batch := lmcache.Batch{Instance: "n", Incarnation: 1, Seq: b.seq, Type: lmcache.Store, Tier: "l1", Backend: "dram", Entries: chunks}
	if shared {
		batch.Tier, batch.Backend, batch.Shared = "l2", "fs", true
	}
	if p, err := b.c.For(Reader{}).PushLMCache(&batch); err != nil || p.Outcome != lmcache.Applied {
		b.t.Fatalf("batch %d is %s, %v", b.seq, p.Outcome, err)
	}
}

// finds compares how many blocks of the prompt the engine is said to have.
func (b *pushBench) finds(want int) {
	b.t.Helper()
	got := -1
	b.c.Answer(&Query{Tenant: DefaultTenant, Model: "m", BlockSize: 4, Tokens: b.tokens}, func(ans *Answer) {
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
	key := Key{Instance: "n", Tenant: DefaultTenant}
	b.is("n", stream.Connecting, "")
	b.store(false, b.chunks[:2]...)
	b.finds(4)
	b.is("n", stream.Synced, "")
	must.Succeed(t, b.c.Pause(key))
	b.is("n", stream.Paused, "")
	b.store(false, b.chunks[2])
	b.finds(4)
	must.Succeed(t, b.c.Unpause(key))
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
	b.c.sources[Key{Instance: "n", Tenant: DefaultTenant}].stream.Resync("test")
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
	_, err := b.c.Unregister(Key{Instance: "n", Tenant: DefaultTenant})
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
