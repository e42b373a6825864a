package peer

import (
	"bytes"
	"io"
	"os"
	"sync"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history"
)

// Spool takes snapshots for peers, of all or of one deployment. A snapshot is written at the pace of the disk, into a file
// without a name, and sent at the pace of the peer: events do not wait for a slow one. What
// sources and contexts are called, salts included, stays in memory. The newest snapshot of
// each is kept for a while, so that a peer whose connection broke goes on where it was.
//
// The zero value writes into the system's directory for temporary files. All methods are safe
// for concurrent use.
type Spool struct {
	// Dir is the directory of the files, "" for the system's.
	Dir string

	making sync.Mutex
	mu     sync.Mutex
	kept   map[scope.Deployment]*Spooled // the zero value is all; guarded by mu
}

// keptFor is how long a snapshot is kept without a reader.
const keptFor = 2 * time.Minute

// Spooled is a snapshot that can be read from any place. Release it.
type Spooled struct {
	history.Summary
	spool  *Spool
	of     scope.Deployment
	head   []byte
	file   *os.File
	users  int // guarded by spool.mu; the spool is one
	expire *time.Timer
}

// MakeSnapshot returns a snapshot of what a Conductor holds now: of the sources of one deployment, or of
// all if of is the zero value. Who waits for the one before may share the next one.
func (s *Spool) MakeSnapshot(c *conductor.Conductor, of scope.Deployment) (*Spooled, error) {
	asked := time.Now()
	s.making.Lock()
	defer s.making.Unlock()
	if k := s.findKept(func(k *Spooled) bool { return k.of == of && k.Time.After(asked) }); k != nil {
		return k, nil
	}
	only := &of
	if of == (scope.Deployment{}) {
		only = nil
	}
	file, err := os.CreateTemp(s.Dir, "conductor-snapshot-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	to := &spoolWriter{file: file}
	sum, err := history.Write(to, c, only, time.Now(), nil)
	if err != nil {
		file.Close()
		return nil, err
	}
	k := &Spooled{Summary: sum, spool: s, of: of, head: to.head.Bytes(), file: file, users: 2}
	k.expire = time.AfterFunc(keptFor, func() { s.expireKept(k) })
	s.mu.Lock()
	old := s.kept[of]
	if s.kept == nil {
		s.kept = make(map[scope.Deployment]*Spooled)
	}
	s.kept[of] = k
	s.mu.Unlock()
	if old != nil {
		old.Release()
	}
	return k, nil
}

// FindSnapshot returns the snapshot with an id, nil if it is not kept any more.
func (s *Spool) FindSnapshot(id uint64) *Spooled {
	return s.findKept(func(k *Spooled) bool { return k.ID == id })
}

// findKept returns a kept snapshot that is meant, nil without one.
func (s *Spool) findKept(meant func(*Spooled) bool) *Spooled {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		if meant(k) {
			k.users++
			k.expire.Reset(keptFor)
			return k
		}
	}
	return nil
}

// expireKept stops keeping a snapshot.
func (s *Spool) expireKept(k *Spooled) {
	s.mu.Lock()
	kept := s.kept[k.of] == k
	if kept {
		delete(s.kept, k.of)
	}
	s.mu.Unlock()
	if kept {
		k.Release()
	}
}

// Release ends the use of a snapshot. The last one closes its file.
func (k *Spooled) Release() {
	k.spool.mu.Lock()
	k.users--
	last := k.users == 0
	k.spool.mu.Unlock()
	if last {
		k.expire.Stop()
		k.file.Close()
	}
}

// Reader returns the bytes.
func (k *Spooled) Reader() *io.SectionReader { return io.NewSectionReader(k, 0, k.Bytes) }

// ReadAt implements io.ReaderAt.
func (k *Spooled) ReadAt(p []byte, at int64) (n int, err error) {
	if at < int64(len(k.head)) {
		n = copy(p, k.head[at:])
	}
	if n < len(p) {
		more, err := k.file.ReadAt(p[n:], at+int64(n)-int64(len(k.head)))
		return n + more, err
	}
	return n, nil
}

// spoolWriter keeps the beginning of a snapshot in memory and writes the rest into a file.
type spoolWriter struct {
	head   bytes.Buffer
	file   *os.File
	headed bool
}

func (w *spoolWriter) Write(p []byte) (int, error) {
	if !w.headed {
		return w.head.Write(p)
	}
	return w.file.Write(p)
}

// HeadEnds implements history.HeadWriter.
func (w *spoolWriter) HeadEnds() { w.headed = true }
