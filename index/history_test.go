package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/conductor/index/hash"
)

// A history is random calls of all kinds, while retired owners stay in their pieces and blocks
// get entries on demand. It has no oracle: Check judges the index after each call.
type history struct {
	rng     *rand.Rand
	x       *Index
	scheme  hash.Scheme
	sources []Source
	owners  []Owner
	of      map[Owner]Source
	family  map[Source]uint64
	past    []storedRun
	depth   int // blocks of a prompt, at most
	tame    int // of 8 calls, those that mention blocks of past stores
	lies    int // one engine hash of this number is another one, 0 for none
	log     []string
}

// storedRun is blocks [from, len(prompt)) that an owner stored.
type storedRun struct {
	owner  Owner
	prompt []keyed
	from   int
}

// keyed is a block.
type keyed struct{ key, local uint64 }

func newHistory(rng *rand.Rand) *history {
	h := &history{rng: rng, scheme: hash.DefaultScheme(), of: map[Owner]Source{}, family: map[Source]uint64{}}
	h.depth, h.tame, h.lies = pick(rng, []int{3, 12, 80, 150}), pick(rng, []int{0, 4, 7, 8}), pick(rng, []int{0, 0, 0, 3, 30, 300})
	h.x = New(Options{
		Scheme: h.scheme, KeepClientHashes: rng.IntN(2) == 0, WideBase: rng.IntN(2) == 0, MaxOrphans: pick(rng, []int{0, 4, -1}),
		Ghosts: NewGhosts(pick(rng, []int64{0, 0, 3, 40, 1 << 20}) * ghostBytes), MaxBytes: pick(rng, []int{0, 0, 0, 30 << 10}),
		Contradicts: pick(rng, []func() bool{nil, func() bool { return true }}),
	})
	h.x.names.perEvent = portion{sweep: pick(rng, []int{0, 0, 1}), naming: pick(rng, []int{1, 1000, 1000, 1000})}
	for range 2 + rng.IntN(3) {
		h.newSource()
	}
	return h
}

func (h *history) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *history) newSource() {
	s := h.x.NewSource()
	h.sources, h.family[s] = append(h.sources, s), uint64(max(1, h.rng.IntN(6)-2))
	for range 1 + h.rng.IntN(3) {
		o := h.x.NewOwner(s)
		h.owners, h.of[o] = append(h.owners, o), s
	}
	h.say("source %d of family %d", s, h.family[s])
}

// longer returns a prompt that goes on behind another one.
func (h *history) longer(p []keyed, blocks int) []keyed {
	p = append([]keyed(nil), p...)
	for range blocks {
		local := 1000 + h.rng.Uint64N(2)*h.rng.Uint64N(2)*h.rng.Uint64N(2)
		if len(p) == 0 {
			local = 1 + h.rng.Uint64N(4)
			p = append(p, keyed{local, local})
		} else {
			p = append(p, keyed{h.x.tree.followKey(p[len(p)-1].key, 0, local), local})
		}
	}
	return p
}

// engine returns the engine hash of a family for a block.
func (h *history) engine(family uint64, b keyed) uint64 {
	if h.lies > 0 && h.rng.IntN(h.lies) == 0 {
		return h.rng.Uint64N(20)
	}
	return mix(b.key ^ family*0x9e3779b97f4a7c15)
}

func (h *history) engines(family uint64, blocks []keyed) (engine []uint64) {
	for _, b := range blocks {
		engine = append(engine, h.engine(family, b))
	}
	return engine
}

// step does one random thing.
func (h *history) step() {
	rng := h.rng
	run := storedRun{pick(rng, h.owners), h.longer(nil, 1+rng.IntN(h.depth)), 0}
	if rng.IntN(2) == 0 {
		run.owner = h.owners[max(0, len(h.owners)-1-rng.IntN(4))]
	}
	n, owner := rng.IntN(100), run.owner
	tame := len(h.past) > 0 && rng.IntN(8) < h.tame
	if tame {
		run = h.past[max(0, len(h.past)-1-rng.IntN(10))]
		if h.tame > 6 && rng.IntN(8) > 0 {
			n = pick(rng, []int{0, 0, 0, 0, 0, 60, 60, 60, 60, 82, 88}) // nothing that ends names on demand
		}
		if n >= 45 || rng.IntN(2) == 0 {
			owner = run.owner
		}
	}
	if rng.IntN(20) == 0 {
		h.say("keep ghosts")
		h.x.KeepGhosts()
	}
	switch {
	case n < 45:
		h.store(owner, run, tame)
	case n < 60:
		h.hashes(owner, run)
	case n < 82:
		h.remove(owner, run)
	case n < 88:
		h.say("clear %d", owner)
		h.x.ClearOwner(owner)
	case n < 90:
		h.say("drop source of %d", owner)
		h.x.DropSource(h.of[owner])
		h.newSource()
	case n < 94:
		b := pick(rng, run.prompt)
		h.say("hash of key %d for %d", b.key, owner)
		h.x.Store(&Store{Owner: owner, Rootless: true, Engine: []uint64{h.engine(h.family[h.of[owner]], b)}, Key: b.key, HasKey: true})
	case n < 98:
		h.ask(owner, run)
	case n < 99:
		h.say("compact")
		h.x.compactAll()
	}
	if h.x.names.naming == allNamed && !h.x.names.full.always && (h.tame > 6 || rng.IntN(4) == 0) {
		h.say("names on demand")
		h.x.names.naming = onDemand // as reconsiderNaming does
	}
}

