package conductor_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	nethttp "net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/must"
)

// TestHashQueriesAgree holds that a query by the hashes of an engine has the answer of the query by
// tokens, as far as the engine has announced the prompt and blocks are held (QUERY-8). It asks in
// JSON, in msgpack and in a batch.
func TestHashQueriesAgree(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for world := range uint64(6) {
		synctest.Test(t, func(t *testing.T) { hashWorld(t, rand.New(rand.NewPCG(seed, world))) })
	}
}

// hashWorld lets engines store and remove prompts that share beginnings.
func hashWorld(t *testing.T, rng *rand.Rand) {
	b := newBench()
	defer b.conductor.Close()
	engines := []string{"A", "B", "C"}
	held := make(map[string]map[string]bool)  // by prefix -> engines
	named := make(map[string]map[string]bool) // by prefix -> engines whose name is known
	for _, e := range engines {
		b.run("register " + e + " copies=set")
	}
	path := func() []string {
		var names []string
		for range 1 + rng.IntN(6) {
			names = append(names, string(rune('a'+rng.IntN(2))))
		}
		return names
	}
	for range 150 {
		e, p := engines[rng.IntN(len(engines))], path()
		prefix := func(n int) string { return strings.Join(p[:n], "/") }
		if rng.IntN(3) > 0 {
			b.run(fmt.Sprintf("store %s path=%s", e, prefix(len(p))))
			for n := range len(p) {
				at := prefix(n + 1)
				if held[at] == nil {
					held[at], named[at] = make(map[string]bool), make(map[string]bool)
				}
				held[at][e], named[at][e] = true, true
			}
		} else if last := prefix(len(p)); held[last][e] {
			b.run(fmt.Sprintf("remove %s path=%s from=%d", e, last, len(p)-1))
			delete(held[last], e)
			if len(held[last]) == 0 {
				clear(named[last])
			}
		}
		p, e = path(), engines[rng.IntN(len(engines))]
		reach := 0 // blocks that the engine's names lead to
		for reach < len(p) && named[prefix(reach+1)][e] && len(held[prefix(reach+1)]) > 0 {
			reach++
		}
		tokens := promptOf(prefix(reach), 16)
		if reach == 0 {
			tokens = []uint32{}
		}
		hashes, _, _, _ := blocksOf(args{word: e, keys: map[string]string{"path": prefix(len(p))}})
		byTokens := map[string]any{"model": "m", "block_size": 16, "token_ids": tokens}
		byHashes := map[string]any{"model": "m", "block_size": 16, "seq_hashes": hashes, "hash": "engine"}
		want := askIn(t, b, "/query", "", byTokens)
		for _, accept := range []string{"", "application/msgpack"} {
			if got := askIn(t, b, "/query_by_hash", accept, byHashes); !reflect.DeepEqual(got, want) {
				t.Fatalf("%v of %s as %q: %v, want %v", p, e, accept, got, want)
			}
		}
		got := askIn(t, b, "/query_batch", "", map[string]any{"queries": []any{byHashes, byTokens}})
		if !reflect.DeepEqual(got, map[string]any{"answers": []any{want, want}}) {
			t.Fatalf("%v of %s in a batch: %v, want %v twice", p, e, got, want)
		}
	}
}

// askIn returns an answer as encoding/json has it, whatever it came in.
func askIn(t *testing.T, b *bench, path, accept string, body any) any {
	t.Helper()
	raw, err := json.Marshal(body)
	must.Succeed(t, err)
	req := httptest.NewRequest(nethttp.MethodPost, path, bytes.NewReader(raw))
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	rec := httptest.NewRecorder()
	b.handler.ServeHTTP(rec, req)
	if rec.Code != nethttp.StatusOK {
		t.Fatalf("%s %s: %d %s", path, raw, rec.Code, rec.Body)
	}
	text := rec.Body.Bytes()
	if accept != "" {
		var v any
		must.Succeed(t, msgpack.Unmarshal(text, &v))
		text, err = json.Marshal(v)
		must.Succeed(t, err)
	}
	var v any
	must.Succeed(t, json.Unmarshal(text, &v))
	return v
}
