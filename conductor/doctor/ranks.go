package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A source is registered as one rank, and its batches say of which rank they are. What that means follows from all the
// ranks they have named:
//
//	the registered one alone   it is as it should be
//	another one alone          the registration has a wrong rank
//	several                    the publisher sends several ranks over one socket, with one sequence, as engines with
//	                           attention data parallelism do. The source is enough for all of them
//
// A batch that names none is of the registered rank. Where another source is registered for a rank that is named here, or
// follows the same publisher, blocks count twice, whatever the registration says.

// maxRanks bounds the ranks of a source that are remembered. Publishers choose them.
const maxRanks = 1024

// Ranks are the ranks that a source's batches have named, compared with the registered one. All methods are safe for
// concurrent use.
type Ranks struct {
	key        string // of the source
	registered int
	findings   *Findings

	judging sync.Mutex // held by Judge; taken before mu, of any source

	mu    sync.Mutex
	named []int  // ascending, at most maxRanks; guarded by mu
	twin  string // a source that was registered before for the same publisher, and its endpoint; guarded by mu
}

// NewRanks returns the ranks of a source that is registered as one rank. Its findings are about them.
func NewRanks(key string, registered int, findings *Findings) *Ranks {
	return &Ranks{key: key, registered: registered, findings: findings}
}

// Add adds ranks to those that batches have named, and reports whether one of them is new.
func (r *Ranks) Add(ranks ...int) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rank := range ranks {
		if at, known := slices.BinarySearch(r.named, rank); !known && len(r.named) < maxRanks {
			r.named, news = slices.Insert(r.named, at, rank), true
		}
	}
	return news
}

// Named returns the ranks that batches have named, ascending.
func (r *Ranks) Named() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.named)
}

// Contains reports whether batches have named a rank.
func (r *Ranks) Contains(rank int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, named := slices.BinarySearch(r.named, rank)
	return named
}

// NamesOnlyOthers reports whether batches have named ranks, and not this one.
func (r *Ranks) NamesOnlyOthers(rank int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, named := slices.BinarySearch(r.named, rank)
	return !named && len(r.named) > 0
}

// HasOthers reports whether batches have named another rank than the registered one.
func (r *Ranks) HasOthers() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.named) > 1 || len(r.named) == 1 && r.named[0] != r.registered
}

// Reset forgets what an epoch of the publisher has shown. A publisher of several ranks goes on being one when it is started
// again, whichever of them it sends first.
func (r *Ranks) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.named) < 2 {
		r.named = nil
	}
}

// SetTwin says which source was registered before for the same publisher, "" for none.
func (r *Ranks) SetTwin(key, endpoint string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.twin = ""; key != "" {
		r.twin = key + " follows the same publisher " + endpoint
	}
}

// twinText names the source that was registered before for the same publisher, "" if there is none.
func (r *Ranks) twinText() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.twin
}

// Claim is another source of the same instance that is registered for a rank.
type Claim struct {
	Key string // "" if there is none
	// Elsewhere is true if its batches have named other ranks alone.
	Elsewhere bool
}

// Judge reports or withdraws the findings about ranks. claimed returns who is registered for a rank of the instance.
func (r *Ranks) Judge(claimed func(rank int) Claim) {
	r.judging.Lock()
	defer r.judging.Unlock()
	named := r.Named()
	conflict := r.conflict(named, claimed)
	if conflict == "" {
		r.findings.Withdraw(FindingRank)
	} else {
		r.findings.Update(FindingRank, "%s", conflict)
	}
	if conflict != "" || len(named) < 2 {
		r.findings.Withdraw(FindingSeveralRanks)
		return
	}
	r.findings.Update(FindingSeveralRanks,
		"the publisher sends %s over one socket: blocks count for the rank that their batch names, and this source is enough for all of "+
			"them", listRanks(named))
}

// conflict says how the ranks that are named contradict registrations, "" if they do not.
func (r *Ranks) conflict(named []int, claimed func(rank int) Claim) string {
	switch twin := r.twinText(); {
	case twin != "" && len(named) > 1:
		return fmt.Sprintf("%s, which sends %s over one socket: their blocks add up; unregister one of the two", twin, listRanks(named))
	case twin != "":
		return twin + ": one of the two is registered with a wrong endpoint; correct that one, or unregister it"
	case len(named) == 1 && named[0] != r.registered:
		return r.wrongRank(named[0], claimed(named[0]))
	}
	for _, rank := range named {
		if rank == r.registered {
			continue
		}
		if other := claimed(rank); other.Key != "" && !other.Elsewhere {
			return fmt.Sprintf("the publisher sends %s over one socket, and %s is registered for rank %d too: their blocks add up; "+
				"unregister %s, or register it as a rank that its publisher alone sends", listRanks(named), other.Key, rank, other.Key)
		}
	}
	return ""
}

// wrongRank is the text about a publisher that sends a single rank, which is not the registered one.
func (r *Ranks) wrongRank(rank int, other Claim) string {
	text := fmt.Sprintf("batches carry data-parallel rank %d, registered is %d", rank, r.registered)
	switch {
	case other.Elsewhere:
		return fmt.Sprintf("%s, and %s has that rank and sends another: the endpoints of the two are mixed up; exchange them", text,
			other.Key)
	case other.Key != "":
		return fmt.Sprintf("%s, and %s claims that rank too: their blocks add up; check the endpoints of both", text, other.Key)
	}
	return fmt.Sprintf("%s: blocks count for rank %d; register dp_rank %d in place of %s", text, rank, rank, r.key)
}

// shownRanks is how many ranks, or runs of them, a text names.
const shownRanks = 8

// listRanks returns ascending ranks as text, such as "ranks 0 to 3 and 7".
func listRanks(ranks []int) string {
	var runs []string
	for from := 0; from < len(ranks); {
		to := from
		for to+1 < len(ranks) && ranks[to+1] == ranks[to]+1 {
			to++
		}
		if to < from+2 { // two ranks are no run
			to = from
		}
		text := strconv.Itoa(ranks[from])
		if to > from {
			text += " to " + strconv.Itoa(ranks[to])
		}
		runs, from = append(runs, text), to+1
	}
	if len(runs) > shownRanks+1 {
		runs = append(runs[:shownRanks], "others")
	}
	last := len(runs) - 1
	if last == 0 {
		return "ranks " + runs[0]
	}
	return "ranks " + strings.Join(runs[:last], ", ") + " and " + runs[last]
}
