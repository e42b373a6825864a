package main

import (
	"cmp"
	"runtime"
	"syscall"
	"time"

	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/watch"
	"example.com/conductor/history/file"
	"example.com/conductor/history/peer"
	"example.com/conductor/internal/memory"
	"example.com/conductor/redact"
)

// viewers is how many clients may look at /admin/live at once, a team of operators. Each costs its
// own writes alone.
const viewers = 16

// watching returns what the page and /admin/stats are made of.
func watching(s *serving) watch.Config {
	out := watch.Config{
		Conductor: s.conductor, Version: version, Viewers: viewers, KeepQueries: s.cfg.UI.RecentQueries, Draining: s.listeners.Draining,
		Snapshots: func() watch.Snapshots { return snapshotsOf(s.snapshots != nil, s.keeper.Status(), time.Now()) },
		Replicas:  func() []watch.Replica { return replicasOf(s.peers.Peers(), s.peers.Drift()) },
		Targets:   func() []watch.Target { return targetsOf(s.targets.List()) },
		Process:   s.entry.processOf(&s.listeners.Connections),
		Refused:   func() uint64 { return s.slots.Stats().Refused + s.budget.Refused() + s.entry.Limited() },
	}
	if members := s.replicas.members; members != nil {
		out.Store = func() *watch.Store { return storeOf(members) }
	}
	if !s.cfg.UI.Enabled {
		out.Viewers = 0
	}
	return out
}

// processOf returns a function that tells of this process and of who may ask it what.
func (g *gate) processOf(clients *server.Connections) func() watch.Process {
	limit, _ := memory.Available()
	return func() watch.Process {
		open, n := clients.Stats(), g.Counts()
		return watch.Process{
			CPUs: runtime.GOMAXPROCS(0), CPUTime: cpuTime(), Memory: memory.Resident(), MemoryLimit: limit,
			Connections: open.Open, Addresses: open.Addresses, MostOpen: open.Most,
			Auth: watch.Auth{File: g.credentialsFiles()[0], Tokens: n.Tokens, Certificates: n.Certificates, Roles: n.Roles,
				Tenants: n.Tenants, Others: n.Others, Anonymous: n.Anonymous, Loopback: n.Loopback},
		}
	}
}

// cpuTime returns the time that this process has had a CPU, 0 where the system does not tell.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// settingsOf returns a function that tells the name of the settings file and the settings in use.
func settingsOf(file string, in *settingsInUse) func() (string, []admin.Setting) {
	return func() (string, []admin.Setting) {
		c := in.copySettings()
		var all []admin.Setting
		for _, s := range c.Settings() {
			all = append(all, admin.Setting(s))
		}
		return file, all
	}
}

// snapshotsOf returns the state of the server's own snapshots.
func snapshotsOf(enabled bool, st file.Status, now time.Time) watch.Snapshots {
	out := watch.Snapshots{Enabled: enabled, Bytes: st.Last.Bytes, Error: st.Error}
	if out.Error == "" && st.Unkept != nil {
		out.Error = "registrations: " + st.Unkept.Error()
	}
	if st.Written > 0 {
		last, age := st.Last.Time.UTC(), max(now.Sub(st.Last.Time), 0).Seconds()
		out.Last, out.Age = &last, &age
	}
	return out
}

// States of a peer that no comparison has a result for.
const (
	neverCompared = "none"
	unreachable   = "unreachable"
)

// replicasOf returns what the comparisons know of each peer.
func replicasOf(peers []string, d peer.Drift) []watch.Replica {
	out := make([]watch.Replica, len(peers))
	for i, peer := range peers {
		p := d.Peers[peer]
		out[i] = watch.Replica{Peer: redact.URL(peer), State: cmp.Or(p.Worst, neverCompared), Differences: p.Different, Behind: p.Behind,
			Error: p.Error}
		if !p.Compared.IsZero() {
			at := p.Compared.UTC()
			out[i].Compared = &at
		}
		if p.Error != "" {
			out[i].State = unreachable
		}
	}
	return out
}

// targetsOf returns how far the targets of discovery have come.
func targetsOf(all []discovery.State) []watch.Target {
	out := make([]watch.Target, len(all))
	for i := range all {
		s := &all[i]
		out[i] = watch.Target{Instance: s.Instance, Tenant: s.Tenant, URL: s.URL, State: s.Word(), Addresses: s.Addresses,
			Sources: s.Sources, Error: s.Error}
		if n := s.Name(); n.Rank != discovery.AllRanks {
			out[i].Rank = &n.Rank
		}
	}
	return out
}

// storeOf returns the state of the store and the replicas that share it.
func storeOf(members *membership.Group) *watch.Store {
	st, now := members.Status(), time.Now()
	out := &watch.Store{Address: members.Store().Address(), Up: st.Up, Since: st.Since.UTC(), Error: st.Error, Lost: st.Lost,
		Unproven: len(st.Unproven), Members: []watch.Member{}}
	for _, r := range st.Replicas {
		m := watch.Member{ID: r.ID, URL: redact.URL(r.URL), Self: r.ID == members.ID(), Version: r.Version, Weight: r.Weight,
			Started: r.Started.UTC()}
		m.Lease = max(r.Expires.Sub(now), 0).Seconds()
		out.Members = append(out.Members, m)
	}
	return out
}
