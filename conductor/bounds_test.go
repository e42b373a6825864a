package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/events"
	"example.com/conductor/internal/must"
)

// TestInventedMedia lets a publisher name media without end. The source has a few, and one for all others,
// whose blocks are found, removed and cleared.
func TestInventedMedia(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(nil, zerolog.Nop(), func(*conductor.Options) {})
		defer b.conductor.Close()
		b.run("register A")
		media := func() map[string]int {
			synctest.Wait()
			all := make(map[string]int)
			for _, m := range b.conductor.Services()[0].Media {
				if m.Blocks > 0 {
					all[m.Name] = m.Blocks
				}
			}
			return all
		}
		b.run("store A path=a")
		b.run("store A path=a medium=" + strings.Repeat("LONG", 17))
		for i := range 500 {
			b.run(fmt.Sprintf("store A path=b%d medium=M%d", i, i))
		}
		b.run("store A path=c medium=M499")
		if got := media(); len(got) != 18 || got["GPU"] != 1 || got["M15"] != 1 || got["OTHER"] != 1+500-16+1 {
			t.Errorf("the source stores on %v", got)
		}
		if got := b.run("query path=b499"); !strings.Contains(got, `"OTHER":16`) {
			t.Errorf("a block on a medium beyond the bound: %s", got)
		}
		b.run("remove A path=b499 medium=M499")
		b.run("remove A path=b15 medium=M15")
		if got := media(); got["OTHER"] != 485 || got["M15"] != 0 {
			t.Errorf("after removals: %v", got)
		}
		if n := b.conductor.Services()[0].Dropped[events.UnknownHash]; n != 0 {
			t.Errorf("%d removed blocks are unknown", n)
		}
		b.run("restart A")
		b.run("store A path=d medium=M400")
		b.run("wait 10s") // until the server is connected again
		if got := media(); got["M400"] != 1 || len(got) != 1 {
			t.Errorf("another lifetime stores on %v", got)
		}
	})
}

// TestInventedOwners lets publishers make up ranks, groups, backends, models and block sizes. Each source has a
// bounded number of each, keeps what it had, and the metrics have a bounded number of rows.
func TestInventedOwners(t *testing.T) {
	const many = 6000
	f := func(name string, least, most int, event func(i int) string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			b := newBenchWith(nil, zerolog.Nop(), func(*conductor.Options) {})
			defer b.conductor.Close()
			b.run("register A block_size=2 replay=no")
			for i := range many {
				b.run("event A json=" + event(i))
			}
			synctest.Wait()
			s := b.conductor.Services()[0]
			if s.Blocks < least || s.Blocks > most || s.Blocks+int(s.Dropped[events.OwnerLimit]+s.Dropped[events.GroupUnknown]) > many {
				t.Errorf("%s: %d blocks, left out %v", name, s.Blocks, s.Dropped)
			}
			if dropped := s.Dropped[events.OwnerLimit] + s.Dropped[events.GroupUnknown]; dropped == 0 {
				t.Errorf("%s: nothing is left out: %v", name, s.Dropped)
			}
			b.run("event A json=" + strings.NewReplacer("[1]", "[77777]", "[1,", "[77777,").Replace(event(0)))
			synctest.Wait()
			if again := b.conductor.Services()[0]; again.Blocks != s.Blocks+1 {
				t.Errorf("%s: a holder of before has no room: %d blocks, then %d", name, s.Blocks, again.Blocks)
			}
			r := prometheus.NewPedanticRegistry()
			r.MustRegister(b.conductor.Meter())
			families, err := r.Gather()
			must.Succeed(t, err)
			for _, family := range families {
				if n := len(family.Metric); n > 2100 {
					t.Errorf("%s: %s has %d rows", name, family.GetName(), n)
				}
			}
			for _, err := range b.conductor.Check() {
				t.Error(err)
			}
		})
	}
	standard := func(i int, field string) string {
		return fmt.Sprintf(`{"event_type":"stored","seq_hashes":[%d],"token_ids":[%d,7],"base_block_idx":0,%s}`, i+1, i+1,
			fmt.Sprintf(field, i))
	}
	f("ranks", 4096, 4096, func(i int) string { return standard(i, `"dp_rank":%d`) })
	f("backends", 4096, 4096, func(i int) string { return standard(i, `"backend_id":"b%d"`) })
	f("models", 256, 256, func(i int) string { return standard(i, `"model_name":"m%d"`) })
	f("block sizes", 256, 256, func(i int) string {
		return fmt.Sprintf(`{"event_type":"stored","seq_hashes":[%d],"base_block_idx":0,"block_size":%d}`, i+1, i+2)
	})
	f("groups", 64, 64, func(i int) string {
		return fmt.Sprintf(`{"type":"BlockStored","block_hashes":[%d],"token_ids":[%d,7],"block_size":2,"group_idx":%d,`+
			`"kv_cache_spec_kind":"full_attention"}`, i+1, i+1, i)
	})
	f("groups without a kind", 1, 1, func(i int) string {
		return fmt.Sprintf(`{"type":"BlockStored","block_hashes":[%d],"token_ids":[%d,7],"block_size":2,"group_idx":%d}`, i+1, i+1, i)
	})
}
