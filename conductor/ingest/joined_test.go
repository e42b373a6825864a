package ingest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/wire"
	"example.com/conductor/internal/must"
)

// pager makes the events of an engine that stores and removes page by page, in batches. Some are wrong: removals of
// blocks that the engine does not have, unknown parents, tokens beyond the vocabulary, groups and media that
// count for nothing.
type pager struct {
	rng    *rand.Rand
	chains [][]uint64 // hashes of prompts, from the root
	pages  map[uint64][]uint32
}

const pageSize, vocabulary = 4, 1000

func (p *pager) store(chain []uint64, from, n int, medium string) []any {
	var list []any
	for n > 0 {
		k := 1
		if p.rng.IntN(8) == 0 {
			k = 1 + p.rng.IntN(n)
		}
		var parent any
		if from > 0 {
			parent = chain[from-1]
		}
		var tokens []uint32
		for _, h := range chain[from : from+k] {
			if p.pages[h] == nil {
				for range pageSize {
					p.pages[h] = append(p.pages[h], p.rng.Uint32N(vocabulary))
				}
			}
			tokens = append(tokens, p.pages[h]...)
		}
		if p.rng.IntN(60) == 0 {
			tokens = slices.Clone(tokens)
			tokens[0] = vocabulary + 1
		}
		list = append(list, []any{"BlockStored", chain[from : from+k], parent, tokens, pageSize, nil, medium})
		from, n = from+k, n-k
	}
	return list
}

func (p *pager) batch() (list []any) {
	medium := []string{"GPU", "GPU", "GPU", "CPU"}
	for range 1 + p.rng.IntN(6) {
		if len(p.chains) < 40 {
			chain := make([]uint64, 2+p.rng.IntN(60))
			for i := range chain {
				chain[i] = p.rng.Uint64()
			}
			if len(p.chains) > 0 && p.rng.IntN(2) == 0 {
				copy(chain, p.chains[p.rng.IntN(len(p.chains))][:1])
			}
			p.chains = append(p.chains, chain)
		}
		chain, m := p.chains[p.rng.IntN(len(p.chains))], medium[p.rng.IntN(len(medium))]
		from := p.rng.IntN(len(chain))
		if p.rng.IntN(3) == 0 {
			from = 0
		}
		switch n := 1 + p.rng.IntN(len(chain)-from); p.rng.IntN(6) {
		case 0, 1:
			list = append(list, p.store(chain, from, n, m)...)
		case 2:
			for i := from + n - 1; i >= from; i-- {
				list = append(list, []any{"BlockRemoved", []uint64{chain[i]}, m})
			}
		case 3:
			for _, h := range chain[from : from+n] {
				list = append(list, []any{"BlockStored", []uint64{h}, nil, []uint32{}, 0, nil, m})
			}
		case 4:
			for i := range n {
				list = append(list, []any{"BlockRemoved", []uint64{chain[from+i]}, m, p.rng.IntN(20) / 19})
			}
		default:
			for range n {
				list = append(list, []any{"BlockRemoved", []uint64{p.rng.Uint64()}, m})
			}
		}
	}
	return list
}

// follower is a Conductor with one source, whose batches the test applies.
type follower struct {
	c   *server
	s   *Source
	seq uint64
}

func follow(t *testing.T, reg registration.Registration) *follower {
	l := &loop{closed: make(chan struct{})}
	c := newServer(serverOptions{MaxTokenID: vocabulary, GhostBytes: 1 << 20, RemovalsBytes: 1 << 20, Log: zerolog.Nop(),
		Now: func() time.Time {
			return time.Unix(1e9, 0)
		}})
	c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed { return l })
	must.Succeed(t, c.Register(reg, RegisterOptions{}))
	t.Cleanup(func() { close(l.closed); c.Close() })
	return &follower{c: c, s: c.sources.All()[0]}
}

func (f *follower) apply(b events.Batch) {
	step := stream.Step{Kind: stream.ApplyBatch, Batch: b, Seq: f.seq, Epoch: 1}
	f.seq++
	f.s.guard(func() { f.s.applyStep(&step) })
}

