package ingest

import (
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/kept"
	"example.com/conductor/conductor/registration"
)

// KeptSources are the registrations as the disk has them, without blocks and marks.
type KeptSources struct{ sources *Sources }

// KeptSources returns the registrations as the disk has them.
func (h Snapshots) KeptSources() KeptSources { return KeptSources(h) }

// Seed returns the seed of the hashes.
func (r KeptSources) Seed() uint64 { return r.sources.scheme.Seed }

// Revision changes when Saved does.
func (r KeptSources) Revision() uint64 { return r.sources.catalog.Changes().Revision() }

// Saved returns all registrations.
func (r KeptSources) Saved() (all []kept.Part) {
	for _, s := range r.sources.All() {
		if p := savedPart(s.Registration.Key(), s); p.Fields != nil {
			all = append(all, p)
		}
	}
	return all
}

// SavedSince returns the registrations that have changed since a revision. It returns false if it does not know which ones.
func (r KeptSources) SavedSince(revision uint64) (changed []kept.Part, ok bool) {
	keys, ok := r.sources.catalog.Changes().Since(revision)
	for _, key := range keys {
		changed = append(changed, savedPart(key, r.sources.Find(key)))
	}
	return changed, ok
}

// savedPart returns the part of a source, which may be nil.
func savedPart(key registration.Key, s *Source) kept.Part {
	p := kept.Part{Name: key.Unique()}
	if s != nil && !s.recovered {
		m := image.Source{Registration: *s.Member.Registered(), Static: s.Static, By: s.by, GivesWay: s.givesWay.Load()}
		p.Fields = m.Fields()
	}
	return p
}
