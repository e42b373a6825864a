package main

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/fleet"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/config"
	historystore "example.com/conductor/history/store"
)

// shelving is how a server gets blocks from the replicas that share its store, and leaves them
// its own. Nil is a server without a store.
type shelving struct {
	fleet    *fleet.Fleet
	shelf    *historystore.Shelf
	takeover *historystore.Takeover
	shards   bool // single shards are brought, the start brings nothing
}

// shelfTTL is the age from which a snapshot in the store is not used any more: engines have replaced
// much of what they held. Where store.shelf_interval is long, it is twice as long as that.
const shelfTTL = time.Hour

// newShelving connects the shelf with the settings. asking is the client of peers, keeps says which
// deployments this server writes; members is nil without a store.
func newShelving(loaded *config.Loaded, members *fleet.Fleet, c *conductor.Conductor, asking *http.Client,
	keeps func(scope.Deployment) bool, metrics *prometheus.Registry, log zerolog.Logger) (*shelving, error) {
	if members == nil {
		return nil, nil
	}
	cfg := &loaded.Config
	key, err := snapshotKey(loaded)
	if err != nil {
		return nil, err
	}
	s := historystore.New(historystore.Config{
		Fleet: members, Conductor: c, Key: key, Log: log,
		MaxBytes: cfg.Store.ShelfBytes, Interval: cfg.Store.ShelfInterval, TTL: max(shelfTTL, 2*cfg.Store.ShelfInterval), Wanted: keeps,
	})
	metrics.MustRegister(s)
	return &shelving{fleet: members, shelf: s, shards: cfg.Cluster.Mode == config.Shards,
		takeover: &historystore.Takeover{Conductor: c, Client: asking, Shelf: s, TTL: recoveredTTL, Log: log}}, nil
}

// others returns the URLs of the other replicas that are alive, those that have run longest first.
// At the start it waits for the first beat, or until that has failed.
func (s *shelving) others(ctx context.Context) (urls []string) {
	if s == nil || s.shards {
		return nil
	}
	all := slices.Clone(s.first(ctx).Replicas)
	slices.SortStableFunc(all, func(a, b fleet.Replica) int { return a.Started.Compare(b.Started) })
	own := ""
	for _, r := range all {
		if r.ID == s.fleet.ID() {
			own = r.URL // that of the process before this one, too
		}
	}
	for _, r := range all {
		if r.URL != "" && r.URL != own {
			urls = append(urls, r.URL)
		}
	}
	return urls
}

// first returns the state behind the first beat. The store may take longer than one beat to be
// connected with.
func (s *shelving) first(ctx context.Context) fleet.Status {
	patience := time.NewTimer(s.fleet.Store().Timeout() + 2*fleet.Pause)
	defer patience.Stop()
	for {
		next, st := s.fleet.Changed(), s.fleet.Status()
		if st.Up || st.Refused {
			return st
		}
		select {
		case <-next:
		case <-patience.C:
			return st
		case <-ctx.Done():
			return st
		}
	}
}

// restore fills the Conductor from the shelf.
func (s *shelving) restore(ctx context.Context) {
	if s != nil && !s.shards {
		s.shelf.Restore(ctx, s.takeover.TTL)
	}
}

// progress returns how far that has come.
func (s *shelving) progress() conductor.Progress {
	if s == nil {
		return conductor.Progress{}
	}
	return s.shelf.Progress()
}
