package watch

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/internal/must"
)

// TestLists holds that documents list targets and instances of LMCache, a difference only where they
// differ, and that tenants see their own.
func TestLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		change := func(f func()) {
			mu.Lock()
			defer mu.Unlock()
			f()
		}
		targets := []Target{ // guarded by mu
			{Instance: "found", Tenant: "ann", State: "found", Sources: 1}, {Instance: "learning", Tenant: "ann", State: "learning"},
			{Instance: "waiting", Tenant: "ann", State: "waiting"}, {Instance: "waiting-too", Tenant: "bob", State: "waiting"},
		}
		w := newWatched(t, Config{Viewers: 2, Targets: func() []Target {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(targets)
		}})
		defer w.close()
		report := func(by scope.Tenants, instance string, seq uint64) {
			_, err := w.c.For(conductor.Reader{Tenants: by}).PushLMCache(t.Context(), &lmcache.Batch{
				Instance: instance, Incarnation: 1, Seq: seq, Type: lmcache.Store, Tier: "l1", Backend: "dram",
				Entries: []lmcache.Entry{{Model: "m", Hash: "h", World: 1}},
			})
			must.Succeed(t, err)
		}
		report(scope.Tenants{"ann"}, "cache-of-ann", 5)
		report(scope.Tenants{"bob"}, "cache-of-bob", 1)
		second()
		ann, all := w.join(scope.Tenants{"ann"}, false), w.join(nil, false)
		second()
		whole := func(v *Viewer) string {
			t.Helper()
			got := w.take(v)
			if len(got) == 0 {
				t.Fatal("nothing came")
			}
			for _, later := range got[1:] {
				if strings.Contains(later.text, `"discovery"`) || strings.Contains(later.text, `"lmcache"`) {
					t.Errorf("nothing has changed: %s", later.text)
				}
			}
			return got[0].text
		}
		f := func(text string, wants ...string) {
			t.Helper()
			for _, want := range wants {
				if !strings.Contains(text, want) {
					t.Errorf("%s is not in %s", want, text)
				}
			}
		}
		text := whole(ann)
		waits, unclaimed := doctor.SeverityOf("discovery"), doctor.SeverityOf("unclaimed")
		f(text, fmt.Sprintf(`"discovery":{"targets":3,"waiting":1,"learning":1,"severity":%q,"list":[{"instance_id":"waiting"`, waits),
			fmt.Sprintf(`"lmcache":{"instances":1,"unclaimed":1,"severity":%q,"list":[{"instance_id":"cache-of-ann",`, unclaimed)+
				`"followed_by":[],"state":"unclaimed",`+
				`"outcome":"applied","incarnation":1,"seq":5,`,
			`"unclaimed":[{"instance_id":"cache-of-ann","modelname":"m","entries":1}]`)
		if strings.Contains(text, "bob") || strings.Contains(text, "waiting-too") {
			t.Errorf("ann sees %s", text)
		}
		f(whole(all), `"targets":4`, `"instances":2`, "waiting-too", "cache-of-bob")

		change(func() { targets[3].State = "found" })
		second()
		if got := w.take(ann); len(got) != 1 || strings.Contains(got[0].text, "discovery") {
			t.Errorf("a target of bob is news for ann: %+v", got)
		}
		if got := w.take(all); len(got) != 1 || !strings.Contains(got[0].text, `"waiting":1`) || strings.Contains(got[0].text, "lmcache") {
			t.Errorf("a target has changed: %+v", got)
		}
		report(scope.Tenants{"ann"}, "cache-of-ann", 6)
		second()
		if got := w.take(ann); len(got) != 1 || !strings.Contains(got[0].text, `"seq":6`) {
			t.Errorf("a report has come: %+v", got)
		}

		change(func() {
			for i := range 2 * maxListed {
				targets = append(targets, Target{Instance: fmt.Sprint(i), Tenant: "ann", State: "found"})
			}
		})
		second()
		text = string(w.h.Document(scope.Tenants{"ann"}, 0, ""))
		f(text, `"targets":203`, `"list":[{"instance_id":"waiting"`)
		if n := strings.Count(text, `"addresses"`); n != maxListed {
			t.Errorf("%d targets are listed", n)
		}
	})
}
