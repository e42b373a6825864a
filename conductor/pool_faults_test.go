package conductor_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
)

// expectServed fails unless an instance is served that number of tokens of a query.
func expectServed(t *testing.T, b *bench, query, instance string, tokens int) {
	t.Helper()
	out := b.run("query " + query)
	for _, row := range strings.Split(out, "\n") {
		if strings.HasPrefix(row, "default "+instance+" ") {
			if want := fmt.Sprintf(`{"longest_matched":%d,`, tokens); !strings.Contains(row, want) {
				t.Errorf("%s: got %s, want %s", query, row, want)
			}
			return
		}
	}
	t.Errorf("%s: no row of %s in %s", query, instance, out)
}

func runAll(b *bench, lines ...string) {
	for _, line := range lines {
		b.run(line)
	}
}

// TestRecoveredPoolWaits: what waits for its hash at one replica waits at the next,
// before and after its pool is registered there.
func TestRecoveredPoolWaits(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := openReplica(t, new(streamtest.Network))
			runAll(b, "register A", "register pool type=Mooncake replay=no", "put pool path=a/b")

			other, open := newReplica(t, b.network)
			register := func() { runAll(other, "register A", "register pool type=Mooncake replay=no") }
			if first {
				register()
			}
			recoverFrom(t, b.conductor, other.conductor, true, 0)
			if !first {
				register()
			}
			open()
			runAll(other, "store A path=a/b salt=s", "remove A path=a/b")
			expectServed(t, other, "path=a/b salt=s", "A", 32)
			expectServed(t, other, "path=a/b", "A", 0)
			other.run("drop pool path=a/b")
			expectServed(t, other, "path=a/b salt=s", "A", 0)
			for _, err := range other.conductor.Check() {
				t.Error(err)
			}
		})
	}
}

// TestRecoveredPoolServesOthers requires that recovered blocks of a pool count for the
// instances that its registration names now, or for none.
func TestRecoveredPoolServesOthers(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := openReplica(t, new(streamtest.Network))
			runAll(b, "register A", "register B", "register pool type=Mooncake replay=no serves=A", "store A path=a", "put pool path=a",
				"remove A path=a")

			other, open := newReplica(t, b.network)
			register := func() { runAll(other, "register A", "register B", "register pool type=Mooncake replay=no serves=B") }
			if first {
				register()
			}
			recoverFrom(t, b.conductor, other.conductor, true, 0)
			if !first {
				register()
			}
			open()
			synctest.Wait()
			expectServed(t, other, "path=a", "A", 0)
			runAll(other, "store A path=a", "put pool path=a", "remove A path=a")
			expectServed(t, other, "path=a", "A", 0)
			expectServed(t, other, "path=a", "B", 16)
		})
	}
}

// TestRecoveredPoolRepeats: an object that is announced again of a block which came
// from a peer is no second one.
func TestRecoveredPoolRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openReplica(t, new(streamtest.Network))
		runAll(b, "register A", "register pool type=Mooncake replay=no", "store A path=a", "put pool path=a", "remove A path=a")

		other, open := newReplica(t, b.network)
		recoverFrom(t, b.conductor, other.conductor, true, 0)
		runAll(other, "register A", "register pool type=Mooncake replay=no")
		open()
		expectServed(t, other, "path=a", "A", 16)
		runAll(other, "put pool path=a", "drop pool path=a")
		expectServed(t, other, "path=a", "A", 0)
	})
}

// TestPoolTwoOfAHash: two objects that are each all of one block keep it, whether or not
// it has expired and come back between them.
func TestPoolTwoOfAHash(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		runAll(b, "register A", "register pool type=Mooncake replay=no ttl=1m", "store A path=a", "remove A path=a")
		runAll(b, "put pool path=a", "wait 35s", "put pool path=a part=k", "drop pool path=a part=k")
		expectServed(t, b, "path=a", "A", 16)
		b.run("drop pool path=a")
		expectServed(t, b, "path=a", "A", 0)
	})
}

