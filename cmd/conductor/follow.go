package main

import (
	"context"
	"errors"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/config"
	"example.com/conductor/events"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
)

// following registers the sources of the configuration: those with endpoints at the Conductor,
// those whose engine has to be asked at the Manager.
type following struct {
	conductor *conductor.Conductor
	targets   *discovery.Manager
	shared    *membership.Registry // of replicas; nil for none
}

// registerSource starts a source.
func (f *following) registerSource(s config.Source, replace bool) error {
	var err error
	if s.Learns() {
		err = f.targets.Add(targetOf(s), replace)
	} else {
		// Endpoints have been checked, those of --workers by Dynamo's rules, which let some pass that
		// can never work.
		err = f.conductor.Register(s.Registration, ingest.RegisterOptions{Static: true, AnyEndpoint: true, Replace: replace})
	}
	if err == nil {
		f.shared.Configured(entryOf(s))
	}
	return err
}

// unregisterSource stops a source. One that is gone is no error.
func (f *following) unregisterSource(s config.Source) error {
	entry := entryOf(s)
	f.shared.Unconfigured(entry.Name()) // first, so that the registry does not register it again
	if s.Learns() {
		t := targetOf(s)
		f.targets.Remove(t.Name())
		return nil
	}
	if _, err := f.conductor.Unregister(s.Key()); err != nil && !errors.Is(err, ingest.ErrNotFound) {
		return err
	}
	return nil
}

// changeSource replaces a source by another one of its key.
func (f *following) changeSource(was, is config.Source) error {
	if was.Learns() == is.Learns() {
		return f.registerSource(is, true)
	}
	if err := f.unregisterSource(was); err != nil {
		return err
	}
	return f.registerSource(is, true)
}

// entryOf returns a source as the registry of replicas has it.
func entryOf(s config.Source) membership.Source {
	return membership.Source{Registration: s.Registration, Discover: s.Discover}
}

// targetOf returns a source whose engine is asked.
func targetOf(s config.Source) discovery.Target {
	return discovery.Target{Registration: s.Registration, URL: s.Discover, Static: true}
}

// newTargets returns the Manager of all engines that are asked.
func newTargets(cfg *config.Config, c *cluster.Asked, sockets *zmq.Sockets, allowed *reaching, log zerolog.Logger) *discovery.Manager {
	limits := wire.DefaultLimits
	limits.MaxPayload = int(cfg.Limits.MaxPayload)
	decode := func(batch []byte) (events.Batch, error) { return wire.Decode(batch, limits) }
	return discovery.New(discovery.Options{
		Registry: c, Rules: allowed.currentRules, TokenFile: cfg.Discovery.TokenFile, Log: log,
		Reaches: func(endpoint string) error { return zmq.CheckReach(allowed.currentRules(), endpoint) },
		Removed: c.TargetRemoved,
		Bounds:  c.SourceBounds,
		TooMany: c.TooManySources, AskedAtOnce: roomOf(cfg.Limits).asked,
		Learn: func(ctx context.Context, t *discovery.Target, r discovery.Rank, exempt bool) (int, error) {
			rules := allowed.currentRules()
			if exempt {
				rules = nil
			}
			claim := zmq.Claim{Pod: t.Instance, Model: t.Model, Rank: r.Rank}
			return discovery.LearnBlockSize(ctx, sockets.TransportFor(claim, rules), r, decode)
		},
	})
}
