package discovery

import (
	"cmp"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// Target is an engine, or a fleet of them, that is asked where it publishes.
type Target struct {
	// Registration has the fields that its sources have in common. Endpoints come from the
	// engine, as do Type, Model and BlockSize where they are not given. Rank is for an engine
	// that does not tell its ports.
	registration.Registration
	//
	// Without a URL the registration has endpoints, type and model, and lacks its block size.
	URL    string
	Static bool // of the configuration
	// GivesWay lets other targets take its place, and other sources those of its own: see
	// conductor.RegisterOptions.
	GivesWay bool
}

// hostOf returns the host of a URL.
func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// AllRanks is the rank in the name of a target with a URL, whose engine tells its ranks.
const AllRanks = registration.AllRanks

// Name returns what identifies the target. It is not Key, that of a source: a target with a URL has many.
func (t *Target) Name() registration.Key {
	n := registration.Key{Instance: t.Instance, Tenant: cmp.Or(t.Tenant, scope.DefaultTenant), Rank: AllRanks}
	if t.URL == "" {
		n.Rank = t.Rank
	}
	return n
}

// endpoint is an endpoint of a target under the name that its field has.
type endpoint struct{ name, value string }

// endpoints returns the endpoints that a registration names.
func (t *Target) endpoints() []endpoint {
	all := []endpoint{{"endpoint", t.Endpoint}, {"replay_endpoint", t.ReplayEndpoint}, {"snapshot_endpoint", t.SnapshotEndpoint}}
	return slices.DeleteFunc(all, func(e endpoint) bool { return e.value == "" })
}

// isExempt reports whether the endpoints of a rank of t need no permission, because the configuration names them, or names the
// machine at address, which was asked. Any other endpoint is a claim of the engine: a socket of this machine, or the
// address of another one.
func (r *Rank) isExempt(t *Target, address netip.Addr) bool {
	for _, endpoint := range []string{r.Endpoint, r.Replay, r.Snapshot} {
		if t.URL != "" && endpoint != "" && !isAt(endpoint, address) {
			return false
		}
	}
	return t.Static
}

// covers reports whether a target that exists already does what a new one asks for: a client may repeat what the
// configuration says.
func covers(old, t *Target) bool {
	return old.URL == t.URL && (old.Static || !t.Static) && reflect.DeepEqual(old.Registration, t.Registration)
}

// conflictError returns an error that names the first field in which a target differs from the one of the same name.
func conflictError(old, t *Target) error {
	e := &registration.ConflictError{Key: t.Key(), Field: "discover", Have: old.URL, Want: t.URL}
	if old.URL == t.URL {
		field, have, got := old.Registration.Diff(&t.Registration, "")
		if field == "" {
			field, have, got = registration.DiffLive(&old.Registration, &t.Registration)
		}
		if field != "" {
			e.Field, e.Have, e.Want = field, have, got
		}
	}
	return e
}

// checkTarget returns the fault of a target, nil if it has none. The error is a *invalid.FieldError.
func checkTarget(t *Target) error {
	if t.Instance == "" {
		return invalid.Field("instance_id", "invalid_value", "instance_id must not be empty")
	}
	if strings.EqualFold(t.Events, registration.EventsNone) {
		if t.URL != "" {
			return invalid.Field("discover", "conflict",
				"discover must be left out with events %s: the engine would be asked where it publishes", registration.EventsNone)
		}
		return invalid.Field("block_size", "invalid_value", "block_size must be a number with events %s: no event tells it",
			registration.EventsNone)
	}
	trial := t.Registration // with values in the place of those that the engine tells
	trial.BlockSize = cmp.Or(trial.BlockSize, 1)
	if t.URL != "" {
		if err := checkURL(t.URL); err != nil {
			return invalid.Field("discover", "invalid_value", "discover: %v", err)
		}
		if all := t.endpoints(); len(all) > 0 {
			return invalid.Field(all[0].name, "conflict", "%s comes from the engine with discover", all[0].name)
		}
		trial.Endpoint = "tcp://127.0.0.1:1"
		trial.Type, trial.Model = cmp.Or(trial.Type, registration.TypeVLLM), cmp.Or(trial.Model, "model")
	} else if strings.HasPrefix(t.Endpoint, "bind:") {
		return invalid.Field("block_size", "invalid_value", "block_size must be a number where publishers connect to us")
	}
	err := trial.Normalize(true)
	switch {
	case err != nil || !trial.IsPool():
		return err
	case t.URL == "":
		return invalid.Field("block_size", "invalid_value", "block_size must be a number for type %s", trial.Type)
	}
	return invalid.Field("discover", "invalid_value", "discover is for engines, not for type %s", trial.Type)
}

// admitTarget returns why one more target may not be added, nil if it may. If there are too many, it ends one that gives way.
// mu is held.
func (m *Manager) admitTarget(t *Target) error {
	if !t.Static && m.opts.Reaches != nil && t.URL == "" {
		for _, f := range t.endpoints() {
			if err := m.opts.Reaches(f.value); err != nil {
				return invalid.Field(f.name, "invalid_value", "%s %v", f.name, err)
			}
		}
	}
	if m.opts.Bounds == nil {
		return nil
	}
	all, ofTenant := m.opts.Bounds()
	same := 0
	for _, other := range m.targets {
		if !other.Static && other.Tenant == t.Tenant {
			same++
		}
	}
	tenantFull := ofTenant > 0 && !t.Static && same >= ofTenant
	switch {
	case !tenantFull && (all <= 0 || len(m.targets) < all) || m.giveWay(t, tenantFull):
		return nil
	}
	return m.opts.TooMany(tenantFull)
}

// giveWay ends the newest target that gives way to t, of its tenant where that has too many. It
// reports false if there is none. mu is held.
func (m *Manager) giveWay(t *Target, tenantFull bool) bool {
	var found *target
	for _, other := range m.targets {
		if other.givesWay.Load() && !t.GivesWay && (!tenantFull || other.Tenant == t.Tenant) &&
			(found == nil || other.began.After(found.began)) {
			found = other
		}
	}
	if found == nil {
		return false
	}
	m.opts.Log.Info().Str("instance_id", found.Instance).Str("tenant", found.Tenant).Str("for",
		t.Instance).Msg("target gives way, because there are too many")
	m.removeTarget(found)
	return true
}