// TestPoolExpiryFreesRoom: a master that never announces removals does not fill
// pool.max_bytes of a pool with a time to live.
func TestPoolExpiryFreesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(streamtest.Network)
		c := conductor.New(conductor.Options{PoolBytes: 64 << 10, Log: zerolog.Nop(), Stream: stream.Config{Transport: n, Queue: 1024}})
		b := &bench{conductor: c, handler: handlerOf(c), network: n}
		defer b.conductor.Close()
		runAll(b, "register pool type=Mooncake replay=no ttl=10s")
		for round := range 49 {
			var put []any
			for i := range 64 {
				put = append(put, map[string]any{
					"event_type": "stored", "tenant_id": "default", "backend_id": "b", "medium": "cpu",
					"object_key": fmt.Sprintf("m@tp_rank:0@%032x%032x", round+1, i+1), "seq_hashes": []any{},
				})
			}
			b.publish(args{word: "pool"}, put...)
			runAll(b, "wait 4100ms")
		}
		if out := b.run("services show=Objects,DroppedBy"); out != "pool|default|0 Objects=64 DroppedBy=map[]\n" {
			t.Error(out)
		}
		runAll(b, "wait 10s")
		if out := b.run("services show=Blocks,Objects"); out != "pool|default|0 Blocks=0 Objects=0\n" {
			t.Error(out)
		}
	})
}

// TestPoolFollowsAdoptedBlocks: a block that waited for its parent and joins it in another
// context brings along what a pool holds of it.
func TestPoolFollowsAdoptedBlocks(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		runAll(b, "register A", "register B", "register pool type=Mooncake replay=no")
		runAll(b, "store A path=p/q/r/t from=2", "put pool path=p/q/r/t", "store A path=p/q salt=s")
		expectServed(t, b, "path=p/q/r/t salt=s", "A", 64)
		expectServed(t, b, "path=p/q/r/t salt=s", "B", 64)
	})
}

// TestPoolForgetsScopes: adapters and salts of objects that are gone are no bound on
// those to come.
func TestPoolForgetsScopes(t *testing.T) {
	if payload.PoisonsReleased {
		t.Skip("one source, and 16,384 scopes of it: make test runs this without the race detector")
	}
	inBubble(t, func(t *testing.T, b *bench) {
		runAll(b, "register A", "register pool type=Mooncake replay=no")
		for from := 0; from < 1<<14+64; from += 64 {
			var put, drop []any
			for i := from; i < from+64; i++ {
				for what, list := range map[string]*[]any{"stored": &put, "removed": &drop} {
					*list = append(*list, map[string]any{
						"event_type": what, "tenant_id": "default", "backend_id": "b", "medium": "cpu",
						"object_key": fmt.Sprintf("m@tp_rank:0@%064x", i+1), "additional_salt": fmt.Sprint("user", i),
						"seq_hashes": []any{},
					})
				}
			}
			pool := args{word: "pool"}
			b.publish(pool, put...)
			b.publish(pool, drop...)
			synctest.Wait()
		}
		runAll(b, "store A path=a salt=last", "remove A path=a salt=last", "put pool path=a")
		expectServed(t, b, "path=a salt=last", "A", 16)
		if out := b.run("services pool show=Dropped"); !strings.Contains(out, "pool|default|0 Dropped=0") {
			t.Error(out)
		}
	})
}

// TestPoolTakesTokensBack: what was announced with tokens is removed by its hashes,
// whatever the object's key says.
func TestPoolTakesTokensBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		runAll(b, "register A", "register pool type=Mooncake replay=no")
		for _, key := range []string{"m@tp_rank:0@0000000000000001", "some/object"} {
			event := func(what string) map[string]any {
				return map[string]any{
					"event_type": what, "tenant_id": "default", "backend_id": "b", "medium": "cpu", "object_key": key,
					"seq_hashes": []uint64{77, 78}, "base_block_idx": 0,
				}
			}
			stored := event("stored")
			stored["token_ids"] = promptOf("a/b", 16)
			b.publish(args{word: "pool"}, stored)
			synctest.Wait()
			expectServed(t, b, "path=a/b", "A", 32)
			b.publish(args{word: "pool"}, event("removed"))
			synctest.Wait()
			expectServed(t, b, "path=a/b", "A", 0)
		}
	})
}

// TestPoolOtherGroups: objects of groups that are not indexed share a block's hash and
// say nothing about it when they go.
func TestPoolOtherGroups(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		runAll(b, "register A", "register pool type=Mooncake replay=no", "store A path=a", "remove A path=a")
		runAll(b, "put pool path=a", "put pool path=a tp=1 group=1", "drop pool path=a tp=1 group=1")
		expectServed(t, b, "path=a", "A", 16)
	})
}
