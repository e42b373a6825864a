// Package diff compares what two snapshots hold, block by block, and says why they differ.
//
// Concurrency: a Loaded belongs to one goroutine. Cost: both snapshots are in memory, as in a server.
package diff

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history"
	"example.com/conductor/index/hash"
	"example.com/conductor/spelling"
	"example.com/conductor/tiers"
)

// Loaded is a snapshot in memory.
type Loaded struct {
	history.Summary
	HashSeed  uint64
	conductor *conductor.Conductor
	snap      *ingest.Snapshot
}

// Load reads a snapshot into memory. Close it.
func Load(from io.Reader, open history.Opener) (*Loaded, error) {
	l := &Loaded{}
	sum, err := history.Read(from, history.Reading{Open: open, For: func(seed uint64) *ingest.Recovery {
		l.HashSeed = seed
		l.conductor = conductor.New(conductor.Options{HashSeed: seed, KeepClientHashes: true, Gate: make(chan struct{}),
			Log: zerolog.Nop()})
		return l.conductor.Sources().Snapshots().Recover(0)
	}})
	l.Summary = sum
	if err != nil {
		l.Close()
		return nil, err
	}
	l.snap = l.conductor.Sources().Snapshots().Take()
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
	Source registration.Key
	scope.Context
	Rank   int32
	Medium string
	Engine uint64 // engine hash
	Key    uint64 // canonical hash of the prefix, the engine hash where that is not known
	Second bool   // the second snapshot has the block
}

// SourceDifference is how a source differs between two snapshots.
type SourceDifference struct {
	Source         registration.Key
	Blocks         [2]int // that each has
	Only           [2]int // of them those that the other lacks
	Why            string
	AtEqualBatches bool // both were at the same batch
	marks          [2]*image.Source
	held           map[section]*[2][]heldBlock
}

// section names one part of what a source holds: the blocks of one context, rank, medium, group and backend.
type section struct {
	scope.Context
	rank    int32
	medium  string
	group   int
	backend string
	owned   bool
}

// heldBlock is a block of a section.
type heldBlock struct{ key, engine uint64 }

// Compare compares two snapshots. It calls block for each block that one lacks, and returns the
// sources with their reasons, those without a difference left out unless all is set.
func Compare(a, b *Loaded, all bool, block func(Block)) ([]SourceDifference, error) {
	if a.HashSeed != b.HashSeed {
		return nil, fmt.Errorf("one has hash.seed %d, the other %d: no block compares", a.HashSeed, b.HashSeed)
	}
	sources := make(map[registration.Key]*SourceDifference)
	of := func(key registration.Key) *SourceDifference {
		d := sources[key]
		if d == nil {
			d = &SourceDifference{Source: key, held: make(map[section]*[2][]heldBlock)}
			sources[key] = d
		}
		return d
	}
	for side, l := range []*Loaded{a, b} {
		for i := range l.snap.Sources {
			of(l.snap.Sources[i].Key()).marks[side] = &l.snap.Sources[i]
		}
		l.gather(func(key registration.Key, at section) *[]heldBlock {
			d := of(key)
			if d.held[at] == nil {
				d.held[at] = new([2][]heldBlock)
			}
			return &d.held[at][side]
		})
	}
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

// gather adds the blocks of a snapshot to the lists of sources and sections.
func (l *Loaded) gather(of func(registration.Key, section) *[]heldBlock) {
	scheme := hash.Scheme{Seed: l.HashSeed}
	for tier := tiers.Device; tier <= tiers.Other; tier++ {
		l.snap.Walk(tier, func(s *ingest.Stored) bool {
			at := section{
				Context: scope.Context{Deployment: scope.Deployment{Tenant: s.Tenant, Model: s.Model, BlockSize: s.BlockSize},
					Variant: scope.Variant{Lora: s.Lora, Salt: s.Salt}},
				rank: s.Rank, medium: s.Medium.Name, group: s.Group, backend: s.Backend, owned: s.Owned,
			}
			blocks := of(s.Source.Key(), at)
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
				*blocks = append(*blocks, heldBlock{key, engine})
			}
			return true
		})
	}
}

// compare finds the blocks that one side lacks.
func (d *SourceDifference) compare(block func(Block)) {
	for at, held := range d.held {
		for _, blocks := range held {
			slices.SortFunc(blocks, func(a, b heldBlock) int { return cmp.Compare(a.key, b.key) })
		}
		a, b := held[0], held[1]
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

func (d *SourceDifference) lacks(at section, h heldBlock, side int, block func(Block)) {
	d.Only[side]++
	block(Block{Source: d.Source, Context: at.Context, Rank: at.rank, Medium: at.medium, Engine: h.engine, Key: h.key, Second: side == 1})
}

// explain says why the source differs, "" if it does not.
func (d *SourceDifference) explain() {
	a, b := d.marks[0], d.marks[1]
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
		marks = fmt.Sprintf("the first is %s ahead", spelling.Count(x.Seq-y.Seq, "batch"))
	default:
		marks = fmt.Sprintf("the second is %s ahead", spelling.Count(y.Seq-x.Seq, "batch"))
	}
	if d.Only == [2]int{} {
		return
	}
	d.Why = marks
	for i, m := range d.marks {
		if m.Mark != nil && m.Mark.Missing != "" {
			d.Why += fmt.Sprintf("; the %s lacks history: %s", []string{"first", "second"}[i], m.Mark.Missing)
		}
	}
}
