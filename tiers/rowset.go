package tiers

import "slices"

// RowSet is the instances rows are wanted for, prepared once for many folds. It never
// changes and may be shared.
type RowSet struct {
	at    []int32 // instance id -> position plus one, 0 for none
	zeros []Row
}

// noMedia is what every row of zeros shares.
var noMedia = []MediumCount{{Name: NameDevice}, {Name: NameHost}, {Name: NameDisk}}

// NewRowSet prepares instances, whose ids are distinct.
func NewRowSet(instances []Instance) *RowSet {
	n := 0
	for _, in := range instances {
		n += len(in.Ranks)
	}
	ranks := make([]Rank, 0, n) // of all rows
	r := &RowSet{zeros: make([]Row, 0, len(instances))}
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
// in the order NewRowSet got them. The caller must not change them.
func (r *RowSet) ZeroRows() []Row { return r.zeros }

// PositionOf returns where an instance is in the RowSet.
func (r *RowSet) PositionOf(instance int32) (int32, bool) {
	if instance < 0 || int(instance) >= len(r.at) || r.at[instance] == 0 {
		return 0, false
	}
	return r.at[instance] - 1, true
}
