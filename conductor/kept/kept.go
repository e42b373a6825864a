// Package kept says what changed in a table since it was written to the disk, so that a change costs the same however large
// the table is.
//
//	table --Note--> Log --Since--> history/file, which appends the parts that changed
//
// Invariant: a table changes before Note is called. Who asks Since, and then the table for these parts, has all changes that
// Since tells of, and perhaps later ones.
//
// Concurrency: all methods are safe for concurrent use. A Log calls nothing, so tables may hold their locks meanwhile.
package kept

import (
	"slices"
	"sync"
	"sync/atomic"

	"example.com/conductor/events/tape"
)

// Part is one part of a table as the disk has it: a source, a target of discovery, or a change that waits for the store.
type Part struct {
	Name   string       // tells it from the other parts of its table
	Fields []tape.Field // nil if the table does not have it any more
}

// remembered is how many changes a Log remembers. A write takes some milliseconds, so this is many times what happens between two.
const remembered = 4096

// Log counts the changes of a table and remembers which parts the last of them were of. The zero value is ready to use.
type Log[K comparable] struct {
	revision atomic.Uint64

	mu   sync.Mutex
	last []K // of the last changes, the newest last; guarded by mu
}

// Revision returns the number of changes so far.
func (l *Log[K]) Revision() uint64 { return l.revision.Load() }

// Note counts a change of a part.
func (l *Log[K]) Note(part K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == 2*remembered {
		l.last = append(l.last[:0], l.last[remembered:]...)
	}
	l.last = append(l.last, part)
	l.revision.Add(1)
}

// Since returns the parts that have changed since a revision, each once. It returns false if there were too many changes,
// so that the whole table has to be read.
func (l *Log[K]) Since(revision uint64) (parts []K, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.revision.Load() - revision
	if n > uint64(len(l.last)) {
		return nil, false
	}
	seen := make(map[K]bool, n)
	for _, part := range slices.Backward(l.last[len(l.last)-int(n):]) {
		if !seen[part] {
			seen[part] = true
			parts = append(parts, part)
		}
	}
	slices.Reverse(parts) // the order of changes
	return parts, true
}
