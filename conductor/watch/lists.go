package watch

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/explain"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/scope"
)

// maxListed bounds the rows of each list of a document. Those that lack something come first.
const maxListed = 100

// Target is an engine, or a fleet of engines, that is asked where it publishes.
type Target struct {
	Instance  string `json:"instance_id"`
	Tenant    string `json:"tenant_id"`
	Rank      *int   `json:"dp_rank"` // nil where the engine tells its ranks
	URL       string `json:"url"`     // "" where the first events tell the block size
	State     string `json:"state"`   // found, waiting or learning
	Addresses int    `json:"addresses"`
	Sources   int    `json:"sources"`
	Error     string `json:"error"` // of the last look, "" without one
}

// lists are what a document has besides sources: they change seldom, so that a difference has them
// only then.
type lists struct {
	targets   []Target
	reporters []ingest.Reporter
	topics    []explain.UnclaimedTopic
	vain      []conductor.UnregisteredQuery
}

// listsRow is lists as a document has them.
type listsRow struct {
	Discovery *targetsRow   `json:"discovery,omitempty"`
	LMCache   *reportersRow `json:"lmcache,omitempty"`
	Unclaimed *topicsRow    `json:"unclaimed,omitempty"`
	Vain      *vainRow      `json:"unregistered,omitempty"`
}

// vainRow is what queries ask for and no engine is registered for.
type vainRow struct {
	Models   int             `json:"models"`
	Severity doctor.Severity `json:"severity"`
	List     []vainQueryRow  `json:"list"`
}

type vainQueryRow struct {
	Tenant    string `json:"tenant_id"`
	Model     string `json:"modelname"`
	BlockSize int    `json:"block_size"`
	Advice    string `json:"advice"`
}

// vainFor returns what the tenants of a client ask for in vain.
func (l *lists) vainFor(tenants scope.Tenants) *vainRow {
	out := &vainRow{List: []vainQueryRow{}, Severity: doctor.SeverityOf(codeVain)}
	for _, u := range l.vain {
		if tenants.Has(u.Tenant) {
			out.List = append(out.List, vainQueryRow{u.Tenant, u.Model, u.BlockSize, u.Advice})
		}
	}
	out.Models = len(out.List)
	return out
}

// Codes of what leads to no source. docs/findings.md has a section for each.
const (
	codeWaiting   = "discovery"       // an engine has not told where it publishes
	codeUnclaimed = "unclaimed"       // LMCache reports what no source takes
	codeTopic     = "unclaimed_topic" // no source claims a topic
	codeVain      = "not_registered"  // queries ask for what no engine is registered for
)

// findings counts what leads to no source.
func (l *listsRow) findings() (n findingsRow) {
	n.add(l.Discovery.Severity, l.Discovery.Waiting)
	n.add(l.LMCache.Severity, l.LMCache.Unclaimed)
	n.add(l.Unclaimed.Severity, l.Unclaimed.Topics)
	n.add(l.Vain.Severity, l.Vain.Models)
	return n
}

type topicsRow struct {
	Topics   int             `json:"topics"`
	Severity doctor.Severity `json:"severity"`
	List     []topicRow      `json:"list"`
}

type topicRow struct {
	Endpoint string    `json:"endpoint"`
	Topic    string    `json:"topic"`
	Rank     *int      `json:"dp_rank"` // nil where the batches name none
	From     string    `json:"from"`
	Messages uint64    `json:"messages"`
	Last     time.Time `json:"last"`
	Instance string    `json:"instance_id"`
	Model    string    `json:"modelname"`
	Advice   string    `json:"advice"`
}

type targetsRow struct {
	Targets  int `json:"targets"`
	Waiting  int `json:"waiting"`
	Learning int `json:"learning"`
	// Severity is that of one that waits.
	Severity doctor.Severity `json:"severity"`
	List     []Target        `json:"list"`
}

type reportersRow struct {
	Instances int `json:"instances"`
	Unclaimed int `json:"unclaimed"` // instances
	// Severity is that of an unclaimed one.
	Severity doctor.Severity `json:"severity"`
	List     []reporterRow   `json:"list"`
}

