package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// announcer publishes many blocks or objects, each once.
type announcer struct {
	*bench
	next int
}

// objects has a pool announce n objects on a medium.
func (a *announcer) objects(pool, medium, what string, n int) {
	var list []any
	for range n {
		a.next++
		list = append(list, map[string]any{
			"event_type": what, "tenant_id": "default", "backend_id": "b", "medium": medium,
			"object_key": fmt.Sprintf("m@tp_rank:0@%064x", a.next), "seq_hashes": []any{},
		})
	}
	a.publish(args{word: pool}, list...)
	synctest.Wait()
}

// blocks has an engine announce n blocks on a medium, without tokens. The engine owns
// them unless an owner is named.
func (a *announcer) blocks(engine, medium, what string, n int, owner ...string) {
	var hashes []any
	for range n {
		a.next++
		hashes = append(hashes, uint64(a.next))
	}
	e := map[string]any{"type": what, "block_hashes": hashes, "medium": medium}
	if what == "BlockStored" {
		e["parent_block_hash"], e["token_ids"], e["block_size"] = nil, []any{}, 0
	}
	if len(owner) > 0 {
		e["ownership"] = owner[0]
	}
	a.publish(args{word: engine}, e)
	synctest.Wait()
}

// expect fails unless the source has the finding with all texts; without texts, unless
// the source lacks it.
func (a *announcer) expect(t *testing.T, when, source string, texts ...string) {
	t.Helper()
	found := ""
	for _, line := range strings.Split(a.findings(), "\n") {
		if strings.HasPrefix(line, source+"|default|0 no_removals: ") {
			found = line
		}
	}
	if (found != "") != (len(texts) > 0) {
		t.Errorf("%s: %s: found %q", when, source, found)
	}
	for _, text := range texts {
		if !strings.Contains(found, text) {
			t.Errorf("%s: %s: no %q in %q", when, source, text, found)
		}
	}
}

// TestFindNoRemovalsOfPool: the finding appears after 10,000 objects or an hour without a
// removal, and goes with the first removal.
func TestFindNoRemovalsOfPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &announcer{bench: newBench()}
		defer a.conductor.Close()
		runAll(a.bench, "register many type=Mooncake replay=no", "register long type=Mooncake replay=no",
			"register idle type=Mooncake replay=no",
			"register mortal type=Mooncake replay=no ttl=30m", "register disk type=Mooncake replay=no ttl=DISK:30m")
		for range 9 {
			a.objects("many", "cpu", "stored", 1000)
		}
		a.objects("many", "disk", "stored", 999)
		a.expect(t, "9,999 objects", "many")
		a.objects("many", "cpu", "stored", 1)
		a.expect(t, "10,000 objects", "many", "10000 objects", "ttl")
		a.objects("many", "disk", "removed", 1)
		a.expect(t, "a removal", "many")

		for _, pool := range []string{"long", "mortal", "disk"} {
			a.objects(pool, "disk", "stored", 3)
		}
		a.run("wait 59m")
		a.expect(t, "59 minutes", "long")
		a.run("wait 3m")
		a.expect(t, "an hour", "long", "3 objects", "ttl")
		for _, pool := range []string{"idle", "mortal", "disk", "many"} {
			a.expect(t, "an hour", pool)
		}
		a.objects("disk", "cpu", "stored", 1)
		a.run("wait 62m")
		a.expect(t, "a medium without ttl", "disk", "1 objects")
		a.run("restart disk")
		a.run("wait 5s")
		a.objects("disk", "cpu", "stored", 1)
		a.expect(t, "a restart", "disk")
	})
}

// TestFindNoRemovalsOfEngine: the finding names each medium on which a connector stores
// for long and never removes. It names no device.
func TestFindNoRemovalsOfEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &announcer{bench: newBench()}
		defer a.conductor.Close()
		runAll(a.bench, "register A", "register B ttl=STORAGE:1h")
		for range 11 {
			for _, engine := range []string{"A", "B"} {
				for _, medium := range []string{"GPU", "cpu", "STORAGE"} {
					a.blocks(engine, medium, "BlockStored", 1000)
				}
			}
		}
		a.blocks("A", "HBM3", "BlockStored", 9999)
		a.expect(t, "11,000 blocks", "A")
		a.run("wait 62m")
		a.expect(t, "an hour", "A", "CPU 11000, DISK 11000", `{"CPU": "1h"}`)
		a.expect(t, "an hour", "B", "CPU 11000", `{"CPU": "1h"}`)
		a.blocks("A", "CPU", "BlockRemoved", 1)
		a.expect(t, "a removal", "A", "on DISK 11000", `{"DISK": "1h"}`)
		a.blocks("B", "CPU", "BlockRemoved", 1)
		a.expect(t, "a removal", "B")
		a.blocks("A", "HBM3", "BlockStored", 1)
		a.run("wait 3m")
		a.expect(t, "another medium", "A", "DISK 11000, HBM3 10000")
		runAll(a.bench, "clear A", "wait 3m")
		a.expect(t, "a clear", "A", "DISK 11000, HBM3 10000")
	})
}

// TestFindNoRemovalsNextToKVCR holds that blocks of the cache runner count for nothing:
// its removals say nothing about a connector's blocks on the same medium.
func TestFindNoRemovalsNextToKVCR(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &announcer{bench: newBench()}
		defer a.conductor.Close()
		runAll(a.bench, "register A", "register B")
		for range 11 {
			a.blocks("A", "STORAGE", "BlockStored", 1000, "fs")
			a.blocks("A", "STORAGE", "BlockStored", 1000, "kvcr")
			a.blocks("B", "STORAGE", "BlockStored", 1000, "kvcr")
		}
		a.blocks("A", "STORAGE", "BlockRemoved", 1, "kvcr")
		a.run("wait 62m")
		a.expect(t, "an hour", "A", "DISK 11000")
		a.expect(t, "an hour", "B")
		a.blocks("A", "STORAGE", "BlockRemoved", 1, "kvcr")
		a.expect(t, "a removal of the runner", "A", "DISK 11000")
		a.blocks("A", "STORAGE", "BlockRemoved", 1, "fs")
		a.expect(t, "a removal", "A")
	})
}
