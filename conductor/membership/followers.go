package membership

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"example.com/conductor/conductor"
)

// States of entries that are no states of a stream.
const (
	StateAsked   = "asked"   // the engine is asked where it publishes
	StateRefused = "refused" // the replica does not take the entry over
)

// tellEvery is the pause between two texts of what this replica follows.
const tellEvery = time.Second

// freshFor is how long what others follow is not read again.
const freshFor = time.Second

// followers is what the store has of what replicas follow.
type followers struct {
	mu   sync.Mutex
	read time.Time                    // guarded by mu
	all  map[string]map[string][]Name // states of names by replica; guarded by mu
}

// Follower is a replica that follows an entry.
type Follower struct {
	Replica // ID, and URL if the replica is alive
	State   string
}

// Row is a source that is in the registry, or that a replica follows without that: an engine that is
// asked has sources of its own.
type Row struct {
	Name
	Source     *Source // nil for one that is not in the registry
	Configured bool
	By         string    // replica where it was registered
	Since      time.Time // by the clock of the store
	Followers  []Follower
}

// followedByState returns the names of the entries that this replica follows, asks or refuses, by their state.
func (g *Registry) followedByState() map[string][]Name {
	all := make(map[string][]Name)
	for state, keys := range g.cfg.Conductor.States() {
		for _, key := range keys {
			all[string(state)] = append(all[string(state)], Name{Key: key})
		}
	}
	for _, t := range g.cfg.Targets.List() {
		s := Source{Registration: t.Registration, Discover: t.URL}
		all[StateAsked] = append(all[StateAsked], s.Name())
	}
	g.mu.Lock()
	for n, e := range g.known {
		if e.why != nil {
			all[StateRefused] = append(all[StateRefused], n)
		}
	}
	g.mu.Unlock()
	for _, names := range all {
		slices.SortFunc(names, compareNames)
	}
	return all
}

// compareNames orders names by tenant, instance and rank.
func compareNames(a, b Name) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Rank, b.Rank))
}

// writeFollowed writes to the store what this replica follows, at most once in tellEvery and only if it has changed.
func (g *Registry) writeFollowed(ctx context.Context, st *Status) error {
	now := g.cfg.Group.cfg.Now()
	if !g.toldAt.IsZero() && g.told != "" && now.Sub(g.toldAt) < tellEvery {
		return nil
	}
	text, err := json.Marshal(g.followedByState())
	if err != nil || string(text) == g.told {
		return err
	}
	if _, err := g.runScript(ctx, telling, []string{"run", "follows"}, st.Run, g.cfg.Group.ID(), text); err != nil {
		return err
	}
	g.told, g.toldAt = string(text), now
	return nil
}

// readFollowers reads from the store what all replicas follow, at most once in freshFor. It returns false if the store is not
// reached: then the result is as old as its last answer.
func (g *Registry) readFollowers(ctx context.Context) (map[string]map[string][]Name, bool) {
	f, shared := &g.followers, g.cfg.Group.Store()
	f.mu.Lock()
	defer f.mu.Unlock()
	up := g.cfg.Group.Status().Up
	if now := g.cfg.Group.cfg.Now(); up && (f.read.IsZero() || now.Sub(f.read) >= freshFor) {
		ctx, cancel := context.WithTimeout(ctx, shared.Timeout())
		defer cancel()
		texts, err := shared.Client().HGetAll(ctx, shared.Key("follows")).Result()
		if up = err == nil; up {
			f.read, f.all = now, make(map[string]map[string][]Name, len(texts))
			for id, text := range texts {
				var all map[string][]Name
				if json.Unmarshal([]byte(text), &all) == nil { // else it is of another version
					f.all[id] = all
				}
			}
		}
	}
	return f.all, up
}

// List returns the registry, and which replicas follow what. It is false if the store did not tell
// what other replicas follow: then that is as old as its last answer.
func (g *Registry) List(ctx context.Context) (rows []Row, complete bool) {
	told, complete := g.readFollowers(ctx)
	told = maps.Clone(told)
	if told == nil {
		told = make(map[string]map[string][]Name)
	}
	told[g.cfg.Group.ID()] = g.followedByState()
	all := make(map[Name]*Row)
	g.mu.Lock()
	for n, e := range g.known {
		if !e.Gone {
			s := e.source()
			all[n] = &Row{Name: n, Source: &s, Configured: e.Configured, By: e.By, Since: time.UnixMilli(e.at).UTC()}
		}
	}
	g.mu.Unlock()
	alive := append([]Replica{}, g.cfg.Group.Status().Replicas...)
	if !slices.ContainsFunc(alive, func(r Replica) bool { return r.ID == g.cfg.Group.ID() }) {
		alive = append(alive, g.cfg.Group.cfg.Replica)
	}
	for _, r := range alive {
		for state, names := range told[r.ID] {
			for _, n := range names {
				if all[n] == nil {
					all[n] = &Row{Name: n}
				}
				all[n].Followers = append(all[n].Followers, Follower{r, state})
			}
		}
	}
	for _, row := range all {
		rows = append(rows, *row)
	}
	slices.SortFunc(rows, func(a, b Row) int { return compareNames(a.Name, b.Name) })
	return rows, complete
}

// Redacted returns the rows of some tenants, without secrets if the reader may not see them.
func Redacted(rows []Row, view conductor.View) []Row {
	reader := view.Reader()
	rows = slices.DeleteFunc(rows, func(r Row) bool { return !reader.Tenants.Has(r.Tenant) })
	if reader.Secrets {
		return rows
	}
	for i := range rows {
		r := &rows[i]
		if r.Source != nil {
			s := *r.Source
			view.Redact(&s.Registration)
			s.Discover = ""
			r.Source = &s
		}
		for j := range r.Followers {
			r.Followers[j].URL = ""
		}
	}
	return rows
}

// Store returns whether the store is up, and since when that is so. known is false without a store.
func (g *Registry) Store() (up bool, since time.Time, known bool) {
	if g == nil {
		return false, time.Time{}, false
	}
	st := g.cfg.Group.Status()
	return st.Up, st.Since, true
}
