package soak

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/index/hash"
)

// node is a block with all blocks before it.
type node struct {
	parent   int32 // -1 for the first block of a prompt
	children []int32
	key      uint64 // canonical
	tokens   [blockSize]uint32
}

// anchor is the node that pools alone hold. It is in no prompt, and no engine knows it.
const anchor int32 = 0

// prompt is a prompt that readers ask for.
type prompt struct {
	path   []int32 // nodes
	tokens []uint32
	keys   []uint64
}

// state is how a holder has a block.
type state uint8

const (
	absent state = iota
	orphan       // stored with tokens; its parent may be unknown
	named        // stored without tokens; its hash may be unknown
	sure         // the Conductor knows which block it is
)

func (s state) String() string { return [...]string{"absent", "orphan", "named", "sure"}[s] }

// change is one entry of a holder's history.
type change struct {
	event    int32
	state    state
	previous int32 // entry of the same node, -1 for none
}

// holder is one medium of an engine, or of a backend of a pool. Writers change it before
// a round, and readers read it during the round.
type holder struct {
	backend string
	tier    int // device, host, disk
	now     []state
	count   []uint8 // copies; of a pool: bits of the shards
	begin   []state // before the first event
	last    []int32 // by node, in log, -1 for none
	log     []change
}

// life is one registration of a source within a round.
type life struct {
	first uint64 // sequence number of its first batch in this round
	ends  []int32
}

// source is a publisher with its history of a round and the truth after each event.
type source struct {
	*Soak
	reg     registration.Registration
	family  uint64 // of its block hashes; 0 is that of canonical keys
	teacher *source
	holders []*holder
	taught  []int32 // of a teacher: the event that taught a node in this round

	event  int32 // the last one imagined
	next   uint64
	steps  []step
	lives  []life
	number int64 // of the present life
	object int   // last event id of a pool
	played [kinds]int64

	begun, floor atomic.Int64 // the last event published; one that is applied for certain
	life         atomic.Int64 // twice the number of lives; odd between two
	ended        int64        // lives before this round
}

func (s *source) pool() bool { return s.reg.Type == registration.TypeMooncake }

func (s *source) endpoint() string { return fmt.Sprintf("ipc://%s/%d", s.reg.Key(), s.number) }

// register begins a life of the source.
func (s *source) register() error {
	r := s.reg
	r.Endpoint = s.endpoint()
	return s.conductor.Register(r, ingest.RegisterOptions{})
}

// prepare makes prompts with common beginnings, and the fleet.
func (k *Soak) prepare(rng *rand.Rand) error {
	k.nodes = []node{{parent: -1, key: rng.Uint64()}}
	for i := range k.Prompts {
		var p prompt
		if other := rng.IntN(i + 1); other < i && rng.IntN(3) > 0 {
			p.path = slices.Clone(k.prompts[other].path[:rng.IntN(len(k.prompts[other].path))])
		}
		for n := 1 + rng.IntN(maxDepth); len(p.path) < n; {
			child := node{parent: -1}
			for i := range child.tokens {
				child.tokens[i] = rng.Uint32() >> 14
			}
			if len(p.path) > 0 {
				child.parent = p.path[len(p.path)-1]
				k.nodes[child.parent].children = append(k.nodes[child.parent].children, int32(len(k.nodes)))
			}
			p.path = append(p.path, int32(len(k.nodes)))
			k.nodes = append(k.nodes, child)
		}
		for _, n := range p.path {
			p.tokens = append(p.tokens, k.nodes[n].tokens[:]...)
		}
		p.keys = hash.DefaultScheme().AppendChain(nil, hash.DefaultScheme().AppendLocals(nil, p.tokens, blockSize))
		for i, n := range p.path {
			k.nodes[n].key = p.keys[i]
		}
		k.prompts = append(k.prompts, p)
	}
	teachers := []*source{nil, k.engine("teacher-1", 0, 1), k.engine("teacher-2", 0, 2)}
	for _, t := range teachers[1:] {
		t.taught = slices.Repeat([]int32{math.MaxInt32}, len(k.nodes))
	}
	k.engine("both", 0, 1)
	k.engine("both", 1, 2)
	k.engine("counts", 0, 1)
	k.engine("counts", 1, 1)
	k.engine("keys", 0, 0)
	k.engine("other", 0, 2)
	k.engine("sets", 0, 1).reg.Copies = registration.CopiesSet
	k.pool("pool-1", 1, nil)
	k.pool("pool-2", 2, []string{"both", "other"})
	slices.SortFunc(k.sources, func(a, b *source) int {
		return cmp.Or(cmp.Compare(a.reg.Instance, b.reg.Instance), cmp.Compare(a.reg.Rank, b.reg.Rank))
	})
	for _, s := range k.sources {
		s.teacher = teachers[s.family]
		if err := s.register(); err != nil {
			return err
		}
	}
	return nil
}

