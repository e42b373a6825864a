package index

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// arena is the memory of pieces: lines of 64 bytes that are named by number and never
// move. It lies outside the Go heap, in chunks that double.
//
//	line   0 is never used; a line number is the name of a piece
//	page   64 lines, one word of each bitmap
//
// A page without a used line goes back to the system. It reads as zeros afterwards, which
// a reader with an old number takes for a dead piece.
//
// With hundreds of millions of blocks on the Go heap, marking would take processors away
// from queries. What the arena gives up for that is safety: a number outlives its piece, so
// a reader that follows one has to check that it leads to what it was looking for.
type arena struct {
	chunks  [arenaChunks]unsafe.Pointer // written before a number in it is known
	next    atomic.Uint32               // first line that was never used
	live    atomic.Int64                // lines in use
	ready   uint32                      // lines before this one have their pages
	back    atomic.Int64                // pages given back and not used since
	mu      spin                        // guards the lists below against other lanes
	begun   atomic.Uint32               // pieces begun so far in lines of zeros
	used    []uint64                    // bitmap of lines in use, a word a page
	heads   []uint64                    // bitmap of lines that begin a piece
	gone    []uint64                    // bitmap of pages that were given back
	spare   [3][maxLines + 1][]uint32   // free places by kind and length in lines
	kept    int                         // free lines after the last trim
	trimmed int                         // page where trim goes on
}

// Kinds of places: a line that was the head of a piece or a list of intervals never
// becomes anything else, so a reader may look at it with an old number.
const (
	forPieces = iota
	forIntervals
	forNames
)

const (
	lineBytes   = 64
	pageLines   = 64
	firstLines  = 256 // of chunk 0
	arenaChunks = 24
	aheadLines  = 1024                       // that get their pages at once, in large chunks
	maxLines    = 1 + 3*maxPiece*8/lineBytes // of a wide piece
)

// chunkLines returns how many lines chunk k has: as many as all chunks before it together,
// so that memory is reserved ahead by at most as much as is in use.
func chunkLines(k int) int {
	if k == 0 {
		return firstLines
	}
	return firstLines << (k - 1)
}

// addressOf returns the address of a line. Chunks double, so the chunk is the number of
// leading bits. This is the first step of every access to a piece, and must stay small
// enough to be inlined: no bounds check, no lock. Readers need none, because a chunk is
// stored before any number in it is known, and never moves or goes.
func (a *arena) addressOf(line uint32) unsafe.Pointer {
	k := bits.Len32(line / firstLines)
	first := uint32(firstLines) << k >> 1 &^ (firstLines - 1)
	return unsafe.Add(a.chunks[k], uintptr(line-first)*lineBytes)
}

// allocLines returns n lines next to each other. Their words have any values.
//
// Free places of the very length come first. They are not split or joined: pieces have few
// lengths, and the lines of a page that is empty go back to the system whole.
func (a *arena) allocLines(kind, n int) uint32 {
	a.mu.lock()
	defer a.mu.unlock()
	line := uint32(0)
	if s := &a.spare[kind][n]; len(*s) > 0 {
		line = (*s)[len(*s)-1]
		*s = (*s)[:len(*s)-1]
	} else {
		line = a.takeFreshLines(n)
	}
	a.live.Add(int64(n))
	a.markLines(line, n, true)
	if kind == forPieces {
		a.heads[line/pageLines] |= 1 << (line % pageLines)
	}
	return line
}

