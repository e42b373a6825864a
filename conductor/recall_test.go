package conductor

import (
	"math"
	"sync"
	"testing"

	"kvconductor/conductor/scope"
	"kvconductor/index"
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
