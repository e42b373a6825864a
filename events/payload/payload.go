// Package payload is the memory of messages on their way from a socket to the decoder.
//
//	socket --> Block --> Message, Message, ... --> queues --> decoder --> Release
//	             ^                                   |                      |
//	             |                          Share of a Memory               |
//	             +----------------- pools by size <-------------------------+
//
// A connection reads into blocks. The frames of a message are slices of one block, so no
// payload is copied between the socket and the decoder. The reader and each message have
// a reference to the block. The last Release hands the block to the next reader.
//
// Invariants:
//
//  1. Bytes of a block that a message has do not change.
//  2. A block is used again only after every reference to it was released. A block with a
//     reference that is never released belongs to the garbage collector.
//  3. The shares of a Memory stay within its limit, apart from one message each.
//
// Concurrency: blocks and a Memory are safe for concurrent use. The owner of a share guards
// it.
package payload

import (
	"math/bits"
	"sync/atomic"
)

// Message is one message as it was received.
type Message struct {
	// Frames are slices of Block. They are valid until the connection receives again, their
	// bytes until Block is released.
	Frames [][]byte
	// Block is the memory of the frames. The receiver owns one reference. It is nil if the
	// frames belong to the garbage collector.
	Block *Block
	// Oversize is the bytes of the message as it was sent where the receiver takes fewer, else 0.
	// Then the frame that was too large is there by its first bytes alone.
	Oversize uint64
}

// Of returns a message of frames that belong to the garbage collector.
func Of(frames ...[]byte) Message { return Message{Frames: frames} }

// Block is memory that messages share.
type Block struct {
	Bytes []byte
	refs  atomic.Int32
}

const (
	// MinBlock is the size of the smallest block in bytes. A thousand idle connections have
	// 2 MiB.
	MinBlock = 2 << 10
	// Larger blocks are rare, and the garbage collector takes them.
	maxPooled = 1 << 20
	// poolBytes is how much each pool keeps: 10 MiB in all. A flood needs more than traffic
	// that is applied as it comes, and gives it back.
	poolBytes = 1 << 20
)

// pools has one list of free blocks for each power of two from MinBlock to maxPooled.
var pools = func() (p [10]chan *Block) {
	for c := range p {
		p[c] = make(chan *Block, poolBytes/(MinBlock<<c))
	}
	return p
}()

// PooledBytes returns the bytes of free blocks.
func PooledBytes() (bytes int64) {
	for c, p := range pools {
		bytes += int64(len(p)) * MinBlock << c
	}
	return bytes
}

// TrimPools leaves all free blocks to the garbage collector.
func TrimPools() {
	for _, p := range pools {
		for range len(p) {
			select {
			case <-p:
			default:
			}
		}
	}
}

// discarded is bytes of released blocks that found no room in a pool.
var discarded atomic.Int64

// discards has a token after each discardStep bytes.
var discards = make(chan struct{}, 1)

const discardStep = 16 << 20

// DiscardedBytes returns how many bytes of blocks the garbage collector got so far. After each
// 16 MiB the channel has something, as a flood leaves much garbage and may be followed by
// silence.
func DiscardedBytes() (bytes int64, more <-chan struct{}) { return discarded.Load(), discards }

func countDiscarded(bytes int) {
	if n := discarded.Add(int64(bytes)); n/discardStep != (n-int64(bytes))/discardStep {
		select {
		case discards <- struct{}{}:
		default:
		}
	}
}

func sizeClass(n int) int { return bits.Len(uint(max(n, MinBlock)-1)) - bits.Len(uint(MinBlock-1)) }

// TakeBlock returns a block of at least n bytes of any value, with one reference.
func TakeBlock(n int) *Block {
	var b *Block
	if n > maxPooled {
		b = &Block{Bytes: make([]byte, n)}
	} else {
		c := sizeClass(n)
		select {
		case b = <-pools[c]:
		default:
			b = &Block{Bytes: make([]byte, MinBlock<<c)}
		}
	}
	b.refs.Store(1)
	return b
}

// Retain adds a reference. A nil block has none.
func (b *Block) Retain() {
	if b != nil {
		b.refs.Add(1)
	}
}

// Release takes a reference away. The last one makes the block free for others.
func (b *Block) Release() {
	if b == nil {
		return
	}
	switch n := b.refs.Add(-1); {
	case n < 0:
		panic("BUG: a block of payloads is released twice")
	case n == 0:
		if PoisonsReleased {
			poisonBytes(b.Bytes)
		}
		if len(b.Bytes) <= maxPooled {
			select {
			case pools[sizeClass(len(b.Bytes))] <- b:
				return
			default:
			}
		}
		countDiscarded(len(b.Bytes))
	}
}

// HasOneReference reports whether the caller's reference is the only one.
func (b *Block) HasOneReference() bool { return b.refs.Load() == 1 }

func poisonBytes(p []byte) {
	for i := range p {
		p[i] = 0xdb
	}
}