// takeFreshLines takes lines that were never used. In large chunks it asks the system for
// 64 KiB of pages at once: a fault for each 4 KiB page costs more than the blocks that are
// written there. The pages of a chunk that has just been filled may become huge ones, of
// which the processor can keep more at hand.
func (a *arena) takeFreshLines(n int) uint32 {
	line := max(a.next.Load(), 1)
	k := bits.Len32(line / firstLines)
	end := uint32(firstLines) << k
	// The lines that are left at the end of a chunk are given up: fewer than one piece has,
	// once for each doubling.
	if line+uint32(n) > end { // a piece lies in one chunk
		line = end
		k++
	}
	if a.chunks[k] == nil {
		if k > 0 {
			joinPages(a.chunks[k-1], chunkLines(k-1)*lineBytes)
		}
		p, bytes := reserveMemory(chunkLines(k)*lineBytes), chunkLines(k)*lineBytes
		releaseWith(a, p, bytes)
		a.chunks[k] = p
		pages := int(firstLines<<k) / pageLines
		a.used = append(a.used, make([]uint64, pages-len(a.used))...)
		a.heads = append(a.heads, make([]uint64, pages-len(a.heads))...)
		a.gone = append(a.gone, make([]uint64, (pages+63)/64-len(a.gone))...)
	}
	if line+uint32(n) > a.ready {
		from := max(line, a.ready) // the start of a page
		// Not in a small index: there may be many, each with 64 KiB that it never needs.
		if k > 0 && chunkLines(k) > aheadLines {
			takePages(a.addressOf(from), aheadLines*lineBytes)
			a.ready = from + aheadLines
		}
	}
	a.next.Store(line + uint32(n))
	return line
}

// freeLines takes lines back.
//
// The caller has made sure that no table leads there any more. Readers with an old number
// may still come; they find a version that does not match, or a key that is not theirs.
func (a *arena) freeLines(kind int, line uint32, n int) {
	a.mu.lock()
	defer a.mu.unlock()
	s := &a.spare[kind][n]
	*s = append(*s, line)
	a.live.Add(int64(-n))
	a.markLines(line, n, false)
	a.heads[line/pageLines] &^= 1 << (line % pageLines)
}

// markLines notes that lines are in use, or not. The bitmap has a word a page, so that
// trimPages finds an empty page by one comparison with zero.
func (a *arena) markLines(line uint32, n int, used bool) {
	for n > 0 {
		page, off := line/pageLines, line%pageLines
		k := min(n, pageLines-int(off))
		m := ^uint64(0) >> (64 - k) << off
		if used {
			a.used[page] |= m
			if g := &a.gone[page/64]; *g>>(page%64)&1 != 0 {
				*g &^= 1 << (page % 64)
				a.back.Add(-1)
			}
		} else {
			a.used[page] &^= m
		}
		line += uint32(k)
		n -= k
	}
}

// trimPages gives pages without a used line back to the system, up to a number of
// stretches. The next call goes on there. It reports whether it has visited all pages. The
// numbers of their lines stay in the lists of spare ones: a line that is taken again just
// gets a new page from the system, full of zeros.
func (a *arena) trimPages(stretches int) bool {
	end := int(a.next.Load()) / pageLines // the page of next may be written soon
	p := a.trimmed
	for p < end && stretches > 0 {
		if a.used[p] != 0 || a.gone[p/64]>>(p%64)&1 != 0 {
			p++
			continue
		}
		// A stretch ends with its chunk: chunks are reserved one by one, and need not lie
		// next to each other.
		from := p
		k := bits.Len32(uint32(p) * pageLines / firstLines)
		last := min(end, firstLines<<k/pageLines)
		for p < last && a.used[p] == 0 {
			if g := &a.gone[p/64]; *g>>(p%64)&1 == 0 {
				*g |= 1 << (p % 64)
				a.back.Add(1)
			}
			p++
		}
		discardMemory(a.addressOf(uint32(from)*pageLines), (p-from)*pageLines*lineBytes)
		stretches--
	}
	if a.trimmed = p; p < end {
		return false
	}
	a.trimmed = 0
	return true
}

// unusedLines returns the lines that take memory for nothing: used before, free now, and on
// a page that has not been given back.
func (a *arena) unusedLines() int {
	return int(a.next.Load()) - int(a.live.Load()) - int(a.back.Load())*pageLines
}

// bytes returns the memory that the arena takes from the system.
func (a *arena) bytes() int {
	n := (int(a.next.Load())-int(a.back.Load())*pageLines)*lineBytes + 8*(cap(a.used)+cap(a.heads)+cap(a.gone))
	for kind := range a.spare {
		for i := range a.spare[kind] {
			n += 4 * cap(a.spare[kind][i])
		}
	}
	return n
}
