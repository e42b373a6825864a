package wire

import (
	"math/rand/v2"
	"testing"

	"example.com/conductor/events"
	"example.com/conductor/internal/must"
)

// Batches of every shape, one after the other in the same memory, are what each is
// in fresh memory.
func TestMemoryIsUsedAgain(t *testing.T) {
	var payloads [][]byte
	for _, x := range fixtures(t) {
		payloads = append(payloads, x.payload, x.payload[:len(x.payload)/2])
	}
	for _, n := range []int{1, 7, 300, 1500} {
		payloads = append(payloads, pack(t, arr{1.5, arr{bigStore(n)}, 0}), pack(t, storm(n)))
	}
	rng := rand.New(rand.NewPCG(1, 1))
	m := new(memory)
	for range 6 * len(payloads) {
		p := payloads[rng.IntN(len(payloads))]
		want, wantErr := new(memory).decodeBatch(p, DefaultLimits)
		got, err := m.decodeBatch(p, DefaultLimits)
		if (err == nil) != (wantErr == nil) || render(got) != render(want) {
			t.Fatalf("in used memory:\n%s (%v)\nin fresh memory:\n%s (%v)", render(got), err, render(want), wantErr)
		}
		m.resetForReuse()
		for i := range m.events {
			if e := &m.events[i]; e.Kind != 0 || e.Hashes != nil || e.Tokens != nil || e.LoraName != nil {
				t.Fatalf("event %d of %d was left behind", i, len(m.events))
			}
		}
		if len(m.events) > keptEvents || len(m.hashes) > keptHashes || len(m.tokens) > keptTokens {
			t.Fatalf("keeps %d events, %d hashes, %d tokens", len(m.events), len(m.hashes), len(m.tokens))
		}
	}
}

// A batch that was not released has no second user; one that was is empty, however
// often it is released.
func TestReleaseEmptiesBatch(t *testing.T) {
	p, q := pack(t, storm(6)), pack(t, arr{2.5, arr{bigStore(3)}, 1})
	decode := func(p []byte) events.Batch {
		b, err := Decode(p, DefaultLimits)
		must.Succeed(t, err)
		return b
	}
	kept := decode(p)
	want := render(kept)
	for range 100 {
		b, c := decode(q), decode(p)
		if render(b) == render(c) || render(c) != want {
			t.Fatal("two batches share memory")
		}
		ReleaseBatch(&b)
		ReleaseBatch(&b)
		if b.Events != nil || b.Memory != nil {
			t.Fatal("a released batch has events")
		}
		d := decode(p)
		if render(c) != want || render(d) != want {
			t.Fatal("memory of a batch that was not released is used again")
		}
		ReleaseBatch(&c)
		ReleaseBatch(&d)
	}
	if render(kept) != want {
		t.Error("a batch that was not released has changed")
	}
	ReleaseBatch(&events.Batch{})
}
