package tiers

import "slices"

// Roster is the instances rows are wanted for, prepared once for many folds. It never
// changes and may be shared.
type Roster struct {
	at    []int32 // instance id -> position plus one, 0 for none
	zeros []Row
}

// noMedia is what every row of zeros shares.
var noMedia = []MediumCount{{Name: NameDevice}, {Name: NameHost}, {Name: NameDisk}}

// NewRoster prepares instances, whose ids are distinct.
func NewRoster(instances []Instance) *Roster {
	n := 0
	for _, in := range instances {
		n += len(in.Ranks)
	}
	ranks := make([]Rank, 0, n) // of all rows
	r := &Roster{zeros: make([]Row, 0, len(instances))}
	for i, in := range instances {
		for int(in.ID) >= len(r.at) {
			r.at = append(r.at, 0)
		}
		r.at[in.ID] = int32(i) + 1
		first := len(ranks)
		for _, rank := range in.Ranks {
			ranks = append(ranks, Rank{Rank: rank})
		}
		own := ranks[first:]
		slices.SortFunc(own, func(a, b Rank) int { return int(a.Rank) - int(b.Rank) })
		r.zeros = append(r.zeros, Row{Media: noMedia, Ranks: slices.Clip(slices.Compact(own))})
	}
	return r
}

// ZeroRows returns the rows of instances for which neither they nor their pools hold anything,
// in the order NewRoster got them. The caller must not change them.
func (r *Roster) ZeroRows() []Row { return r.zeros }

// positionOf returns where an instance is in the roster.
func (r *Roster) positionOf(instance int32) (int32, bool) {
	if instance < 0 || int(instance) >= len(r.at) || r.at[instance] == 0 {
		return 0, false
	}
	return r.at[instance] - 1, true
}
