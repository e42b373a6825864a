package shards

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
)

// Report is the outcome of a walk.
type Report struct {
	Config Config  `json:"config"`
	Blocks float64 `json:"blocks"` // of all ranks
	Steps  []Step  `json:"steps"`
}

// Step is one thing that happened, and the placement after it.
type Step struct {
	Name        string  `json:"name"`
	ShardsMoved int     `json:"shards_moved"` // shards with an owner that they had not before
	CopiesMoved int     `json:"copies_moved"` // such owners
	BytesMoved  float64 `json:"bytes_moved"`  // snapshots that those owners load
	// Orphans are shards all of whose owners died. Their blocks come from engines' replays.
	Orphans int `json:"orphans"`
	// Unowned are shards that have fewer owners after the step than they must have.
	Unowned  int     `json:"unowned"`
	Replicas []Usage `json:"replicas"`
}

// Usage is the work of one replica.
type Usage struct {
	ID        string  `json:"id"`
	Weight    float64 `json:"weight"`
	Shards    int     `json:"shards"`
	Primaries int     `json:"primaries"`
	Load      float64 `json:"load"` // in replicas of weight 1
	need
	capacity need
}

// over reports whether a replica needs more than it has.
func (u *Usage) over() bool { return u.Memory > u.capacity.Memory || u.Cores > u.capacity.Cores }

// maxToMean returns the largest load of a replica for its weight, to that of all.
func (s *Step) maxToMean() float64 {
	most, total, weights := 0.0, 0.0, 0.0
	for _, u := range s.Replicas {
		most, total, weights = max(most, u.Load/u.Weight), total+u.Load, weights+u.Weight
	}
	if total == 0 {
		return 1
	}
	return most / (total / weights)
}

// most returns the largest part of its memory and of its cores that a replica needs, and the
// most bytes a second that one receives.
func (s *Step) most() (memory, cores, network float64) {
	for _, u := range s.Replicas {
		memory, cores, network = max(memory, u.Memory/u.capacity.Memory), max(cores, u.Cores/u.capacity.Cores), max(network, u.Network)
	}
	return memory, cores, network
}

// namedErrors is how many causes an error lists. A fleet that is too small fails in every step.
const namedErrors = 3

// Err returns an error if in a step a replica needs more than it has, or a shard has fewer
// owners than it must have.
func (r *Report) Err() error {
	var errs []error
	for _, s := range r.Steps {
		if s.Unowned > 0 {
			errs = append(errs, fmt.Errorf("%s: %d shards have too few owners", s.Name, s.Unowned))
		}
		for _, u := range s.Replicas {
			if u.over() {
				errs = append(errs, fmt.Errorf("%s: %s needs %.1f GiB and %.1f cores for %d shards, it has %.1f and %.1f",
					s.Name, u.ID, u.Memory/(1<<30), u.Cores, u.Shards, u.capacity.Memory/(1<<30), u.capacity.Cores))
			}
		}
	}
	if more := len(errs) - namedErrors; more > 0 {
		errs = append(errs[:namedErrors], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// Table writes the report for people.
func (r *Report) Table(w io.Writer) {
	c := &r.Config
	fmt.Fprintf(w, "%d ranks of %d models (zipf %g) with %.4g blocks, %d owners a shard on %d replicas of %g GiB and %g cores\n",
		c.Workers, c.Models, c.Zipf, r.Blocks, c.Owners, c.Replicas, c.Memory, c.Cores)
	fmt.Fprintf(w, "a rank holds %g blocks, stores %g a second and is asked %g times a second\n\n", c.Blocks, c.Stored, c.Queries)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "step\tshards moved\tcopies\tGB\tload max/mean\torphans\tunowned\tmost memory\tcores\tMB/s in\n")
	for _, s := range r.Steps {
		memory, cores, network := s.most()
		fmt.Fprintf(t, "%s\t%d\t%d\t%.2f\t%.2f\t%d\t%d\t%.0f %%\t%.0f %%\t%.0f\n", s.Name, s.ShardsMoved, s.CopiesMoved, s.BytesMoved/1e9,
			s.maxToMean(), s.Orphans, s.Unowned, 100*memory, 100*cores, network/1e6)
	}
	fmt.Fprintf(t, "\nreplica at the start\tshards\tprimary of\tload\tGiB\tcores\tMB/s in\n")
	for _, u := range r.Steps[0].Replicas {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.2f\t%.1f\t%.1f\t%.0f\n", u.ID, u.Shards, u.Primaries, u.Load, u.Memory/(1<<30), u.Cores,
			u.Network/1e6)
	}
	t.Flush()
}
