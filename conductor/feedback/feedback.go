package feedback

import (
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
)

// Report is what a router or an engine reports of a request that an instance has served.
type Report struct {
	Tenant   string // as the instance is registered, never empty
	Instance string
	Medium   string // where the blocks were, "" for any
	Matched  int    // tokens that an answer said the instance had
	Cached   int    // tokens that the instance found
}

// Result is what the latest reports say of an instance and medium.
type Result struct {
	// Precision is the part of the promised tokens that were there, Recall the part of the tokens
	// there that were promised; both are 1 if there were none. They are averages of some 50 reports: each
	// weighs 2 % less than the next one.
	Precision, Recall float64
	Reports           uint64 // since the start
	Resynced          bool   // this report began it
}

const (
	// memory is how much of the past a report leaves.
	memory = 1 - 1.0/50
	// enoughReports is how many reports there are, since the start or the last resync, before the error counts.
	enoughReports = 20
	// resyncPause is the least time between two resyncs of an instance that reports lead to.
	resyncPause = 5 * time.Minute
	// maxMedia bounds the media that an instance has reports of.
	maxMedia = 8

	// reasonFeedback is the reason of a resync that reports led to.
	reasonFeedback = "feedback"
)

// Options are what a Table needs of its surroundings.
type Options struct {
	Catalog *catalog.Catalog // says which instances are registered
	// Resync lets a source start over from a replay, and reports whether it can. It must not call the Table.
	Resync func(key registration.Key, reason string) bool
	Now    func() time.Time
	Log    *zerolog.Logger // of findings
}

// Table has what was reported of each instance.
type Table struct {
	opts Options

	mu        sync.Mutex
	instances map[registration.Key]*instance // by name and tenant, rank 0; guarded by mu
	resyncs   uint64                         // guarded by mu
	maxError  float64                        // see Tune; guarded by mu
	series    status.SourceSeries            // see Tune; guarded by mu
}

// instance is what was reported of an instance.
type instance struct {
	media    map[string]*counts
	resynced time.Time
	drops    drops
}

// counts are tokens: the floats are a moving average since the last resync, the integers all since the start.
type counts struct {
	matched, cached, both          float64
	recent                         uint64 // reports in the average
	contradicts                    bool   // the error was too large when there were enough reports last
	allMatched, allCached, allBoth uint64
	reports                        uint64
}

// New returns a table without reports.
func New(opts Options) *Table {
	return &Table{opts: opts, instances: make(map[registration.Key]*instance)}
}

// Tune sets which part of the reported tokens may be wrong before the sources of an instance start over, 0 for any, and which
// instances have series of their own.
func (t *Table) Tune(maxError float64, series status.SourceSeries) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if maxError != t.maxError {
		for _, of := range t.instances {
			for _, n := range of.media {
				n.contradicts = false // by another bound
			}
		}
	}
	t.maxError, t.series = maxError, series
}

// Add counts a report about an instance, whose registered sources are members. If the error of the instance passes the bound
// of Tune, its sources get the finding feedback_error and start over from a replay. It returns an *invalid.FieldError if the
// instance has reports of too many other media.
func (t *Table) Add(r *Report, members []*catalog.Member) (Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := registration.Key{Instance: r.Instance, Tenant: r.Tenant}
	of := t.instances[key]
	if of == nil {
		of = &instance{media: make(map[string]*counts)}
		t.instances[key] = of
	}
	n := of.media[r.Medium]
	if n == nil {
		if len(of.media) >= maxMedia {
			return Result{}, invalid.Field("medium", "too_many", "the instance has reports of %d media already", maxMedia)
		}
		n = new(counts)
		of.media[r.Medium] = n
	}
	n.add(r)
	t.checkDrops(of, r, members)
	res := Result{Reports: n.reports}
	res.Precision, res.Recall = n.ratios()
	if t.maxError > 0 && n.recent >= enoughReports {
		if n.contradicts = n.wrong() > t.maxError; n.contradicts {
			res.Resynced = t.reportErrors(of, r.Medium, members)
		} else {
			t.withdrawErrors(of, members)
		}
	}
	return res, nil
}

func (n *counts) add(r *Report) {
	both := min(r.Matched, r.Cached)
	n.matched = n.matched*memory + float64(r.Matched)
	n.cached = n.cached*memory + float64(r.Cached)
	n.both = n.both*memory + float64(both)
	n.allMatched += uint64(r.Matched)
	n.allCached += uint64(r.Cached)
	n.allBoth += uint64(both)
	n.recent++
	n.reports++
}

// ratios returns precision and recall.
func (n *counts) ratios() (precision, recall float64) {
	part := func(of float64) float64 {
		if of == 0 {
			return 1
		}
		return n.both / of
	}
	return part(n.matched), part(n.cached)
}

// wrong returns the larger of the parts that were promised in vain and that were there without a promise.
func (n *counts) wrong() float64 {
	precision, recall := n.ratios()
	return 1 - min(precision, recall)
}

// reportErrors gives the sources of an instance the finding, and lets them start over unless they did so a short time ago. It
// reports whether some source did. t.mu is held.
func (t *Table) reportErrors(of *instance, medium string, members []*catalog.Member) (resynced bool) {
	n, now := of.media[medium], t.opts.Now()
	precision, recall := n.ratios()
	again := of.resynced.IsZero() || now.Sub(of.resynced) >= resyncPause
	for _, m := range members {
		if m.Registration.IsApproximate() {
			continue // answers promise nothing of it
		}
		m.Findings.Report(doctor.FindingFeedback,
			"reports say that %.0f %% of the tokens which answers promise are there%s, and that answers promise %.0f %% of those that "+
				"are; feedback.max_error allows %.0f %% to be wrong: compare block_size, salt and adapter of the registration with the "+
				"engine's",
			100*precision, on(medium), 100*recall, 100*t.maxError)
		m.LogFindings(t.opts.Log)
		if again && t.opts.Resync(m.Key(), reasonFeedback) {
			resynced = true
		}
	}
	if resynced {
		of.resynced = now
		t.resyncs++
		n.matched, n.cached, n.both, n.recent = 0, 0, 0, 0 // what was wrong before says nothing about the replay
	}
	return resynced
}

func on(medium string) string {
	if medium == "" {
		return ""
	}
	return " on " + medium
}

// withdrawErrors withdraws the finding of an instance unless reports of another medium are still wrong. t.mu is held.
func (t *Table) withdrawErrors(of *instance, members []*catalog.Member) {
	for _, n := range of.media {
		if n.recent >= enoughReports {
			n.contradicts = n.wrong() > t.maxError
		}
		if n.contradicts {
			return
		}
	}
	for _, m := range members {
		m.Findings.Withdraw(doctor.FindingFeedback)
	}
}
