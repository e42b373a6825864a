package conductor

import (
	"math"
	"sync"
	"testing"

	"kvconductor/conductor/scope"
	"kvconductor/index"
	"kvconductor/internal/must"
)

// TestRecallKeepsNamesDuringMove: while names move from an index to the memory, because a
// rebuild drops them or their context ends, they are always known in one of the two.
func TestRecallKeepsNamesDuringMove(t *testing.T) {
	const names, rounds = 4000, 8
	for _, ends := range []bool{false, true} {
		for round := range rounds {
			c := New(Options{RecallBytes: 4 << 20})
			at := scope.Context{Deployment: scope.Deployment{Tenant: DefaultTenant, Model: "m", BlockSize: 16}, Variant: scope.Variant{}}
			pool := c.unjoined(Registration{Type: TypeMooncake, Instance: "pool", Model: "m", Tenant: DefaultTenant, BlockSize: 16})
			engine := c.unjoined(Registration{Type: TypeVLLM, Instance: "A", Model: "m", Tenant: DefaultTenant, BlockSize: 16})
			c.mu.Lock()
			c.addSource(pool)
			c.mu.Unlock()
			ns := c.enterContext(engine, at)
			x := ns.context
			owner := x.index.NewOwner(ns.source)
			st := index.Store{Owner: owner}
			for i := range uint64(names) {
				st.Engine, st.Local = append(st.Engine, 1000+i), append(st.Local, i)
			}
			x.index.Store(&st)
			x.index.Remove(owner, st.Engine, nil, index.CopySet)

			var wg sync.WaitGroup
			done := make(chan struct{})
			wg.Go(func() {
				defer close(done)
				if ends {
					c.exitContext(engine, ns)
					return
				}
				x.index.Compact()
				c.recallForgotten(x)
			})
			wg.Go(func() {
				for last := false; !last; {
					select {
					case <-done:
						last = true
					default:
					}
					for _, i := range []uint64{0, names / 2, names - 1} {
						if _, known := c.meaningOf(at.Deployment, 1000+i, scope.Variant{}, func(scope.Variant) bool { return true }, math.MaxInt); !known {
							t.Errorf("round %d, context ends %v: name %d is in neither", round, ends, i)
							return
						}
					}
				}
			})
			wg.Wait()
			c.Close()
		}
	}
}

// TestRecallKeepsTheNewest: a full memory forgets the oldest names, however often they were
// asked for, and keeps one place for a name that comes again.
func TestRecallKeepsTheNewest(t *testing.T) {
	const most = 1000
	x := &indexContext{deployment: &deployment{key: scope.Deployment{Tenant: DefaultTenant, Model: "m", BlockSize: 16}}}
	r := newRecall(most * recallBytes)
	remember := func(engine uint64) {
		r.move.Lock()
		defer r.move.Unlock()
		r.remember(x, []index.Name{{Engine: engine, Key: ^engine}})
	}
	knows := func(engine uint64) bool {
		m, known := r.findCounted(x.deployment.key, engine)
		if known && m.key != ^engine {
			t.Fatalf("name %d means %x", engine, m.key)
		}
		return known
	}
	for engine := range uint64(5 * most) {
		remember(engine)
		for range 3 { // the oldest that are left are the most asked for
			knows(max(engine, most/2) - most/2)
		}
		if engine%most == 7 { // comes again, and stays as long as a new one
			remember(engine - 3)
		}
		for _, recent := range []uint64{0, 1, most / 2, most - 10} {
			if recent <= engine && !knows(engine-recent) {
				t.Fatalf("after name %d: name %d is forgotten", engine, engine-recent)
			}
		}
		if old := engine - most - 1; engine > most && old%most != 4 && knows(old) {
			t.Fatalf("after name %d: name %d is still known", engine, old)
		}
	}
	if got := r.bytes(); got != most*recallBytes || len(r.places) > most {
		t.Errorf("%d bytes and %d places for %d names", got, len(r.places), most)
	}
}

// BenchmarkRecallFull remembers names in a full memory and asks for each once.
func BenchmarkRecallFull(b *testing.B) {
	x := &indexContext{deployment: &deployment{key: scope.Deployment{Tenant: DefaultTenant, Model: "m", BlockSize: 16}}}
	r := newRecall(16 << 20)
	b.ReportAllocs()
	for i := range uint64(b.N) {
		r.move.Lock()
		r.remember(x, []index.Name{{Engine: i * 0x9e3779b97f4a7c15, Key: i}})
		r.move.Unlock()
		r.findCounted(x.deployment.key, i*0x9e3779b97f4a7c15)
	}
}

// TestPoolFindsAllNames: once a pool is in a context, each hash that an engine taught is found at its
// first mention, also after thousands of events without one.
func TestPoolFindsAllNames(t *testing.T) {
	const chains, length = 6000, 16
	c := New(Options{})
	defer c.Close()
	at := scope.Context{Deployment: scope.Deployment{Tenant: DefaultTenant, Model: "m", BlockSize: 16}}
	pool := c.unjoined(Registration{Type: TypeMooncake, Instance: "pool", Model: "m", Tenant: DefaultTenant, BlockSize: 16})
	engine := c.unjoined(Registration{Type: TypeVLLM, Instance: "A", Model: "m", Tenant: DefaultTenant, BlockSize: 16})
	ns := c.enterContext(engine, at)
	c.enterContext(pool, at)
	x := ns.context.index
	owner := x.NewOwner(ns.source)
	name := func(chain, block uint64) uint64 { return 1 + chain*length + block }
	for chain := range uint64(chains) {
		st := index.Store{Owner: owner}
		for block := range uint64(length) {
			st.Engine, st.Local = append(st.Engine, name(chain, block)), append(st.Local, name(chain, block)<<8)
		}
		x.Store(&st)
	}
	for chain := range uint64(chains) {
		for _, block := range []uint64{0, length / 2, length - 1} {
			if _, known := x.Means(name(chain, block)); !known {
				t.Fatalf("block %d of chain %d is not known by its hash", block, chain)
			}
		}
	}
	must.Report(t, x.Check())
}

// TestRecallCloses: sources that are about to end may remember while it closes.
func TestRecallCloses(t *testing.T) {
	x := &indexContext{deployment: &deployment{key: scope.Deployment{Tenant: DefaultTenant, Model: "m", BlockSize: 16}}}
	for range 20 {
		r := newRecall(1 << 20)
		var wg sync.WaitGroup
		started := make(chan struct{})
		wg.Go(func() {
			for i := range uint64(500) {
				if i == 20 {
					close(started)
				}
				r.move.Lock()
				r.remember(x, []index.Name{{Engine: i, Key: i + 1}})
				r.move.Unlock()
				r.findCounted(x.deployment.key, i)
			}
		})
		<-started
		r.close()
		wg.Wait()
	}
}
