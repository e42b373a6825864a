package conductor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"kvconductor/events"
	"kvconductor/tiers"
)

const (
	// unremovedBlocks and unremovedFor are how many blocks a publisher stores, and for how
	// long, before the finding no_removals. Most stores evict by then.
	unremovedBlocks = 10_000
	unremovedFor    = time.Hour
)

// unremoved counts the blocks stored on a medium before the first removal from it.
type unremoved struct {
	blocks  int // objects of a pool
	since   time.Time
	removed bool // one was announced
}

// unremovedOn returns the count for a medium. A pool's master announces removals for
// all media or for none, so a pool has one count.
func (s *source) unremovedOn(medium string) *unremoved {
	d := &s.doctor
	if d.pool {
		medium = ""
	}
	u := d.unremoved[medium]
	if u == nil {
		u = &unremoved{since: s.conductor.now()}
		if d.unremoved == nil {
			d.unremoved = make(map[string]*unremoved)
		}
		if len(d.unremoved) < maxMedia {
			d.unremoved[medium] = u
		}
	}
	return u
}

// lookAtStored counts n blocks, or objects of a pool, that an event stored on a medium.
// Engines announce removals from their devices, and cache runners all of theirs.
func (s *source) lookAtStored(e *events.Event, medium tiers.Medium, n int) {
	if e.Owned || s.reg.ttl(medium.Name) > 0 || medium.Tier == tiers.Device && !s.doctor.pool {
		return
	}
	u := s.unremovedOn(medium.Name)
	before := u.blocks
	u.blocks += n
	if s.doctor.pool && before < unremovedBlocks && u.blocks >= unremovedBlocks {
		s.lookAtUnremoved(s.conductor.now())
	}
}

// lookAtRemoved notes that an event announced a removal from a medium.
func (s *source) lookAtRemoved(e *events.Event, medium tiers.Medium) {
	if e.Owned || medium.Tier == tiers.Device && !s.doctor.pool {
		return
	}
	if u := s.unremovedOn(medium.Name); !u.removed {
		u.removed = true
		s.lookAtUnremoved(s.conductor.now())
	}
}

// lookAtUnremoved reports the media from which nothing is ever removed. A pool has many
// objects or enough time to announce a removal; an engine has both. turn is held.
func (s *source) lookAtUnremoved(now time.Time) {
	d := &s.doctor
	var seen, media []string
	for _, medium := range slices.Sorted(maps.Keys(d.unremoved)) {
		u := d.unremoved[medium]
		many, long := u.blocks >= unremovedBlocks, u.blocks > 0 && now.Sub(u.since) >= unremovedFor
		if u.removed || !long && !many || !d.pool && !(long && many) {
			continue
		}
		media = append(media, medium)
		seen = append(seen, strings.TrimSpace(fmt.Sprintf("%s %d", medium, u.blocks)))
	}
	if slices.Equal(media, d.neverFrom) {
		return
	}
	s.withdraw(FindingNoRemovals)
	d.neverFrom = media
	switch {
	case len(media) == 0:
	case d.pool:
		s.find(FindingNoRemovals, "%s objects were announced and no removal: masters announce neither evictions nor lost clients, so answers keep objects that are gone; register a ttl, such as 1h", seen[0])
	default:
		s.find(FindingNoRemovals, "blocks were announced and no removal on %s: some connectors never announce removals, so answers keep blocks that are gone; register a ttl for the medium, such as {%q: \"1h\"}",
			strings.Join(seen, ", "), media[0])
	}
}