// engine adds an engine. It is never full and has many copies, which the doctor would take for full reports.
func (k *Soak) engine(instance string, rank int, family uint64) *source {
	return k.join(family, registration.Registration{Type: registration.TypeVLLM, Instance: instance, Rank: rank,
		Reports: registration.ReportsIncremental, Clear: registration.ClearAll}, device, host, disk)
}

func (k *Soak) pool(instance string, family uint64, serves []string) {
	s := k.join(family, registration.Registration{Type: registration.TypeMooncake, Instance: instance, Serves: serves}, host, disk, host,
		disk)
	for i, h := range s.holders {
		h.backend = fmt.Sprint("backend-", i/2)
	}
	s.next = firstOfPool
}

// join adds a source with a holder for each of the tiers.
func (k *Soak) join(family uint64, reg registration.Registration, tiers ...int) *source {
	reg.Tenant, reg.Model, reg.BlockSize = scope.DefaultTenant, model, blockSize
	s := &source{Soak: k, reg: reg, family: family}
	for _, tier := range tiers {
		n := len(k.nodes)
		s.holders = append(s.holders, &holder{
			tier: tier, now: make([]state, n), count: make([]uint8, n), begin: make([]state, n), last: slices.Repeat([]int32{-1}, n),
		})
	}
	k.sources = append(k.sources, s)
	return s
}

// name returns the source's hash of a block.
func (s *source) name(n int32) uint64 {
	return s.nodes[n].key ^ s.family*0x9e3779b97f4a7c15
}

// set notes the state of a block after the present event.
func (s *source) set(h *holder, n int32, to state) {
	if h.now[n] == to {
		return
	}
	if h.now[n] = to; to == absent {
		h.count[n] = 0
	}
	h.log = append(h.log, change{s.event, to, h.last[n]})
	h.last[n] = int32(len(h.log) - 1)
}

// has reports whether a holder of the source has the block for sure.
func (s *source) has(n int32) bool {
	return slices.ContainsFunc(s.holders, func(h *holder) bool { return h.now[n] == sure })
}

// settleBlock notes that the Conductor knows the source's hash of a block. Orphans behind
// the block are known then, too.
func (s *source) settleBlock(n int32) {
	for _, h := range s.holders {
		if h.now[n] != absent {
			s.set(h, n, sure)
		}
	}
	for _, child := range s.nodes[n].children {
		if slices.ContainsFunc(s.holders, func(h *holder) bool { return h.now[child] == orphan }) {
			s.settleBlock(child)
		}
	}
}

// rest adds up the round's events. It returns how many blocks the source holds.
func (s *source) rest(events *[kinds]int64) (held int) {
	for kind := range events {
		events[kind] += s.played[kind]
	}
	for _, h := range s.holders {
		for _, st := range h.now {
			if st != absent {
				held++
			}
		}
	}
	return held
}

// restart begins the history of a round, where nothing waits any more.
func (s *source) restart() {
	for _, h := range s.holders {
		for n, st := range h.now {
			if st == named && n != int(anchor) {
				h.now[n] = sure // a teacher has taught all
			}
			h.last[n] = -1
		}
		copy(h.begin, h.now)
		h.log = h.log[:0]
	}
	s.event, s.steps, s.played = 0, s.steps[:0], [kinds]int64{}
	s.begun.Store(0)
	s.floor.Store(0)
	s.ended = s.number
	s.lives = append(s.lives[:0], life{first: s.next})
}

// at returns the state of a block after an event.
func (h *holder) at(n, event int32) state {
	for i := h.last[n]; i >= 0; i = h.log[i].previous {
		if h.log[i].event <= event {
			return h.log[i].state
		}
	}
	return h.begin[n]
}

// window is a reader's knowledge of a source: the first event holds already, events after
// the last one have not begun.
type window struct {
	first, last int32
	taught      int32 // window.first of the teacher
	away        bool  // the source was unregistered at some moment
}

// visible reports whether queries find a block.
func (s *source) visible(st state, n int32, w *window) bool {
	return st == sure || st == named && (s.family == 0 || s.teacher.taught[n] <= w.taught)
}

// bounds returns whether queries find a block of the holder during the whole window, and
// at some moment of it.
func (s *source) bounds(h *holder, n int32, w *window) (least, most bool) {
	least = true
	see := func(st state) {
		least = least && s.visible(st, n, w)
		most = most || st != absent
	}
	for i := h.last[n]; i >= 0; i = h.log[i].previous {
		if h.log[i].event <= w.last {
			see(h.log[i].state)
		}
		if h.log[i].event <= w.first {
			return least, most
		}
	}
	see(h.begin[n])
	return least, most
}

// somewhere reports whether at each moment of the window some holder has the block.
func (s *source) somewhere(n int32, w *window) bool {
	for event := w.first; event <= w.last; event++ {
		if !slices.ContainsFunc(s.holders, func(h *holder) bool { return s.visible(h.at(n, event), n, w) }) {
			return false
		}
	}
	return true
}
