package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/tiers"
)

const (
	// unremovedBlocks and unremovedFor are how many blocks a publisher stores, and for how
	// long, before the finding no_removals. Most stores evict by then.
	unremovedBlocks = 10_000
	unremovedFor    = time.Hour
	// maxMedia bounds the media that are counted. No publisher has more than a handful.
	maxMedia = 64
)

// unremoved counts the blocks stored on a medium before the first removal from it.
type unremoved struct {
	blocks  int // objects of a pool
	since   time.Time
	removed bool // one was announced
}

// unremovedOn returns the count for a medium. A pool's master announces removals for
// all media or for none, so a pool has one count.
func (d *Doctor) unremovedOn(medium string) *unremoved {
	if d.reg.Pool {
		medium = ""
	}
	u := d.unremoved[medium]
	if u == nil {
		u = &unremoved{since: d.Findings.now()}
		if d.unremoved == nil {
			d.unremoved = make(map[string]*unremoved)
		}
		if len(d.unremoved) < maxMedia {
			d.unremoved[medium] = u
		}
	}
	return u
}

// observeStored counts n blocks, or objects of a pool, that an event stored on a medium.
// Engines announce removals from their devices, and cache runners all of theirs.
func (d *Doctor) observeStored(e *events.Event, medium tiers.Medium, n int) {
	if e.Owned || d.reg.Expiring(medium.Name) || medium.Tier == tiers.Device && !d.reg.Pool {
		return
	}
	u := d.unremovedOn(medium.Name)
	before := u.blocks
	u.blocks += n
	if d.reg.Pool && before < unremovedBlocks && u.blocks >= unremovedBlocks {
		d.Unremoved(d.Findings.now())
	}
}

// observeRemoved records that an event has announced a removal from a medium.
func (d *Doctor) observeRemoved(e *events.Event, medium tiers.Medium) {
	if e.Owned || medium.Tier == tiers.Device && !d.reg.Pool {
		return
	}
	if u := d.unremovedOn(medium.Name); !u.removed {
		u.removed = true
		d.Unremoved(d.Findings.now())
	}
}

// Unremoved reports the media from which nothing is ever removed. A pool has many
// objects or enough time to announce a removal; an engine has both.
func (d *Doctor) Unremoved(now time.Time) {
	var seen, media []string
	for _, medium := range slices.Sorted(maps.Keys(d.unremoved)) {
		u := d.unremoved[medium]
		many, long := u.blocks >= unremovedBlocks, u.blocks > 0 && now.Sub(u.since) >= unremovedFor
		if u.removed || !long && !many || !d.reg.Pool && !(long && many) {
			continue
		}
		media = append(media, medium)
		seen = append(seen, strings.TrimSpace(fmt.Sprintf("%s %d", medium, u.blocks)))
	}
	if slices.Equal(media, d.neverFrom) {
		return
	}
	d.Findings.Withdraw(FindingNoRemovals)
	d.neverFrom = media
	switch {
	case len(media) == 0:
	case d.reg.Pool:
		d.Findings.Report(FindingNoRemovals,
			"%s objects were announced and none was removed: the master announces neither evictions nor lost clients, so answers go on "+
				"counting objects that are gone; register a ttl, such as 1h", seen[0])
	default:
		d.Findings.Report(FindingNoRemovals,
			"blocks were announced and none was removed on %s: some connectors never announce removals, so answers go on counting blocks "+
				"that are gone; register a ttl for the medium, such as {%q: \"1h\"}",
			strings.Join(seen, ", "), media[0])
	}
}
