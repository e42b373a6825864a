package snapshot

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"kvconductor/conductor"
	"kvconductor/conductor/scope"
	"kvconductor/index/hash"
	"kvconductor/tiers"
)

// Loaded is a snapshot in memory.
type Loaded struct {
	Summary
	HashSeed  uint64
	conductor *conductor.Conductor
	snap      *conductor.Snapshot
}

// Load reads a snapshot into memory. Close it.
func Load(from io.Reader, open Opener) (*Loaded, error) {
	l := &Loaded{}
	sum, err := Read(from, Reading{Open: open, For: func(seed uint64) *conductor.Recovery {
		l.HashSeed = seed
		l.conductor = conductor.New(conductor.Options{HashSeed: seed, KeepClientHashes: true, Gate: make(chan struct{}), Log: zerolog.Nop()})
		return l.conductor.Recover(0)
	}})
	l.Summary = sum
	if err != nil {
		l.Close()
		return nil, err
	}
	l.snap = l.conductor.Snapshot()
	return l, nil
}

// Close ends the use of a snapshot.
func (l *Loaded) Close() {
	if l.conductor != nil {
		l.conductor.Close()
	}
}

// Block is a block that one of two snapshots has.
type Block struct {
	Source conductor.Key
	scope.Context
	Rank   int32
	Medium string
	Engine uint64 // engine hash
	Key    uint64 // canonical hash of the prefix, the engine hash where that is not known
	Second bool   // the second snapshot has the block
}

// SourceDifference is how a source differs between two snapshots.
type SourceDifference struct {
	Source                 conductor.Key
	Blocks                 [2]int // that each has
	Only                   [2]int // of them those that the other lacks
	Why                    string
	AtEqualBatches         bool // both were at the same batch
	first, second          *conductor.SourceMark
	blocksFirst, blocksTwo map[place][]heldBlock
}

// place is where a source holds blocks.
type place struct {
	scope.Context
	rank    int32
	medium  string
	group   int
	backend string
	owned   bool
}

// heldBlock is a block of a place.
type heldBlock struct{ key, engine uint64 }

// Diff compares two snapshots. It calls block for each block that one lacks, and returns the
// sources with their reasons, those without a difference left out unless all is set.
func Diff(a, b *Loaded, all bool, block func(Block)) ([]SourceDifference, error) {
	if a.HashSeed != b.HashSeed {
		return nil, fmt.Errorf("one has hash.seed %d, the other %d: no block compares", a.HashSeed, b.HashSeed)
	}
	sources := make(map[conductor.Key]*SourceDifference)
	of := func(key conductor.Key) *SourceDifference {
		d := sources[key]
		if d == nil {
			d = &SourceDifference{Source: key, blocksFirst: make(map[place][]heldBlock), blocksTwo: make(map[place][]heldBlock)}
			sources[key] = d
		}
		return d
	}
	for i := range a.snap.Sources {
		of(a.snap.Sources[i].Key()).first = &a.snap.Sources[i]
	}
	for i := range b.snap.Sources {
		of(b.snap.Sources[i].Key()).second = &b.snap.Sources[i]
	}
	gather(a, func(key conductor.Key) map[place][]heldBlock { return of(key).blocksFirst })
	gather(b, func(key conductor.Key) map[place][]heldBlock { return of(key).blocksTwo })
	var out []SourceDifference
	for _, d := range sources {
		d.compare(block)
		d.explain()
		if all || d.Why != "" {
			out = append(out, *d)
		}
	}
	slices.SortFunc(out, func(a, b SourceDifference) int { return strings.Compare(a.Source.String(), b.Source.String()) })
	return out, nil
}

// gather lists the blocks of a snapshot by source and place.
func gather(l *Loaded, of func(conductor.Key) map[place][]heldBlock) {
	scheme := hash.Scheme{Seed: l.HashSeed}
	for tier := tiers.Device; tier <= tiers.Other; tier++ {
		l.snap.Walk(tier, func(s *conductor.Stored) bool {
			at := place{
				Context: scope.Context{Deployment: scope.Deployment{Tenant: s.Tenant, Model: s.Model, BlockSize: s.BlockSize}, Variant: scope.Variant{Lora: s.Lora, Salt: s.Salt}},
				rank:    s.Rank, medium: s.Medium.Name, group: s.Group, backend: s.Backend, owned: s.Owned,
			}
			blocks := of(s.Source.Key())
			key := s.Key
			for i, engine := range s.Engine {
				switch {
				case i > 0 && s.Local != nil:
					key = scheme.Next(key, s.Local[i])
				case i > 0:
					key = scheme.Next(key, s.ClientHashes[i])
				case !s.HasKey:
					key = engine
				}
				blocks[at] = append(blocks[at], heldBlock{key, engine})
			}
			return true
		})
	}
}

// compare finds the blocks that one side lacks.
func (d *SourceDifference) compare(block func(Block)) {
	places := make(map[place]bool)
	for _, side := range []map[place][]heldBlock{d.blocksFirst, d.blocksTwo} {
		for at, blocks := range side {
			places[at] = true
			slices.SortFunc(blocks, func(a, b heldBlock) int {
				switch {
				case a.key < b.key:
					return -1
				case a.key > b.key:
					return 1
				}
				return 0
			})
		}
	}
	for at := range places {
		a, b := d.blocksFirst[at], d.blocksTwo[at]
		d.Blocks[0] += len(a)
		d.Blocks[1] += len(b)
		for len(a) > 0 || len(b) > 0 {
			switch {
			case len(b) == 0 || len(a) > 0 && a[0].key < b[0].key:
				d.lacks(at, a[0], 0, block)
				a = a[1:]
			case len(a) == 0 || b[0].key < a[0].key:
				d.lacks(at, b[0], 1, block)
				b = b[1:]
			default:
				a, b = a[1:], b[1:]
			}
		}
	}
}

func (d *SourceDifference) lacks(at place, h heldBlock, side int, block func(Block)) {
	d.Only[side]++
	block(Block{Source: d.Source, Context: at.Context, Rank: at.rank, Medium: at.medium, Engine: h.engine, Key: h.key, Second: side == 1})
}

// explain says why the source differs, "" if it does not.
func (d *SourceDifference) explain() {
	a, b := d.first, d.second
	switch {
	case a == nil:
		d.Why = "the first does not know the source"
		return
	case b == nil:
		d.Why = "the second does not know the source"
		return
	}
	marks := "no batch was applied"
	switch x, y := a.Mark, b.Mark; {
	case x == nil && y == nil:
	case x == nil || y == nil:
		marks = "one has applied no batch"
	case x.Seq == y.Seq && x.Print == y.Print:
		d.AtEqualBatches = true
		marks = fmt.Sprintf("both are at batch %d", x.Seq)
	case x.Seq == y.Seq:
		marks = fmt.Sprintf("batch %d has other bytes: they follow two lifetimes of the publisher", x.Seq)
	case x.Seq > y.Seq:
		marks = fmt.Sprintf("the first is %d batches ahead", x.Seq-y.Seq)
	default:
		marks = fmt.Sprintf("the second is %d batches ahead", y.Seq-x.Seq)
	}
	if d.Only == [2]int{} {
		return
	}
	d.Why = marks
	for i, m := range []*conductor.SourceMark{a, b} {
		if m.Mark != nil && m.Mark.Missing != "" {
			d.Why += fmt.Sprintf("; the %s lacks history: %s", []string{"first", "second"}[i], m.Mark.Missing)
		}
	}
}
