// Package master is the metadata of a Mooncake Store: the objects in the host memory and
// on the disks of a pool that all engines of a fleet share. It keeps no bytes and sees no
// token: engines name blocks by digest, and the master announces objects by key.
//
//	Put --> waiting --Step--> host (LRU) --oldest--> disk (LRU) --oldest--> gone
//
// A block is stored as Shards objects. The master writes the first shards of all blocks
// that an engine computed at once, then the second, as each of its workers does. It moves
// and evicts objects one by one. The truth.Tree has a block on a tier when all its objects
// are there.
//
// Invariants (Check)
//  1. No tier holds more objects than its capacity.
//  2. An object is on one tier.
//  3. The tree has a block of a family on a tier if and only if all its objects
//     are there.
//  4. Applied in order, the events give exactly what the pool holds.
//  5. While a family has no object, Step writes its next block whole: a reader
//     learns the number of shards from the blocks that it saw.
//
// Concurrency: none; one goroutine at a time drives a Master and its tree.
//
// Cost: O(1) per object written, moved or evicted.
package master

import (
	"fmt"

	"example.com/conductor/lab/sim/digest"
	"example.com/conductor/lab/sim/truth"
)

// Shards is how many objects a block consists of: the halves of two
// tensor-parallel ranks, or keys and values.
const Shards = 2

// Config describes one pool.
type Config struct {
	Tree *truth.Tree
	// First is the tree's column of family 0; the others follow.
	First    int
	Families []Family
	// Capacities in blocks. Host is at least 1; 0 switches the disk off.
	Host, Disk int
}

// Event is an object that came to a tier or left it.
type Event struct {
	Removed bool
	Tier    truth.Tier
	Key     string
	Group   string // the object group, "" for none
}

// Write is a block some engine computed.
type Write struct {
	ID     truth.ID
	Digest digest.Digest
	Family int
	// Source and Seq are the rank that announces the block, and its batch.
	Source int
	Seq    int64
}

// Stats counts objects since the pool was made, by host and disk.
type Stats struct {
	Stored, Removed [2]int
	Found           int // blocks that engines looked up and got
}

// Master is one pool.
type Master struct {
	Config
	waiting []Write
	// run is the blocks of one batch. The next object is shard of the at-th block.
	run       []Write
	shard, at int

	blocks  map[name]*block
	objects []int // by family
	tiers   [2]lru
	// announced is, by source, the newest batch that announced a block that was
	// ever written.
	announced map[int]int64

	events []Event
	stats  Stats
}

type name struct {
	family int
	digest digest.Digest
}

type block struct {
	name
	id      truth.ID
	objects [Shards]object
}

// The tiers, and where they are in Stats.
const (
	nowhere = int8(iota) - 1
	host
	disk
)

var tierOf = [...]truth.Tier{host: truth.Host, disk: truth.Disk}

// New returns an empty pool.
func New(c Config) *Master {
	if c.Host < 1 || len(c.Families) == 0 {
		panic(fmt.Sprintf("BUG: pool with host %d and %d families", c.Host, len(c.Families)))
	}
	return &Master{
		Config:    c,
		blocks:    make(map[name]*block),
		objects:   make([]int, len(c.Families)),
		tiers:     [2]lru{{capacity: c.Host * Shards}, {capacity: c.Disk * Shards}},
		announced: make(map[int]int64),
	}
}

// Put queues the objects of a block that are not there. It takes a pin of its
// own on the block.
func (m *Master) Put(w Write) {
	if b := m.blocks[name{w.Family, w.Digest}]; b != nil && m.touch(b) == Shards {
		return
	}
	m.Tree.Pin(w.ID)
	m.waiting = append(m.waiting, w)
}

// Get reports whether all objects of a block are there, on any tiers. It counts as a use
// of the block.
func (m *Master) Get(family int, d digest.Digest) bool {
	b := m.blocks[name{family, d}]
	if b == nil || m.touch(b) < Shards {
		return false
	}
	m.stats.Found++
	return true
}

// touch makes the objects of a block the newest and returns how many there are.
func (m *Master) touch(b *block) int {
	n := 0
	for i := range b.objects {
		if o := &b.objects[i]; o.tier != nowhere {
			m.tiers[o.tier].MoveToBack(o.place)
			n++
		}
	}
	return n
}

// Waiting returns how many blocks are queued.
func (m *Master) Waiting() int { return len(m.waiting) + len(m.run) }

// Step writes up to n objects, the oldest first, and one more where a family
// begins. It returns the events to publish, valid until the next call.
func (m *Master) Step(n int) []Event {
	m.events = m.events[:0]
	for n > 0 && m.turn() {
		w := m.run[m.at]
		m.at++
		first, last := m.shard, m.shard
		if m.objects[w.Family] == 0 {
			first, last = 0, Shards-1
		}
		for i := first; i <= last; i++ {
			if b := m.block(w); b.objects[i].tier == nowhere {
				m.announced[w.Source] = max(m.announced[w.Source], w.Seq)
				m.write(b, i)
				n--
			}
		}
	}
	m.turn() // a run that is over waits no more
	return m.events
}

// turn finds the next write: the same shard of the next block of the run, the
// next shard of its first, or the next run. It reports false if there is none.
func (m *Master) turn() bool {
	if m.at < len(m.run) {
		return true
	}
	if m.at = 0; len(m.run) > 0 && m.shard+1 < Shards {
		m.shard++
		return true
	}
	for _, w := range m.run {
		m.Tree.Unpin(w.ID)
	}
	n := 0
	for n < len(m.waiting) && m.waiting[n].Source == m.waiting[0].Source && m.waiting[n].Seq == m.waiting[0].Seq {
		n++
	}
	m.run, m.waiting, m.shard = m.waiting[:n], m.waiting[n:], 0
	return n > 0
}

// Announced returns the newest batch of a source that the pool's blocks
// depend on, -1 for none.
func (m *Master) Announced(source int) int64 {
	if seq, ok := m.announced[source]; ok {
		return seq
	}
	return -1
}

// Stats returns the counters.
func (m *Master) Stats() Stats { return m.stats }

// Blocks returns how many blocks are whole in host memory and on disk, and how
// many lack objects or are spread over both.
func (m *Master) Blocks() (inHost, onDisk, broken int) {
	for _, b := range m.blocks {
		switch {
		case b.on(host) == Shards:
			inHost++
		case b.on(disk) == Shards:
			onDisk++
		default:
			broken++
		}
	}
	return inHost, onDisk, broken
}

// block returns the block of a write, made if nothing of it is there.
func (m *Master) block(w Write) *block {
	at := name{w.Family, w.Digest}
	b := m.blocks[at]
	if b == nil {
		b = &block{name: at, id: w.ID}
		for i := range b.objects {
			b.objects[i] = object{block: b, shard: i, tier: nowhere}
		}
		m.blocks[at] = b
		m.Tree.Pin(b.id)
	}
	return b
}

// on returns how many objects of the block are on a tier.
func (b *block) on(tier int8) int {
	n := 0
	for i := range b.objects {
		if b.objects[i].tier == tier {
			n++
		}
	}
	return n
}
