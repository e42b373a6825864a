package index

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"example.com/conductor/lab/harness"
)

// An ops file is a stream in canonical hashes, for other programs to replay. docs/formats.md
// describes it.
type (
	opsHeader struct {
		Magic               [8]byte
		Owners, Operations  uint32
		Chains, Removed     uint64 // blocks
		Unique, Memberships uint64 // held at the end
	}
	opsRecord struct {
		Kind, HasParent, Owner, From, To, Flags uint32
		Parent                                  uint64
	}
	opsTail struct{ Tiers, Counted, Load uint32 }
)

var (
	opsMagic   = [8]byte([]byte("H2HOPS01"))
	headSize   = int64(binary.Size(opsHeader{}))
	recordSize = int64(binary.Size(opsRecord{}))
)

const (
	flagBare    = 1 << 8
	flagClassAt = 16
)

// ExportOps writes the stream of a configuration to a file.
func ExportOps(c Config, path string) error {
	if err := c.Check(); err != nil {
		return harness.Mistakef("%w", err)
	}
	if c.Events == Wire {
		return harness.Mistakef("wire events have no ops file")
	}
	s, _, err := generateStreams(&c)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("cannot write the ops file: %w", err)
	}
	if err := errors.Join(s.writeOps(f), f.Close()); err != nil {
		return fmt.Errorf("cannot write the ops file: %w", err)
	}
	return nil
}

// writeOps writes an ops file.
func (s *Stream) writeOps(to io.Writer) error {
	w := bufio.NewWriterSize(to, 1<<20) // keeps the first error
	put := func(v any) { binary.Write(w, binary.LittleEndian, v) }
	bit := func(set bool, bit uint32) uint32 {
		if set {
			return bit
		}
		return 0
	}
	end := s.holdersAtEnd()
	put(opsHeader{opsMagic, uint32(s.owners), uint32(len(s.ops)), uint64(len(s.seq)), uint64(len(s.gone)), uint64(end.CountBlocks()),
		uint64(end.CountMemberships())})
	for i := range s.ops {
		o := &s.ops[i]
		put(&opsRecord{uint32(o.kind), bit(o.hasParent, 1), o.owner, o.from, o.to,
			uint32(o.family) | uint32(o.class)<<flagClassAt | bit(o.bare, flagBare), o.parent})
	}
	put(s.seq)
	put(s.local)
	put(s.gone)
	put(opsTail{uint32(s.tiers), bit(s.counted, 1), uint32(s.load)})
	return w.Flush()
}

// holdersAtEnd returns the holders of each block at the end.
func (s *Stream) holdersAtEnd() Oracle {
	o := newOracle(s.owners)
	for i := range s.ops {
		o.applyOp(s, &s.ops[i])
	}
	return o
}

// openOps reads an ops file.
func openOps(path string) (*Stream, error) {
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
	get := func(v any) error { return binary.Read(r, binary.LittleEndian, v) }
	var head opsHeader
	if err := get(&head); err != nil || head.Magic != opsMagic {
		return nil, fmt.Errorf("not an ops file")
	}
	const most = 1 << 32
	if head.Operations == 0 {
		return nil, fmt.Errorf("no operations")
	}
	if head.Chains >= most || head.Removed >= most || headSize+recordSize*int64(head.Operations)+16*int64(head.Chains)+
		8*int64(head.Removed) > size {
		return nil, fmt.Errorf("%d bytes are too few for %d operations of %d and %d blocks", size, head.Operations, head.Chains,
			head.Removed)
	}
	s := &Stream{
		owners: int(head.Owners), tiers: 1, counted: true, load: int(head.Operations), ops: make([]op, head.Operations),
		seq: make([]uint64, head.Chains), local: make([]uint64, head.Chains), gone: make([]uint64, head.Removed),
	}
	for i := range s.ops {
		var b opsRecord
		if err := get(&b); err != nil {
			return nil, err
		}
		s.ops[i] = op{
			kind: kind(b.Kind), hasParent: b.HasParent == 1, owner: b.Owner, from: b.From, to: b.To, name: b.From, parent: b.Parent,
			family: uint8(b.Flags), bare: b.Flags&flagBare != 0, class: class(b.Flags >> flagClassAt),
		}
		o, end := &s.ops[i], head.Chains
		if o.kind == remove {
			end = head.Removed
		}
		if b.Kind > uint32(remove) || o.owner >= head.Owners || o.from > o.to || uint64(o.to) > end || o.class >= classes {
			return nil, fmt.Errorf("operation %d is damaged: %+v", i, *o)
		}
	}
	for _, list := range [][]uint64{s.seq, s.local, s.gone} {
		if err := get(list); err != nil {
			return nil, err
		}
	}
	var tail opsTail
	if get(&tail) == nil {
		s.tiers, s.counted, s.load = int(tail.Tiers), tail.Counted == 1, int(tail.Load)
	}
	if s.tiers < 1 || s.owners%s.tiers != 0 || s.load > len(s.ops) {
		return nil, fmt.Errorf("%d owners of %d tiers, %d of %d operations of loading", s.owners, s.tiers, s.load, len(s.ops))
	}
	return s, nil
}
