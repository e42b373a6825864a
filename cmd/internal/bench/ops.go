package bench

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// An ops file is a stream in canonical hashes, for other programs to replay. docs/formats.md
// describes it.
const (
	opsMagic    = "H2HOPS01"
	opsHead     = 48
	opsRecord   = 32
	flagBare    = 1 << 8
	flagClassAt = 16
)

// ExportOps writes the stream of a configuration to a file.
func ExportOps(c Config, path string) error {
	if err := c.Check(); err != nil {
		return err
	}
	if c.Events == Wire {
		return fmt.Errorf("wire events have no ops file")
	}
	s, _, err := generate(&c)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("cannot write the ops file: %w", err)
	}
	if err := errors.Join(s.write(f), f.Close()); err != nil {
		return fmt.Errorf("cannot write the ops file: %w", err)
	}
	return nil
}

// write writes an ops file.
func (s *Stream) write(to io.Writer) error {
	w := bufio.NewWriterSize(to, 1<<20) // keeps the first error
	le := binary.LittleEndian
	end := s.outcome()
	b := append(make([]byte, 0, 64), opsMagic...)
	b = le.AppendUint32(b, uint32(s.owners))
	b = le.AppendUint32(b, uint32(len(s.ops)))
	for _, n := range []int{len(s.seq), len(s.gone), end.Unique(), end.Memberships()} {
		b = le.AppendUint64(b, uint64(n))
	}
	w.Write(b)
	for i := range s.ops {
		o := &s.ops[i]
		flags := uint32(o.family) | uint32(o.class)<<flagClassAt
		if o.bare {
			flags |= flagBare
		}
		has := uint32(0)
		if o.hasParent {
			has = 1
		}
		b = b[:0]
		for _, v := range []uint32{uint32(o.kind), has, o.owner, o.from, o.to, flags} {
			b = le.AppendUint32(b, v)
		}
		w.Write(le.AppendUint64(b, o.parent))
	}
	for _, list := range [][]uint64{s.seq, s.local, s.gone} {
		for _, v := range list {
			w.Write(le.AppendUint64(b[:0], v))
		}
	}
	counted := uint32(0)
	if s.counted {
		counted = 1
	}
	b = le.AppendUint32(b[:0], uint32(s.tiers))
	b = le.AppendUint32(b, counted)
	w.Write(le.AppendUint32(b, uint32(s.load)))
	return w.Flush()
}

// outcome returns who holds which block at the end.
func (s *Stream) outcome() *Oracle {
	o := NewOracle(s.owners)
	for i := range s.ops {
		o.change(s, &s.ops[i])
	}
	return o
}

// OpenOps reads an ops file.
func OpenOps(path string) (*Stream, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open the ops file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot open the ops file: %w", err)
	}
	s, err := readOps(bufio.NewReaderSize(f, 1<<20), info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// readOps reads size bytes.
func readOps(r io.Reader, size int64) (*Stream, error) {
	le := binary.LittleEndian
	var head [opsHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil || string(head[:8]) != opsMagic {
		return nil, fmt.Errorf("not an ops file")
	}
	owners, count := le.Uint32(head[8:]), le.Uint32(head[12:])
	chains, removed := le.Uint64(head[16:]), le.Uint64(head[24:])
	const most = 1 << 32
	if count == 0 {
		return nil, fmt.Errorf("no operations")
	}
	if chains >= most || removed >= most || opsHead+opsRecord*int64(count)+16*int64(chains)+8*int64(removed) > size {
		return nil, fmt.Errorf("%d bytes are too few for %d operations of %d and %d blocks", size, count, chains, removed)
	}
	s := &Stream{owners: int(owners), tiers: 1, counted: true, load: int(count), ops: make([]op, count)}
	var b [opsRecord]byte
	for i := range s.ops {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return nil, err
		}
		flags := le.Uint32(b[20:])
		s.ops[i] = op{
			kind: kind(le.Uint32(b[:])), hasParent: le.Uint32(b[4:]) == 1, owner: le.Uint32(b[8:]),
			from: le.Uint32(b[12:]), to: le.Uint32(b[16:]), name: le.Uint32(b[12:]), parent: le.Uint64(b[24:]),
			family: uint8(flags), bare: flags&flagBare != 0, class: class(flags >> flagClassAt),
		}
		o, end := &s.ops[i], chains
		if o.kind == remove {
			end = removed
		}
		if le.Uint32(b[:]) > uint32(remove) || o.owner >= owners || o.from > o.to || uint64(o.to) > end || o.class >= classes {
			return nil, fmt.Errorf("operation %d is damaged: %+v", i, *o)
		}
	}
	for _, list := range []struct {
		to *[]uint64
		n  uint64
	}{{&s.seq, chains}, {&s.local, chains}, {&s.gone, removed}} {
		*list.to = make([]uint64, list.n)
		for i := range *list.to {
			if _, err := io.ReadFull(r, b[:8]); err != nil {
				return nil, err
			}
			(*list.to)[i] = le.Uint64(b[:])
		}
	}
	if _, err := io.ReadFull(r, b[:12]); err == nil {
		s.tiers, s.counted, s.load = int(le.Uint32(b[:])), le.Uint32(b[4:]) == 1, int(le.Uint32(b[8:]))
	}
	if s.tiers < 1 || s.owners%s.tiers != 0 || s.load > len(s.ops) {
		return nil, fmt.Errorf("%d owners of %d tiers, %d of %d operations of loading", s.owners, s.tiers, s.load, len(s.ops))
	}
	return s, nil
}