// state is all that a source shows, and the digest of what it holds. The keys of salts differ between servers.
func (f *follower) state() string {
	held := f.s.holdings.digest.Load()
	if f.s.Registration.Salt != "" {
		held.Sum = 0
	}
	return fmt.Sprintf("%+v\n%+v\n%+v\n%+v", f.c.Services(), f.c.Sources().EventCounts(), held, f.s.Member.Lives.Lives(f.c.now()))
}

// TestJoinedEvents holds that a source does the same with joined events as with each of them alone: what it holds,
// counts, finds out about its engine, and remembers of ages and losses.
func TestJoinedEvents(t *testing.T) {
	joined := 0
	for _, reg := range []registration.Registration{
		{Type: registration.TypeSGLang},
		{Type: registration.TypeVLLM, Lora: "adapter", Salt: "salt"}, // a hash may have two names
		{Type: registration.TypeVLLM, Reports: "incremental"},
		{Type: registration.TypeVLLM, BlockSize: pageSize / 2}, // each block has two parts
	} {
		reg.Endpoint, reg.Model, reg.Instance, reg.BlockSize = "ipc:///x", "m", "i", cmp.Or(reg.BlockSize, pageSize)
		for seed := range uint64(20) {
			p := &pager{rng: rand.New(rand.NewPCG(seed, 1)), pages: make(map[uint64][]uint32)}
			together, apart := follow(t, reg), follow(t, reg)
			for i := range 60 {
				payload, err := msgpack.Marshal([]any{1.5, p.batch(), 0})
				must.Succeed(t, err)
				b, err := wire.Decode(payload, wire.DefaultLimits)
				must.Succeed(t, err)
				each, err := wire.Decode(payload, wire.DefaultLimits)
				must.Succeed(t, err)
				joined += b.Count() - len(b.Events)
				var list []events.Event
				for j := range each.Events {
					for e := range each.Events[j].Split() {
						list = append(list, *e)
					}
				}
				each.Events = list
				together.apply(b)
				apart.apply(each)
				if a, b := together.state(), apart.state(); a != b {
					t.Fatalf("%s, seed %d, batch %d: joined\n%s\neach alone\n%s", reg.Type, seed, i, a, b)
				}
			}
			if a, b := together.s.doctor.Findings.List(), apart.s.doctor.Findings.List(); !reflect.DeepEqual(a, b) {
				t.Errorf("findings %+v, of each alone %+v", a, b)
			}
			for _, ns := range together.s.holdings.namespaces {
				must.Succeed(t, ns.Deployment.Index.Check())
			}
		}
	}
	if joined < 10_000 {
		t.Errorf("only %d events were joined", joined)
	}
}

// TestJoinedStoresAreNoReports holds that stores of single blocks by their hashes alone are not taken for an engine
// that reports what it reuses, however many the decoder joins.
func TestJoinedStoresAreNoReports(t *testing.T) {
	const blocks = 1000
	f := follow(t, registration.Registration{Type: registration.TypeVLLM, Endpoint: "ipc:///x", Model: "m", Instance: "i",
		BlockSize: pageSize})
	send := func(event func(hash uint64) []any) {
		var list []any
		for i := range uint64(blocks) {
			list = append(list, event((i+1)<<40))
		}
		payload, err := msgpack.Marshal([]any{1.5, list, 0})
		must.Succeed(t, err)
		b, err := wire.Decode(payload, wire.DefaultLimits)
		must.Succeed(t, err)
		f.apply(b)
	}
	tokens := func(h uint64) []any {
		return []any{"BlockStored", []uint64{h}, nil, []uint32{1, 2, 3, uint32(h >> 40)}, pageSize, nil, "GPU"}
	}
	send(tokens)
	send(func(h uint64) []any { return []any{"BlockRemoved", []uint64{h}, "GPU"} })
	send(tokens)
	for range 3 {
		send(func(h uint64) []any { return []any{"BlockStored", []uint64{h}, nil, []uint32{}, pageSize, nil, "GPU"} })
	}
	if all := f.s.doctor.Findings.List(); len(all) != 0 || f.s.doctor.Full() {
		t.Errorf("findings %+v, full reports %t", all, f.s.doctor.Full())
	}
}
