package conductor_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

// TestConcurrentUse registers, moves and unregisters a few keys from several
// goroutines while their engines publish and routers ask. Nothing may race, no
// answer may exceed what was ever published, and nothing may be left at the end.
func TestConcurrentUse(t *testing.T) {
	const blocks = 6
	rounds := times(200)
	b := newBench()
	defer b.conductor.Close()
	newRegistration := func(instance string, rank int) registration.Registration {
		return registration.Registration{
			Endpoint: fmt.Sprintf("ipc://%s/%d", instance, rank), Type: "vLLM", Model: "m", Instance: instance, BlockSize: 16, Rank: rank,
		}
	}
	path := "a/b/c/d/e/f"
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 3 {
		a := args{word: fmt.Sprintf("I%d", i), keys: map[string]string{"path": path}}
		wg.Go(func() { // an engine that stores and clears without pause
			for {
				select {
				case <-stop:
					return
				default:
				}
				b.publish(a, b.storeEvent(a))
				b.publish(a, clearEvent(a))
			}
		})
		wg.Go(func() { // a router
			q := match.Query{Model: "m", BlockSize: 16, Tokens: promptOf(path, 16), Detail: true}
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, row := range b.conductor.Query(q).Rows {
					if row.Longest > blocks {
						t.Errorf("%s: %d blocks of %d", row.Instance, row.Longest, blocks)
					}
				}
				b.conductor.Services()
				b.conductor.For(conductor.Reader{}).Inspect().GlobalView(10)
				b.conductor.Ready()
			}
		})
	}
	var changing sync.WaitGroup
	for worker := range 4 {
		changing.Go(func() {
			for round := range rounds {
				r := newRegistration(fmt.Sprintf("I%d", (worker+round)%3), 0)
				if round%5 == 0 {
					r.Lora = fmt.Sprint("adapter", worker)
				}
				err := b.conductor.Register(r, ingest.RegisterOptions{Replace: round%2 == 0})
				var conflict *registration.ConflictError
				if err != nil && !errors.As(err, &conflict) {
					t.Error(err)
				}
				if round%3 == 0 {
					if _, err := b.conductor.Unregister(r.Key()); err != nil && !errors.Is(err, ingest.ErrNotFound) {
						t.Error(err)
					}
				}
			}
		})
	}
	changing.Wait()
	close(stop)
	wg.Wait()
	for _, err := range b.conductor.Check() {
		t.Error(err)
	}
	for _, s := range b.conductor.Services() {
		if _, err := b.conductor.Unregister(s.Key()); err != nil {
			t.Error(err)
		}
	}
	if views := b.conductor.For(conductor.Reader{}).Inspect().GlobalView(1); len(views) != 0 {
		t.Errorf("contexts left behind: %+v", views)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(b.conductor.Meter())
	families, err := registry.Gather()
	must.Succeed(t, err)
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "conductor_index_") || strings.HasPrefix(f.GetName(), "conductor_source_") ||
			f.GetName() == "conductor_fleet_blocks" {
			t.Errorf("series left behind: %s", f.GetName())
		}
	}
}
