package bench

import (
	"flag"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"kvconductor/index"
)

var soakFor = flag.Duration("soak", 500*time.Millisecond, "how long TestSoak runs")

func TestSoak(t *testing.T) {
	k := Soak{Duration: *soakFor, Workers: 12, Writers: 2, Readers: 2, Prompts: 500, Margin: 16 << 20, Progress: t.Output()}
	res, err := k.Run()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(res)
	if res.Changed == 0 || res.Rounds == 0 || res.Peak == 0 {
		t.Errorf("nothing happened: %v", res)
	}
}

// A soak that cannot fail proves nothing: each way of going wrong is noticed.
func TestSoakNotices(t *testing.T) {
	f := func(spoil func(*Soak), want string) {
		t.Helper()
		k := Soak{Seed: 1, Workers: 4, Writers: 1, Prompts: 20, Progress: t.Output()}
		k.prepare()
		k.oracle = NewOracle(k.Workers * soakOwners)
		if err := k.turn(); err != nil {
			t.Fatal(err)
		}
		spoil(&k)
		if err := k.compare(rand.New(rand.NewPCG(1, 1))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	fresh := []uint64{1, 2, 3}
	f(func(k *Soak) {
		o := k.x.NewOwner(k.workers[0].source)
		k.slots = append(k.slots, 0)
		k.x.Store(&index.Store{Owner: o, Engine: fresh})
	}, "memberships")
	f(func(k *Soak) { k.oracle.Store(5, fresh, true) }, "memberships")
	f(func(k *Soak) {
		for i := range k.workers {
			k.x.Clear(k.workers[i].owners[1])
		}
	}, "the oracle")
	f(func(k *Soak) { k.slots[k.workers[1].owners[0]] = -1 }, "retired")
}
