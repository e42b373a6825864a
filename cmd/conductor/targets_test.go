package main

import (
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// TestRemovedTargetsStayAway: while the server recovers, no snapshot brings sources of an engine back that is no longer asked.
func TestRemovedTargetsStayAway(t *testing.T) {
	c := conductor.New(conductor.Options{Log: zerolog.Nop(), Gate: make(chan struct{})})
	defer c.Close()
	m := newTargets(&config.Config{}, cluster.NewAsked(c), nil, new(reaching), zerolog.Nop())
	defer m.Close()
	target := discovery.Target{URL: "http://127.0.0.1:1", Registration: registration.Registration{Instance: "e"}}
	must.Succeed(t, m.Add(target, false))
	m.Remove(target.Name())
	must.Succeed(t, c.Sources().Snapshots().Recover(0).Source(image.Source{Registration: registration.Registration{
		Instance: "e", Endpoint: "tcp://127.0.0.1:2", Type: registration.TypeVLLM, Model: "m", BlockSize: 16}}))
	if all := c.Services(); len(all) != 0 {
		t.Errorf("a snapshot brings %s", all[0].Key())
	}
}