type reporterRow struct {
	Instance    string         `json:"instance_id"`
	FollowedBy  []string       `json:"followed_by"`
	State       string         `json:"state"`
	Outcome     string         `json:"outcome"`
	Incarnation uint64         `json:"incarnation"`
	Seq         uint64         `json:"seq"`
	Last        time.Time      `json:"last"`
	Unclaimed   []unclaimedRow `json:"unclaimed"`
}

type unclaimedRow struct {
	Emitter string `json:"instance_id"`
	Model   string `json:"modelname"`
	Entries uint64 `json:"entries"`
}

// visibleTo returns the part of the lists that clients of some tenants may see.
func (l *lists) visibleTo(tenants scope.Tenants) (out listsRow) {
	t := &targetsRow{List: []Target{}, Severity: doctor.SeverityOf(codeWaiting)}
	r := &reportersRow{List: []reporterRow{}, Severity: doctor.SeverityOf(codeUnclaimed)}
	for _, target := range l.targets {
		if !tenants.Has(target.Tenant) {
			continue
		}
		t.List = append(t.List, target)
		switch target.State {
		case "waiting":
			t.Waiting++
		case "learning":
			t.Learning++
		}
	}
	for i := range l.reporters {
		reporter, ok := l.reporters[i].For(tenants)
		if !ok {
			continue
		}
		row := reporterOf(&reporter)
		if len(row.Unclaimed) > 0 {
			r.Unclaimed++
		}
		r.List = append(r.List, row)
	}
	t.Targets, r.Instances = len(t.List), len(r.List)
	slices.SortStableFunc(t.List, func(a, b Target) int { return cmp.Compare(calmness(a.State), calmness(b.State)) })
	slices.SortStableFunc(r.List, func(a, b reporterRow) int { return cmp.Compare(calmness(a.State), calmness(b.State)) })
	t.List, r.List = t.List[:min(len(t.List), maxListed)], r.List[:min(len(r.List), maxListed)]
	return listsRow{t, r, l.topicsFor(tenants), l.vainFor(tenants)}
}

// topicsFor returns the topics that no source claims, for clients of all tenants: they are no tenant's.
func (l *lists) topicsFor(tenants scope.Tenants) *topicsRow {
	out := &topicsRow{List: []topicRow{}, Severity: doctor.SeverityOf(codeTopic)}
	if !tenants.All() {
		return out
	}
	for _, t := range l.topics {
		row := topicRow{t.Endpoint, t.Topic, nil, t.From, t.Messages, t.At.UTC(), t.Instance, t.Model, t.Advice}
		if t.Rank >= 0 {
			row.Rank = &t.Rank
		}
		out.List = append(out.List, row)
	}
	out.Topics = len(out.List)
	return out
}

// calmness orders states: those that ask for attention come first.
func calmness(state string) int {
	return slices.Index([]string{"waiting", "unclaimed", "learning", "heard", "found", "followed"}, state)
}

func reporterOf(r *ingest.Reporter) reporterRow {
	row := reporterRow{
		Instance: r.Instance, FollowedBy: append([]string{}, r.FollowedBy...), State: r.State(), Outcome: r.Outcome.String(),
		Incarnation: r.Incarnation, Seq: r.Seq, Last: r.At.UTC(), Unclaimed: make([]unclaimedRow, 0, len(r.Unclaimed)),
	}
	for _, u := range r.Unclaimed {
		row.Unclaimed = append(row.Unclaimed, unclaimedRow{u.Emitter, u.Model, u.Entries})
	}
	return row
}

// changedFor returns those lists that look to clients of some tenants other than they did before.
func (l *lists) changedFor(was *lists, tenants scope.Tenants) (out listsRow) {
	before, now := was.visibleTo(tenants), l.visibleTo(tenants)
	if !reflect.DeepEqual(before.Discovery, now.Discovery) {
		out.Discovery = now.Discovery
	}
	if !reflect.DeepEqual(before.LMCache, now.LMCache) {
		out.LMCache = now.LMCache
	}
	if !reflect.DeepEqual(before.Unclaimed, now.Unclaimed) {
		out.Unclaimed = now.Unclaimed
	}
	if !reflect.DeepEqual(before.Vain, now.Vain) {
		out.Vain = now.Vain
	}
	return out
}
