package tiers

import "slices"

// Roster is the instances rows are wanted for, prepared once for many folds. One that
// NewRoster made never changes and may be shared.
type Roster struct {
	at    []int32 // instance id -> position plus one, 0 for none
	zeros []Row
	ranks []Rank // what the rows of zeros point into
}

// noMedia is what every row of zeros shares.
var noMedia = []MediumCount{{Name: NameDevice}, {Name: NameHost}, {Name: NameDisk}}

// NewRoster prepares instances, whose ids are distinct.
func NewRoster(instances []Instance) *Roster {
	r := new(Roster)
	r.fill(instances)
	return r
}

// Zeros returns the rows of instances for which neither they nor their pools hold anything, in the order
// NewRoster got them. They are not to be changed.
func (r *Roster) Zeros() []Row { return r.zeros }

// fill prepares instances in place of those before.
func (r *Roster) fill(instances []Instance) {
	clear(r.at)
	ranks := 0
	for _, in := range instances {
		ranks += len(in.Ranks)
	}
	r.zeros, r.ranks = r.zeros[:0], slices.Grow(r.ranks[:0], ranks)
	for i, in := range instances {
		for int(in.ID) >= len(r.at) {
			r.at = append(r.at, 0)
		}
		r.at[in.ID] = int32(i) + 1
		first := len(r.ranks)
		for _, rank := range in.Ranks {
			r.ranks = append(r.ranks, Rank{Rank: rank})
		}
		own := r.ranks[first:]
		slices.SortFunc(own, func(a, b Rank) int { return int(a.Rank) - int(b.Rank) })
		own = slices.Compact(own)
		r.ranks = r.ranks[:first+len(own)]
		r.zeros = append(r.zeros, Row{Media: noMedia, Ranks: slices.Clip(own)})
	}
}

// position returns where an instance is in the roster.
func (r *Roster) position(instance int32) (int32, bool) {
	if instance < 0 || int(instance) >= len(r.at) || r.at[instance] == 0 {
		return 0, false
	}
	return r.at[instance] - 1, true
}
