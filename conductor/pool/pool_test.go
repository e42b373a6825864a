package pool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
)

// group is the attention group that a test lets count.
type group struct{ main int }

func (g *group) counts(at scope.Group) bool { return at.Index == g.main }

func newPool(g *group) *Pool {
	about := scope.Context{Deployment: scope.Deployment{Tenant: "t", Model: "m", BlockSize: 16}}
	d := doctor.New(doctor.Registered{Context: about, Pool: true}, func() time.Time { return time.Time{} })
	return New(Options{Registered: about, Counts: g.counts, Findings: &d.Findings})
}

// object returns an event about one shard of a block.
func object(kind events.Kind, hash uint64, shard int) *events.Event {
	return &events.Event{Kind: kind, Envelope: true, Group: -1, BaseBlock: -1, Medium: "cpu",
		ObjectKey: fmt.Sprintf("m@tp_rank:%d@%064x", shard, hash)}
}

// text writes changes as +hash and -hash, with a star for blocks without objects.
func text(changes []Change) string {
	var words []string
	for _, c := range changes {
		sign, star := "+", "*"
		if c.Vanishes {
			sign = "-"
		}
		if c.Object {
			star = ""
		}
		words = append(words, fmt.Sprintf("%s%d%s", sign, c.Hash, star))
	}
	return strings.Join(words, " ")
}

// TestStoreAndRemoveReportBlocks holds which blocks appear and vanish with their objects.
func TestStoreAndRemoveReportBlocks(t *testing.T) {
	p := newPool(&group{})
	f := func(kind events.Kind, hash uint64, shard int, want string) {
		t.Helper()
		apply := p.Store
		if kind == events.Removed {
			apply = p.Remove
		}
		if r := apply(object(kind, hash, shard)); text(r.Changes) != want || r.Dropped != "" {
			t.Errorf("block %d, shard %d: %q, dropped %q, want %q", hash, shard, text(r.Changes), r.Dropped, want)
		}
	}
	f(events.Stored, 7, 0, "+7 -7*") // the object now tells, not an announcement by hash
	f(events.Stored, 7, 0, "")
	f(events.Stored, 7, 1, "-7 +7 -7*") // a kind of two shards
	f(events.Stored, 8, 0, "-8*")
	f(events.Stored, 8, 1, "+8 -8*")
	f(events.Removed, 7, 1, "-7")
	f(events.Removed, 7, 0, "")
	if n := p.Objects(); n != 2 {
		t.Errorf("%d objects", n)
	}
	r := p.Remove(object(events.Removed, 7, 0))
	if !r.Unbound || r.ByHashes || text(r.Changes) != "-7*" {
		t.Errorf("an object that is not bound: %+v", r)
	}
	p.Clear(&events.Event{Kind: events.Cleared}, "")
	if p.Objects() != 0 || p.Bytes() != 0 {
		t.Errorf("%d objects and %d bytes after a clear", p.Objects(), p.Bytes())
	}
}

// TestStoreReadsTheModelOfKeys holds whose the objects are, by the names that can stand in a key, and that
// the finding names a model.
func TestStoreReadsTheModelOfKeys(t *testing.T) {
	f := func(head, want, finding string) {
		t.Helper()
		p := newPool(&group{})
		e := object(events.Stored, 7, 0)
		e.ObjectKey = head + e.ObjectKey[1:]
		r := p.Store(e)
		if r.Dropped != "" || len(r.Changes) == 0 {
			t.Fatalf("%s: dropped %q", e.ObjectKey, r.Dropped)
		}
		if at, _ := p.Context(&r.Changes[0]); at.Deployment.Model != want {
			t.Errorf("%s is of model %q, want %q", e.ObjectKey, at.Deployment.Model, want)
		}
		found := p.opts.Findings.List()
		if (len(found) > 0) != (finding != "") || finding != "" && !strings.Contains(found[0].Message, finding) {
			t.Errorf("%s: findings %v, want %q", e.ObjectKey, found, finding)
		}
	}
	f("m", "m", "")
	f("blue@m", "m", "")
	f("m@store_pp:1@store_format:tp_shared_mqa", "m", "")
	f("blue@m@store_pp:1@store_format:rank_local_tp2_layout_LBHNC", "m", "")
	f("n@store_pp:1@store_format:tp_shared_mqa", "n", `objects are of model "n", registered is "m"`)
	f("m@n", "n", `objects are of model "n"`) // m is the prefix
}

// TestAgeForgetsObjects holds that an object leaves at the second Age after its last
// announcement.
func TestAgeForgetsObjects(t *testing.T) {
	p := newPool(&group{})
	p.Store(object(events.Stored, 7, 0))
	all := func(string) bool { return true }
	for i, want := range []string{"", "-7", ""} {
		if got := text(p.Age(all)); got != want {
			t.Errorf("age %d: %q, want %q", i, got, want)
		}
	}
	if n := p.Objects(); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

// TestRegroupMovesBlocks holds that the blocks of a group follow the answer of Counts.
func TestRegroupMovesBlocks(t *testing.T) {
	g := &group{}
	p := newPool(g)
	p.Store(object(events.Stored, 7, 0))
	at := scope.Group{Deployment: p.opts.Registered.Deployment}
	for _, step := range []struct {
		main int
		want string
	}{{0, ""}, {1, "-7"}, {1, ""}, {0, "+7"}} {
		g.main = step.main
		if got := text(p.Regroup(at)); got != step.want {
			t.Errorf("main group %d: %q, want %q", step.main, got, step.want)
		}
	}
}

// TestOriginsAreFreed holds that an origin without objects gives its number back.
func TestOriginsAreFreed(t *testing.T) {
	p := newPool(&group{})
	for i := range 3 * maxOrigins {
		salt := fmt.Sprint(i)
		stored, removed := object(events.Stored, 7, 0), object(events.Removed, 7, 0)
		stored.Salt, removed.Salt = &salt, &salt
		if r := p.Store(stored); r.Dropped != "" {
			t.Fatalf("origin %d: dropped %s", i, r.Dropped)
		}
		if at, _ := p.Context(&p.changes[0]); at.Variant.Salt != salt {
			t.Fatalf("origin %d: salt %q", i, at.Variant.Salt)
		}
		p.Remove(removed)
	}
	if n := len(p.origins); n > 2 {
		t.Errorf("%d origins", n)
	}
}
