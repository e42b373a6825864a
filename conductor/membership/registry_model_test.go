package membership

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

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
			paced(t, func(p *pace) (check func()) { return converge(t, p, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func converge(t *testing.T, pace *pace, random *rand.Rand) (check func()) {
	url := redistest.Start(t).URL()
	var peers []*peer
	for _, id := range []string{"a", "b", "c"} {
		p := newPeer(t, url, id)
		p.members.cfg.Now = time.Now
		peers = append(peers, p)
	}
	pace.step(peers...)
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
			p.register(source(instance, model))
			truth[instance] = model
			pace.apart(p)
		case 5, 6:
			p.drop(instance) // which it may not have heard of
			delete(truth, instance)
			pace.apart(p)
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
			pace.step(p)
		}
	}
	for range 4 {
		pace.step(peers...)
	}
	var want []string
	for instance, model := range truth {
		want = append(want, instance+":"+model)
	}
	slices.Sort(want)
	return func() { holds(t, strings.Join(want, " "), peers...) }
}

// pace is the time between two changes. A replica that gets no processor between reading its clock and
// writing makes its change younger by that time, so the order of changes is theirs while none takes longer
// than the pause.
type pace struct {
	t              *testing.T
	pause, slowest time.Duration
}

// paced takes longer pauses until the replicas were fast enough for the order of their changes, and checks then.
func paced(t *testing.T, try func(*pace) (check func())) {
	t.Helper()
	for pause := 40 * time.Millisecond; ; pause *= 2 {
		p := &pace{t: t, pause: pause}
		check := try(p)
		if p.slowest+5*time.Millisecond < pause {
			check()
			return
		}
		t.Logf("a replica took %s to write, with pauses of %s", p.slowest, pause)
	}
}

// step lets each replica beat and sync.
func (p *pace) step(peers ...*peer) {
	for _, one := range peers {
		one.members.Beat(p.t.Context())
		began := time.Now()
		one.registry.Sync(p.t.Context())
		p.slowest = max(p.slowest, time.Since(began))
	}
}

// apart waits until the store tells the next change from this one.
func (p *pace) apart(of *peer) {
	p.t.Helper()
	client := of.members.Store().Client()
	began, err := client.Time(p.t.Context()).Result()
	must.Succeed(p.t, err)
	for now := began; now.Sub(began) < p.pause; {
		now, err = client.Time(p.t.Context()).Result()
		must.Succeed(p.t, err)
	}
}
