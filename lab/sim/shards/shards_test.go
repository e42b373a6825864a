package shards

import (
	"math"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/conductor/cluster/placement"
	"example.com/conductor/internal/must"
)

// TestZipf holds that every worker has a model and every model a worker.
func TestZipf(t *testing.T) {
	f := func(n, parts int, s float64, want ...int) {
		t.Helper()
		got, sum := zipf(n, parts, s), 0
		for k, v := range got {
			if sum += v; v < 1 || k > 0 && v > got[k-1] {
				t.Errorf("%d things in %d parts: %v", n, parts, got)
			}
		}
		if sum != n || want != nil && !slices.Equal(got, want) {
			t.Errorf("%d things in %d parts: %v, want %v", n, parts, got, want)
		}
	}
	f(10, 3, 1, 5, 3, 2) // 1 and 7/1.83 of 1, 1/2 and 1/3: 3.8, 1.9, 1.3
	f(10, 4, 0, 3, 3, 2, 2)
	f(5, 5, 3, 1, 1, 1, 1, 1)
	f(10_000, 200, 1.1)
	f(1_000, 7, 100)
}

// TestRunAddsUp holds that the needs of all replicas are those of all copies.
func TestRunAddsUp(t *testing.T) {
	c := Default()
	r, err := Run(c)
	must.Succeed(t, err)
	must.Succeed(t, r.Err())
	names := []string{}
	for _, s := range r.Steps {
		names = append(names, s.Name)
		if strings.Contains(s.Name, "hot") || strings.Contains(s.Name, "waver") {
			continue
		}
		memory, cores, network, copies := 0.0, 0.0, 0.0, 0
		for _, u := range s.Replicas {
			memory, cores, network, copies = memory+u.Memory-c.BaseBytes, cores+u.Cores, network+u.Network, copies+u.Shards
		}
		f := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got-want) > want*1e-9 {
				t.Errorf("%s: %s is %g, want %g", s.Name, what, got, want)
			}
		}
		f("memory", memory, 2*1.4*10_000*(100_000*24+167_000))
		f("cores", cores, 2*10_000*1250*1.03e-6+25_000*57e-6)
		f("network", network, 2*10_000*1250*106)
		f("copies", float64(copies), 2*200)
	}
	want := []string{"start", "loads waver by 5 %"}
	for _, u := range r.Steps[0].Replicas {
		want = append(want, u.ID+" dies")
	}
	if !slices.Equal(names[:14], want) || len(names) != 14+5 || !strings.HasSuffix(names[14], " die") {
		t.Errorf("steps %q", names)
	}
}

// TestRunMoves holds what each step moves: nothing where loads only waver, at least the copies of
// the dead, and with two owners no orphan before two replicas die.
func TestRunMoves(t *testing.T) {
	r, err := Run(Default())
	must.Succeed(t, err)
	start := map[string]Usage{}
	for _, u := range r.Steps[0].Replicas {
		start[u.ID] = u
	}
	orphans := 0
	for _, s := range r.Steps {
		id, dies := strings.CutSuffix(s.Name, " dies")
		switch {
		case dies:
			if s.Orphans > 0 || s.CopiesMoved < start[id].Shards || s.CopiesMoved > start[id].Shards+30 {
				t.Errorf("%s: %d copies moved and %d orphans, it had %d", s.Name, s.CopiesMoved, s.Orphans, start[id].Shards)
			}
		case strings.HasSuffix(s.Name, " die"):
			orphans = s.Orphans
		case s.Name == "start" || strings.Contains(s.Name, "waver"):
			if s.CopiesMoved > 0 || s.BytesMoved > 0 {
				t.Errorf("%s: %d copies moved", s.Name, s.CopiesMoved)
			}
		case strings.Contains(s.Name, "joins") || strings.Contains(s.Name, "hot") || strings.Contains(s.Name, "doubles"):
			if s.CopiesMoved == 0 || s.BytesMoved == 0 {
				t.Errorf("%s: nothing moved", s.Name)
			}
		}
	}
	if orphans == 0 {
		t.Error("the worst pair shares no shard")
	}
}

// TestWorstPair holds which two replicas die together.
func TestWorstPair(t *testing.T) {
	w := &walker{replicas: []placement.Replica{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}}}
	f := func(first map[string][]string, a, b int) {
		t.Helper()
		w.first = first
		if i, j := w.worstPair(); i != a || j != b {
			t.Errorf("%v: %d and %d die", first, i, j)
		}
	}
	f(map[string][]string{"1": {"a", "b"}, "2": {"c", "d"}, "3": {"d", "c"}}, 2, 3)
	// two orphans, as with c and d, and more copies
	f(map[string][]string{"1": {"a", "b"}, "2": {"b", "c"}, "3": {"c", "d"}, "4": {"c"}}, 1, 2)
	f(map[string][]string{"1": {"d"}}, 0, 3)
}

// TestRunHotModel holds that a model with many queries gets more owners, and no more than
// max-owners.
func TestRunHotModel(t *testing.T) {
	f := func(most int, want int) {
		t.Helper()
		c := Default()
		c.MaxOwners = most
		r, err := Run(c)
		must.Succeed(t, err)
		copies := 0
		for _, u := range r.Steps[len(r.Steps)-2].Replicas {
			copies += u.Shards
		}
		if copies-400 != want {
			t.Errorf("at most %d owners: %d copies more", most, copies-400)
		}
	}
	f(0, 3)
	f(3, 1)
	f(2, 0)
}

// TestRunJudges holds the errors of a report: replicas that are too small, and shards with too
// few owners.
func TestRunJudges(t *testing.T) {
	f := func(change func(*Config), want string) {
		t.Helper()
		c := Default()
		change(&c)
		r, err := Run(c)
		must.Succeed(t, err)
		if err = r.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(func(c *Config) { c.Memory = 7 }, "start: replica-0 needs 7.6 GiB and 2.8 cores for 1 shards, it has 7.0 and 4.0")
	f(func(c *Config) { c.Cores = 2.5 }, "it has 16.0 and 2.5\nand ")
	f(func(c *Config) { c.HotQueries = 1e7 }, "model-10 becomes hot: ")
	r := &Report{Steps: []Step{{Name: "start", Unowned: 3}}}
	if err := r.Err(); err == nil || err.Error() != "start: 3 shards have too few owners" {
		t.Error(err)
	}
}

// TestRunRefuses holds that the error names the field.
func TestRunRefuses(t *testing.T) {
	f := func(change func(*Config), want string) {
		t.Helper()
		c := Default()
		change(&c)
		if _, err := Run(c); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(func(c *Config) { c.Models = 0 }, "models is 0; the least is 1")
	f(func(c *Config) { c.Workers = 100 }, "workers is 100; the least is 200")
	f(func(c *Config) { c.Replicas = 2 }, "replicas is 2; the least is 3")
	f(func(c *Config) { c.Zipf = math.NaN() }, "zipf is NaN; the least is 0")
	f(func(c *Config) { c.Cores = math.Inf(1) }, "replica-cores is +Inf; the least is 0.001")
	f(func(c *Config) { c.HotModel = 200 }, "hot-model is 200; the last model is 199")
}
