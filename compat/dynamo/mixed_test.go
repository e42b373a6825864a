package dynamo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"example.com/conductor/internal/must"
)

// TestLoadWithoutAdapterAndSalt reads a dump of Dynamo, which names neither adapter nor salt of
// a block. Queries with both, and queries in local hashes, find its blocks all the same.
func TestLoadWithoutAdapterAndSalt(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, a *testServer) {
		a.register(1, 0, "")
		a.publish(1, 0, stored("GPU", 1, 2, "lora_name", "sql", "cache_salt", "s"),
			stored("CPU", 3, 3, "lora_name", "sql", "cache_salt", "s"))
		a.register(2, 0, "")
		a.publish(2, 0, stored("GPU", 1, 1))
		dump := a.send("GET", "/dump", "").Body.Bytes()

		b := newServer(t, Config{})
		in := b.conductor.Sources().Snapshots().Recover(0)
		must.Succeed(t, (&loader{in: in, skip: func(string) {}, longest: longestValue}).object(bytes.NewReader(dump)))
		in.Done()
		b.register(3, 0, "")
		b.publish(3, 0, stored("GPU", 1, 3, "lora_name", "sql", "cache_salt", "s"))

		const two = `{"scores":{"2":{"0":4}}`
		const one = `{"scores":{"1":{"0":8}}`
		const both = `{"scores":{"1":{"0":8},"3":{"0":12}}`
		f := func(s *testServer, path, body, want string) {
			t.Helper()
			if got := s.send("POST", path, body).Body.String(); len(got) < len(want) || got[:len(want)] != want {
				t.Errorf("%s %s: %s, want %s", path, body, got, want)
			}
		}
		f(a, "/query", ask(promptOf(3), `,"lora_name":"sql","cache_salt":"s"`), one)
		f(b, "/query", ask(promptOf(3), `,"lora_name":"sql","cache_salt":"s"`), both)
		f(a, "/query", ask(promptOf(3), ""), two)
		f(b, "/query", ask(promptOf(3), ""), two)
		f(b, "/query", ask(promptOf(3), `,"lora_name":"sql"`), `{"scores":{},`)

		// The locals of both as Dynamo computes them: section 3 of its hashes.
		locals := seededLocals(t, dump)
		f(a, "/query_by_hash", byHash(locals, ""), one)
		f(b, "/query_by_hash", byHash(locals, ""), both)
	})
}

// TestMixedEagleBlocks: a query in tokens finds blocks of an EAGLE engine under an adapter
// and a salt that were recovered from Dynamo's dump, next to plain ones.
func TestMixedEagleBlocks(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, a *testServer) {
		const names = `,"lora_name":"sql","cache_salt":"s"`
		pairs := stored("GPU", 1, 3, "lora_name", "sql", "cache_salt", "s")
		tokens := pairs["token_ids"].([]int)
		list := make([][]int, len(tokens))
		for i, token := range tokens {
			list[i] = []int{token, token + 1}
		}
		pairs["token_ids"] = list
		a.register(1, 0, "")
		a.publish(1, 0, pairs)
		a.register(2, 0, "")
		a.publish(2, 0, stored("GPU", 1, 1, "lora_name", "sql", "cache_salt", "s"))
		dump := a.send("GET", "/dump", "").Body.Bytes()

		b := newServer(t, Config{})
		in := b.conductor.Sources().Snapshots().Recover(0)
		must.Succeed(t, (&loader{in: in, skip: func(string) {}, longest: longestValue}).object(bytes.NewReader(dump)))
		in.Done()
		const want = `{"scores":{"1":{"0":8},"2":{"0":4}}`
		for _, s := range []*testServer{a, b} {
			if got := s.send("POST", "/query", ask(promptOf(3), names)).Body.String(); len(got) < len(want) || got[:len(want)] != want {
				t.Errorf("recovered %v: %s, want %s", s == b, got, want)
			}
		}
	})
}

// seededLocals reads the local hashes of worker 1 from a dump.
func seededLocals(t *testing.T, dump []byte) (list string) {
	t.Helper()
	in := new(struct {
		Slot struct {
			Events []struct {
				Worker int `json:"worker_id"`
				Event  struct {
					Data struct {
						Stored struct {
							Blocks []struct {
								Tokens uint64 `json:"tokens_hash"`
							}
						}
					}
				}
			}
		} `json:"m:default"`
	})
	must.Succeed(t, json.Unmarshal(dump, in))
	for _, e := range in.Slot.Events {
		for _, b := range e.Event.Data.Stored.Blocks {
			if e.Worker == 1 {
				list += fmt.Sprintf(",%d", b.Tokens)
			}
		}
	}
	return list[1:]
}
