package membership

import (
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// TestRegistryTellsARecovery: a replica that starts hears what was unregistered while it was away. Its snapshot brings nothing
// of that back, however many there are: neither sources nor those of engines that are asked. What no replica knew is not
// among them: a name that a client made up is no engine.
func TestRegistryTellsARecovery(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a := newPeer(t, url, "a")
	b := newPeer(t, url, "b", func(o *conductor.Options) { o.Gate, o.MaxSources = make(chan struct{}), 5 })
	asked := Source{Registration: registration.Registration{Instance: "e"}, Discover: "http://127.0.0.1:1"}
	must.Succeed(t, a.registry.cfg.Targets.Add(discovery.Target{Registration: asked.Registration, URL: asked.Discover}, false))
	a.registry.Registered(asked)
	var gone []registration.Registration
	for i := range 9 {
		r := source(fmt.Sprint("s", i), "m")
		a.register(r)
		gone = append(gone, r)
	}
	beat(a)
	for _, r := range gone {
		a.unregister(r.Instance)
	}
	a.registry.cfg.Targets.Remove(asked.Name().Key)
	a.registry.Unregistered(asked.Name())
	if _, err := a.clients.Unregister(registration.Key{Instance: "made-up"}); err == nil {
		t.Error("a name without a source is noted as unregistered")
	}
	beat(a, b)
	taken := b.conductor.Sources().Snapshots().Recover(0)
	made := source("made-up", "m")
	made.Rank = 1
	for _, r := range append(gone, source("e", "m"), source("e@10.0.0.1", "m"), source("stays", "m"), source("made-up", "m"), made) {
		must.Succeed(t, taken.Source(image.Source{Registration: r}))
	}
	var got []string
	for _, s := range b.conductor.Services() {
		got = append(got, s.Key().String())
	}
	if all := strings.Join(got, " "); all != "made-up|default|1 stays|default|0" {
		t.Errorf("the snapshot brings %s", all)
	}
}
