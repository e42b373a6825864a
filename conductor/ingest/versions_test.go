package ingest

import (
	"fmt"
	"slices"
	"testing"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/image"
	"example.com/conductor/events"
)

// numbered returns an event that stores one block of an adapter under a number.
func numbered(lora string, id, hash uint64) *events.Event {
	tokens := make([]uint32, 16)
	tokens[0] = uint32(hash)
	return &events.Event{Kind: events.Stored, Hashes: []uint64{hash}, Tokens: tokens, BlockSize: 16, BaseBlock: -1, Group: -1,
		Medium: "GPU", LoraName: &lora, LoraID: id}
}

// A source that goes on behind a snapshot knows which versions of adapters the blocks of the snapshot are of.
func TestVersionsSurviveSnapshots(t *testing.T) {
	c := newServer(serverOptions{})
	defer c.Close()
	s := saltedSource(c, 1, 1)
	change(s, numbered("sql", 3, 101), 0)
	change(s, numbered("a name", 1, 102), 0)
	change(s, numbered("sql", 4, 101), 0)
	m := s.snapshotMark()
	want := []image.Adapter{{Lora: "a name", Lowest: 1, Highest: 1}, {Lora: "sql", Lowest: 3, Highest: 4}}
	if !slices.Equal(m.Versions, want) {
		t.Fatalf("a snapshot has the versions %+v, want %+v", m.Versions, want)
	}
	m.Endpoint = "tcp://127.0.0.1:5557"
	read, err := image.ReadSource(m.Fields())
	if err != nil || !slices.Equal(read.Versions, want) {
		t.Fatalf("read back as %+v: %v", read.Versions, err)
	}
	var v versions
	v.restore(read.Versions)
	if got := v.list(); !slices.Equal(got, want) {
		t.Errorf("restored as %+v", got)
	}
	s.applier.versions = v
	before := s.holdings.blocks()
	change(s, numbered("sql", 5, 201), 0)
	if n := s.holdings.blocks(); n != before {
		t.Errorf("%d blocks with one of a new version in place of one of the old, %d before", n, before)
	}
}

// A publisher that numbers ever more adapters, and retires ever more hashes, takes a bounded memory.
func TestVersionsAreBounded(t *testing.T) {
	c := newServer(serverOptions{})
	defer c.Close()
	s := saltedSource(c, 1, 1)
	for i := range uint64(catalog.MaxAdapters + 10) {
		change(s, numbered(fmt.Sprint("adapter ", i), 2, 1<<20+i), 0)
		change(s, &events.Event{Kind: events.Removed, Hashes: []uint64{1<<20 + i}, Medium: "GPU"}, 0)
	}
	if n := len(s.applier.versions.ids); n > catalog.MaxAdapters {
		t.Errorf("%d adapters have numbers", n)
	}
	late := numbered("adapter 7", 1, 0)
	for i := range uint64(maxRetired + 10) {
		late.Hashes[0] = 1<<30 + i
		change(s, late, 0)
	}
	if n := len(s.applier.versions.retired); n != maxRetired {
		t.Errorf("%d hashes are retired, want %d", n, maxRetired)
	}
}
