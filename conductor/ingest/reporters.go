package ingest

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/scope"
)

const (
	// maxReporters bounds the instances of LMCache that are known by name, some 5 MB with the
	// longest names. One more takes the place of the one heard the longest ago.
	maxReporters = 1024
	// maxUnclaimed bounds the emitters and models without a source that are known of an instance.
	maxUnclaimed = 8
	// reporterAge is how long an instance is known that reports no more.
	reporterAge = time.Hour
	// UnclaimedAge is how long that no source is registered for something matters, as in the alert.
	UnclaimedAge = 10 * time.Minute
)

// Reporter is an instance of LMCache that has reported lately.
type Reporter struct {
	Instance string
	// By are the tenants that its credentials may name.
	By scope.Tenants
	// FollowedBy are the tenants with a source for it, sorted.
	FollowedBy []string
	// Incarnation and Seq are those of the last batch that was applied.
	Incarnation, Seq uint64
	Outcome          lmcache.Outcome // of the last batch
	At               time.Time       // of that batch
	Applied          uint64          // entries that a source took
	// Unclaimed is what it reports and no source is registered for.
	Unclaimed []Unclaimed
}

// Unclaimed are reports that a source of the emitter and model would apply.
type Unclaimed struct {
	Emitter, Model string
	Entries        uint64
}

// State returns unclaimed if a source is missing, else followed, or heard where no source follows the
// instance and it has reported nothing for one.
func (r *Reporter) State() string {
	switch {
	case len(r.Unclaimed) > 0:
		return "unclaimed"
	case len(r.FollowedBy) > 0 || r.Applied > 0:
		return "followed"
	}
	return "heard"
}

// For returns what a client of some tenants sees: all of an instance that reports for these tenants
// alone, and of another one what their sources apply. It reports false for all others.
func (r Reporter) For(tenants scope.Tenants) (Reporter, bool) {
	if tenants.All() {
		return r, true
	}
	r.FollowedBy = slices.DeleteFunc(slices.Clone(r.FollowedBy), func(name string) bool { return !tenants.Has(name) })
	if tenants.Covers(r.By) && len(r.By) > 0 {
		return r, true
	}
	r.By, r.Unclaimed, r.Applied = nil, nil, 0
	return r, len(r.FollowedBy) > 0
}

// reporters knows the instances of LMCache that have reported.
type reporters struct {
	mu  sync.Mutex                // comes before Hub.mu
	all map[reporterKey]*reporter // guarded by mu
}

type reporterKey struct{ by, instance string }

// reporter is a Reporter as it is kept. Its Unclaimed have the times of strays.
type reporter struct {
	Reporter
	strays []time.Time // of the last entry of each Unclaimed
}

// noteBatch takes a batch of a client of some tenants with its outcome.
func (p *Pushes) noteBatch(by scope.Tenants, b *lmcache.Batch, done Pushed, now time.Time) {
	p.heard.noteReport(by, b, done, now, func(emitter, model string) bool {
		return slices.ContainsFunc(p.of(by.Has), func(h *lmcache.Hub) bool { return h.Claimed(emitter, model) })
	})
}

// noteReport takes a batch with its outcome. claimed says whether a source is registered for an emitter
// and a model.
func (k *reporters) noteReport(by scope.Tenants, b *lmcache.Batch, p Pushed, now time.Time, claimed func(emitter, model string) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := reporterKey{by.Key(), b.Instance}
	r := k.all[key]
	if r == nil {
		k.makeRoom()
		r = &reporter{Reporter: Reporter{Instance: b.Instance, By: slices.Clone(by)}}
		k.all[key] = r
	}
	r.Outcome, r.At = p.Outcome, now
	if p.Outcome != lmcache.Applied {
		return
	}
	r.Incarnation, r.Seq = b.Incarnation, b.Seq
	if r.Applied += uint64(len(b.Entries) - p.Unclaimed); p.Unclaimed == 0 {
		return
	}
	emitter, model, missing := b.Emitter(), "", false
	for i := range b.Entries {
		if m := b.Entries[i].Model; m != model {
			model, missing = m, !claimed(emitter, m)
		}
		if missing {
			r.stray(emitter, model, now)
		}
	}
}

// makeRoom leaves room for one more. mu is held.
func (k *reporters) makeRoom() {
	if k.all == nil {
		k.all = make(map[reporterKey]*reporter)
	}
	if len(k.all) < maxReporters {
		return
	}
	var oldest reporterKey
	for key, r := range k.all {
		if old := k.all[oldest]; old == nil || r.At.Before(old.At) {
			oldest = key
		}
	}
	delete(k.all, oldest)
}

// stray counts an entry that no source is registered for.
func (r *reporter) stray(emitter, model string, now time.Time) {
	at := slices.IndexFunc(r.Unclaimed, func(u Unclaimed) bool { return u.Emitter == emitter && u.Model == model })
	if at < 0 {
		if len(r.Unclaimed) >= maxUnclaimed {
			return
		}
		at = len(r.Unclaimed)
		r.Unclaimed, r.strays = append(r.Unclaimed, Unclaimed{Emitter: emitter, Model: model}), append(r.strays, now)
	}
	r.Unclaimed[at].Entries++
	r.strays[at] = now
}

// list returns copies, and forgets instances and strays that are too old, or that claimed reports a
// source for by now.
func (k *reporters) list(now time.Time, claimed func(r *Reporter, emitter, model string) bool) (all []Reporter) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, r := range k.all {
		if now.Sub(r.At) >= reporterAge {
			delete(k.all, key)
			continue
		}
		var left []Unclaimed
		var strays []time.Time
		for i, u := range r.Unclaimed {
			if now.Sub(r.strays[i]) < UnclaimedAge && !claimed(&r.Reporter, u.Emitter, u.Model) {
				left, strays = append(left, u), append(strays, r.strays[i])
			}
		}
		r.Unclaimed, r.strays = left, strays
		out := r.Reporter
		out.Unclaimed = slices.Clone(left)
		all = append(all, out)
	}
	return all
}

// Reporters returns the instances of LMCache that have reported lately, sorted by name.
func (p *Pushes) Reporters() []Reporter {
	p.mu.Lock()
	hubs := maps.Clone(p.hubs)
	p.mu.Unlock()
	all := p.heard.list(p.now(), func(r *Reporter, emitter, model string) bool {
		for tenant, h := range hubs {
			if r.By.Has(tenant) && h.Claimed(emitter, model) {
				return true
			}
		}
		return false
	})
	followers := make(map[string][]string) // tenants by emitter, sorted
	for _, tenant := range slices.Sorted(maps.Keys(hubs)) {
		for emitter := range hubs[tenant].Emitters() {
			followers[emitter] = append(followers[emitter], tenant)
		}
	}
	for i := range all {
		r := &all[i]
		r.FollowedBy = slices.DeleteFunc(slices.Clone(followers[r.Instance]), func(tenant string) bool { return !r.By.Has(tenant) })
	}
	slices.SortFunc(all, func(a, b Reporter) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.By.Key(), b.By.Key()))
	})
	return all
}
