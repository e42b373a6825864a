package index

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/index/hash"
)

// Numbers of identities are used again, constants never: a question with an old constant finds nothing
// of the identity that has the number now, by keys, by names, next to others and in losses.
func TestNumbersAreUsedAgain(t *testing.T) {
	for _, ghosts := range []*Ghosts{nil, NewGhosts(1 << 20)} {
		l := newIdentityLabOf(t, Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true, Ghosts: ghosts})
		losses := NewLosses(1 << 12)
		l.x.RecordLosses(l.gpu, losses, 1)
		local := make([]uint64, 70)
		var engine []uint64
		for i := range local {
			local[i], engine = uint64(1000+i), append(engine, uint64(5000+i))
		}
		p := &prompt{local, hash.DefaultScheme().AppendChain(nil, local)}
		store := func(id Identity) {
			l.x.Store(&Store{Owner: l.gpu, Identity: id, Engine: engine, Local: local, Copies: CopySet})
		}
		var old []uint64
		now, id := l.c[2], l.b
		for life := range uint64(5) {
			store(id)
			l.wantOf(now, local, "[0]x70 ")
			for _, constant := range old {
				l.wantOf(constant, local, "")
				var m Match
				l.x.matchNames(constant, engine, &m)
				if m.Blocks != 0 {
					t.Errorf("%d blocks by names of an old constant", m.Blocks)
				}
				l.x.Match(Lookup{Chain: p}, []Lookup{{Constant: constant, Chain: p}}, &m)
				if m.Blocks != 0 {
					t.Errorf("%d blocks across an old constant", m.Blocks)
				}
				if names := l.x.Inspect().NamesAt(constant, p, 3); len(names) != 0 {
					t.Errorf("names %d of an old constant", names)
				}
				if _, once := l.x.beginsUnder([]uint64{constant}, local); once {
					t.Error("a prompt begins under an old constant")
				}
			}
			losses.SetMark(life)
			l.x.Remove(l.gpu, engine[60:], nil, CopySet)
			for i, constant := range append(slices.Clone(old), now) {
				if mark, found := losses.Find(constant, p, 60, 1); !found || mark != uint64(i) {
					t.Errorf("life %d: the block of life %d was lost at %d, %v", life, i, mark, found)
				}
			}
			l.x.ClearOwner(l.gpu)
			l.x.compactAll()
			if ghosts != nil && life == 0 {
				l.x.KeepGhosts()
			}
			if ghosts != nil && life > 0 {
				if l.x.DropIdentity(id) {
					t.Fatal("an identity with ghosts was dropped")
				}
				other := l.x.NewIdentity(mix(life))
				old, now, id = append(old, now), mix(life), other
				continue
			}
			if !l.x.DropIdentity(id) {
				t.Fatal("not dropped")
			}
			next := mix(life)
			if l.x.NewIdentity(next) != id {
				t.Fatal("the number is not used again")
			}
			old, now = append(old, now), next
		}
	}
}

// TestNumbersAreUsedAgainUnderRace holds that a question with the constant of a dropped identity finds
// nothing, whatever identity has the number by then, and one with the constant of another identity
// finds all of it. All have the same tokens.
func TestNumbersAreUsedAgainUnderRace(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	x := New(Options{Scheme: hash.DefaultScheme(), KeepClientHashes: true})
	x.names.perEvent.sweep = 1
	rest, busy := x.NewOwner(x.NewSource()), x.NewOwner(x.NewSource())
	const stays = 0x5555_0000_0000_0001
	local := make([]uint64, 150)
	for i := range local {
		local[i] = mix(uint64(i + 1))
	}
	p := prompt{local, hash.DefaultScheme().AppendChain(nil, local)}
	names := func(constant uint64) (all []uint64) {
		for _, seq := range p.seq {
			all = append(all, nameOf(1, seq^constant))
		}
		return all
	}
	x.Store(&Store{Owner: rest, Identity: x.NewIdentity(stays), Engine: names(stays), Local: local})
	var dropped [1 << 12]atomic.Uint64 // constants
	var n, reused atomic.Int64
	var reading sync.WaitGroup
	var stop atomic.Bool
	for k := range uint64(3) {
		reading.Go(func() {
			rng := rand.New(rand.NewPCG(seed, k))
			var m Match
			for !stop.Load() && !t.Failed() {
				runtime.Gosched()
				count := n.Load()
				if count == 0 {
					continue
				}
				old := dropped[max(0, count-1-rng.Int64N(4))].Load()
				other := &slow{p, func() {
					if rng.IntN(4) == 0 {
						runtime.Gosched()
					}
				}}
				switch rng.IntN(4) {
				case 0:
					x.matchKeys(old, p.seq, &m)
				case 1:
					x.matchNames(old, names(old), &m)
				case 2:
					x.Match(Lookup{Constant: old, Chain: other}, []Lookup{{Chain: &p}}, &m)
				default:
					x.matchChain(old, other, &m)
				}
				if m.Blocks != 0 {
					t.Errorf("%d blocks of a dropped identity: %+v", m.Blocks, m)
				}
				if x.matchChain(stays, other, &m); !slices.Equal(m.Prefixes, []Prefix{{uint32(rest), uint32(len(local))}}) {
					t.Errorf("the identity that stays: %+v", m)
				}
			}
		})
	}
	rng, numbers := rand.New(rand.NewPCG(seed, 99)), map[Identity]bool{}
	lives := 400
	if underRace {
		lives = 100
	}
	for range lives {
		constant := rng.Uint64() | 1
		id := x.NewIdentity(constant)
		if numbers[id] {
			reused.Add(1)
		}
		numbers[id] = true
		engine := names(constant)
		for from := 0; from < len(local); from += 50 {
			e := Store{Owner: busy, Identity: id, Engine: engine[from : from+50], Local: local[from : from+50], Copies: CopySet}
			if from > 0 {
				e.Parent, e.HasParent = engine[from-1], true
			}
			x.Store(&e)
		}
		var m Match
		if x.matchKeys(constant, p.seq, &m); m.Blocks != len(local) {
			t.Errorf("%d blocks", m.Blocks)
		}
		switch rng.IntN(3) {
		case 0:
			x.ClearOwner(busy)
			x.compactAll()
		case 1:
			x.ClearIdentity(busy, id)
		default:
			slices.Reverse(engine)
			x.Remove(busy, engine, nil, CopySet)
		}
		if !x.DropIdentity(id) {
			t.Fatal("not dropped")
		}
		dropped[n.Load()].Store(constant)
		n.Add(1)
		runtime.Gosched()
	}
	stop.Store(true)
	reading.Wait()
	if reused.Load() == 0 {
		t.Error("no number was used again")
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}
