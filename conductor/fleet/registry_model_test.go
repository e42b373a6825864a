package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// keys are all keys of the registry and the membership.
var keys = []string{"version", "run", "replicas", "says", "beats", "revision", "sources", "ends", "follows"}

// TestRegistryConverges lets clients change sources at three replicas. Replicas miss beats, the
// store is emptied, and falls back to what it had some time ago. In the end all replicas follow what
// was changed last.
func TestRegistryConverges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			converge(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func converge(t *testing.T, random *rand.Rand) {
	url := redistest.Start(t).URL()
	var peers []*peer
	for _, id := range []string{"a", "b", "c"} {
		p := newPeer(t, url, id)
		p.registry.cfg.Now = time.Now
		peers = append(peers, p)
	}
	step := func(p *peer) {
		p.members.Beat(t.Context())
		p.registry.Sync(t.Context())
	}
	for _, p := range peers {
		step(p)
	}
	client, name := peers[0].members.Store().Client(), peers[0].members.Store().Key
	saved := make(map[string]string)
	save := func() {
		clear(saved)
		for _, key := range keys {
			if text, err := client.Dump(t.Context(), name(key)).Result(); err == nil {
				saved[key] = text
			}
		}
	}
	save()
	truth := make(map[string]string)
	for range 120 {
		p := peers[random.IntN(len(peers))]
		instance, model := fmt.Sprint("i", random.IntN(5)), fmt.Sprint("m", random.IntN(3))
		switch random.IntN(16) {
		case 0, 1, 2, 3, 4:
			if p.followed(instance).Model == model {
				continue // it changes nothing
			}
			p.register(source(instance, model))
			truth[instance] = model
			apart(t, p)
		case 5, 6:
			if _, err := p.clients.Unregister(conductor.Key{Instance: instance}); err == nil {
				delete(truth, instance)
				apart(t, p)
			}
		case 7:
			must.Succeed(t, client.FlushAll(t.Context()).Err())
		case 8:
			save()
		case 9: // the store fails over to a node that had heard less
			must.Succeed(t, client.FlushAll(t.Context()).Err())
			for key, text := range saved {
				must.Succeed(t, client.Restore(t.Context(), name(key), 0, text).Err())
			}
		default:
			step(p)
		}
	}
	for range 4 {
		for _, p := range peers {
			step(p)
		}
	}
	var want []string
	for instance, model := range truth {
		want = append(want, instance+":"+model)
	}
	slices.Sort(want)
	holds(t, strings.Join(want, " "), peers...)
}

// apart waits until the store tells the next change from this one, also when a replica gets no
// processor between reading its clock and writing: the store takes that pause for a younger change.
func apart(t *testing.T, p *peer) {
	t.Helper()
	client := p.members.Store().Client()
	began, err := client.Time(t.Context()).Result()
	must.Succeed(t, err)
	for now := began; now.Sub(began) < 40*time.Millisecond; {
		now, err = client.Time(t.Context()).Result()
		must.Succeed(t, err)
	}
}