func (h *history) store(owner Owner, run storedRun, tame bool) {
	rng, p, from := h.rng, run.prompt, run.from
	switch k := rng.IntN(3); {
	case !tame && k > 0:
		from = rng.IntN(len(p))
	case !tame:
	case k == 0:
		from, p = len(p), h.longer(p, 1+rng.IntN(h.depth))
	case k == 1:
		from += 1 + rng.IntN(len(p)-from)
		p = h.longer(p[:from], 1+rng.IntN(h.depth))
	case rng.IntN(2) == 0:
		p = p[:from+1+rng.IntN(len(p)-from)]
	}
	h.past = append(h.past, storedRun{owner, p, from})
	family := h.family[h.of[owner]]
	e := Store{Owner: owner, Copies: CopyPolicy(rng.IntN(2)), Engine: h.engines(family, p[from:])}
	for _, b := range p[from:] {
		e.Local = append(e.Local, b.local)
	}
	if from > 0 {
		if e.HasParent = rng.IntN(8) > 0; e.HasParent {
			e.Parent = h.engine(family, p[from-1])
		} else {
			e.Rootless = true
		}
	}
	if rng.IntN(6) == 0 && !(tame && h.tame > 6) {
		e.Key, e.HasKey, e.Complete = p[from].key, true, rng.IntN(3) == 0
	}
	if rng.IntN(10) == 0 {
		var clientHashes []uint64
		for _, l := range e.Local {
			clientHashes = append(clientHashes, l+rng.Uint64N(2))
		}
		e.ClientHashes = func(Identity) []uint64 { return clientHashes }
	}
	h.say("store %d: %d..%d of %v, parent %t, key %t, complete %t, client hashes %t", owner, from, len(p), p, e.HasParent, e.HasKey,
		e.Complete, e.ClientHashes != nil)
	h.x.Store(&e)
}

func (h *history) hashes(owner Owner, run storedRun) {
	p := run.prompt[run.from:]
	from := h.rng.IntN(len(p))
	p = p[from:min(len(p), from+1+h.rng.IntN(6))]
	e := Store{Owner: owner, Copies: CopyPolicy(h.rng.IntN(2)), Engine: h.engines(h.family[h.of[owner]], p)}
	h.say("hashes %d: %v", owner, p)
	h.x.Store(&e)
}

func (h *history) remove(owner Owner, run storedRun) {
	rng, p := h.rng, run.prompt[run.from:]
	from := rng.IntN(len(p))
	p = p[from:min(len(p), from+1+rng.IntN(20))]
	if rng.IntN(2) == 0 {
		p = run.prompt[max(run.from, len(run.prompt)-1-rng.IntN(8)):]
	}
	var engine []uint64
	for i := range p {
		k := i
		if rng.IntN(2) == 0 {
			k = len(p) - 1 - i
		}
		engine = append(engine, h.engine(h.family[h.of[owner]], p[k]))
	}
	var remaining []int
	if rng.IntN(8) == 0 {
		for range engine {
			remaining = append(remaining, rng.IntN(3)-1)
		}
	}
	h.say("remove %d: %v, remaining %d", owner, p, remaining)
	h.x.Remove(owner, engine, remaining, CopyPolicy(rng.IntN(2)))
}

func (h *history) ask(owner Owner, run storedRun) {
	s, b := h.of[owner], pick(h.rng, run.prompt)
	h.say("ask source of %d for %v and %v", owner, run.prompt, b)
	h.x.askAll(s, h.engines(h.family[s], run.prompt))
	engine := h.engine(h.family[s], b)
	h.x.knows(s, engine)
	h.x.Inspect().IsPlaced(s, engine)
	h.x.means(engine)
	h.x.has(owner, engine)
}

// broken returns the findings of Check, less those about sources that do not list a piece: its
// names may have become theirs when two families met.
func (h *history) broken() string {
	var err error
	if err = h.x.Check(); err == nil {
		return ""
	}
	return strings.Join(slices.DeleteFunc(strings.Split(err.Error(), "\n"), func(line string) bool {
		return strings.Contains(line, "does not know that")
	}), "\n")
}

// TestHistoriesUnderSweep requires that the index is whole after each call.
func TestHistoriesUnderSweep(t *testing.T) {
	seed, histories := uint64(time.Now().UnixNano()), 400
	t.Logf("seed %d", seed)
	if testing.Short() || underRace {
		histories = 50
	}
	for i := range histories {
		h := newHistory(rand.New(rand.NewPCG(seed, uint64(i))))
		for range 80 {
			h.step()
			if broken := h.broken(); broken != "" {
				t.Fatalf("history %d of seed %d: %s\n%s", i, seed, broken, strings.Join(h.log, "\n"))
			}
		}
	}
}
