package main

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/config"
	"example.com/conductor/history"
	"example.com/conductor/history/peer"
	historystore "example.com/conductor/history/store"
)

// shelving is how a server gets blocks from the replicas that share its store, and leaves them
// its own. Nil is a server without a store.
type shelving struct {
	group    *membership.Group
	kept     *historystore.Keeper
	takeover *history.Takeover
	asking   *http.Client
	shards   bool // single shards are brought, the start brings nothing
}

// shelfTTL is the age from which a snapshot in the store is not used any more: engines have replaced
// much of what they held. Where snapshot.interval is long, it is twice as long as that.
const shelfTTL = time.Hour

// newShelving connects the shelf with the settings. asking is the client of peers, keeps says which
// deployments this server writes.
func newShelving(loaded *config.Loaded, members *membership.Group, c *conductor.Conductor, asking *http.Client,
	keeps func(scope.Deployment) bool, log zerolog.Logger) (*shelving, error) {
	cfg := &loaded.Config
	key, err := snapshotKey(loaded)
	if err != nil {
		return nil, err
	}
	kept := historystore.New(historystore.Config{
		Group: members, Conductor: c, Key: key, Log: log, MaxBytes: cfg.Store.ShelfBytes, Interval: cfg.Snapshot.Interval,
		TTL: max(shelfTTL, 2*cfg.Snapshot.Interval), Wanted: keeps,
	})
	return &shelving{
		group: members, kept: kept, asking: asking, shards: cfg.Cluster.Mode == config.Shards,
		takeover: &history.Takeover{Loader: &history.Loader{Conductor: c, TTL: recoveredTTL, Refill: true, Log: log}},
	}, nil
}

// bring brings the blocks of a deployment, from one of the replicas at these URLs or from the store.
func (s *shelving) bring(ctx context.Context, d scope.Deployment, from []string) error {
	_, _, err := s.takeover.BringDeployment(ctx, d, peer.Replicas{Client: s.asking, URLs: from}, s.kept)
	return err
}

// otherReplicas returns the URLs of the other replicas that are alive, those that have run longest first.
// At the start it waits for the first beat, or until that has failed.
func (s *shelving) otherReplicas(ctx context.Context) (urls []string) {
	if s == nil || s.shards {
		return nil
	}
	all := slices.Clone(s.awaitFirstBeat(ctx).Replicas)
	slices.SortStableFunc(all, func(a, b membership.Replica) int { return a.Started.Compare(b.Started) })
	own := ""
	for _, r := range all {
		if r.ID == s.group.ID() {
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

// awaitFirstBeat returns the state behind the first beat. The store may take longer than one beat to be
// connected with.
func (s *shelving) awaitFirstBeat(ctx context.Context) membership.Status {
	patience := time.NewTimer(s.group.Store().Timeout() + 2*membership.Pause)
	defer patience.Stop()
	for {
		next, st := s.group.Changed(), s.group.Status()
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

// restores returns the store as a place to start from, none without a store, or with shards.
func (s *shelving) restores() []history.Place {
	if s == nil || s.shards {
		return nil
	}
	return []history.Place{s.kept}
}

// progress returns how far the takeover under way has come.
func (s *shelving) progress() conductor.Progress {
	if s == nil {
		return conductor.Progress{}
	}
	return s.takeover.Loader.Progress()
}
