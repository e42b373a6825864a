package discovery

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"strings"

	"kvconductor/conductor"
)

// Target is an engine, or a fleet of them, that is asked where it publishes.
type Target struct {
	// Registration has the fields that its sources have in common. Endpoints come from the
	// engine, as do Type, Model and BlockSize where they are not given. Rank is for an engine
	// that does not tell its ports.
	conductor.Registration
	//
	// Without a URL the registration has endpoints, type and model, and lacks its block size.
	URL    string
	Static bool // of the configuration
}

// host returns the host of the URL.
func (t *Target) host() string {
	u, err := url.Parse(t.URL)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// Name identifies a target.
type Name struct {
	Instance, Tenant string
	Rank             int // AllRanks where the engine tells them
}

// AllRanks is the rank of a target with a URL.
const AllRanks = -1

// Name returns the name of the target.
func (t *Target) Name() Name {
	n := Name{t.Instance, cmp.Or(t.Tenant, conductor.DefaultTenant), AllRanks}
	if t.URL == "" {
		n.Rank = t.Rank
	}
	return n
}

// same reports whether two targets are equal.
func same(a, b *Target) bool {
	return a.URL == b.URL && a.Static == b.Static && reflect.DeepEqual(a.Registration, b.Registration)
}

// check returns the fault of a target, nil if it has none. The error is a *conductor.FieldError.
func check(t *Target) error {
	if t.Instance == "" {
		return conductor.Invalid("instance_id", "invalid_value", "instance_id must not be empty")
	}
	if t.URL == "" {
		return checkAuto(t)
	}
	if err := checkURL(t.URL); err != nil {
		return conductor.Invalid("discover", "invalid_value", "discover: %v", err)
	}
	for _, f := range []struct{ name, value string }{{"endpoint", t.Endpoint}, {"replay_endpoint", t.ReplayEndpoint}, {"snapshot_endpoint", t.SnapshotEndpoint}} {
		if f.value != "" {
			return conductor.Invalid(f.name, "conflict", "%s comes from the engine with discover", f.name)
		}
	}
	trial := t.Registration
	trial.Endpoint = "tcp://127.0.0.1:1"
	trial.Type, trial.Model = cmp.Or(trial.Type, conductor.TypeVLLM), cmp.Or(trial.Model, "model")
	if trial.BlockSize == 0 {
		trial.BlockSize = 1
	}
	if err := trial.Check(); err != nil {
		return err
	}
	if trial.Pool() {
		return conductor.Invalid("discover", "invalid_value", "discover is for engines, not for type %s", trial.Type)
	}
	return nil
}

// checkAuto is Check for a target without a URL.
func checkAuto(t *Target) error {
	if strings.HasPrefix(t.Endpoint, "bind:") {
		return conductor.Invalid("block_size", "invalid_value", "block_size must be a number where publishers connect to us")
	}
	trial := t.Registration
	trial.BlockSize = 1
	if err := trial.Check(); err != nil {
		return err
	}
	if trial.Pool() {
		return conductor.Invalid("block_size", "invalid_value", "block_size must be a number for type %s", trial.Type)
	}
	return nil
}

// admit returns why one more target may not be added. mu is held.
func (m *Manager) admit(t *Target) error {
	if !t.Static && m.opts.Reaches != nil && t.URL == "" {
		for _, f := range []struct{ name, value string }{{"endpoint", t.Endpoint}, {"replay_endpoint", t.ReplayEndpoint}, {"snapshot_endpoint", t.SnapshotEndpoint}} {
			if f.value == "" {
				continue
			}
			if err := m.opts.Reaches(f.value); err != nil {
				return conductor.Invalid(f.name, "invalid_value", "%s %v", f.name, err)
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
	switch {
	case all > 0 && len(m.targets) >= all:
		return conductor.ErrTooManySources
	case ofTenant > 0 && !t.Static && same >= ofTenant:
		return fmt.Errorf("%w for its tenant: limits.max_tenant_sources allows %d", conductor.ErrTooManySources, ofTenant)
	}
	return nil
}
