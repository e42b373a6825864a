package dynamo

import (
	"bytes"
	"encoding/json"
	"testing"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// TestRecoveredEagleBlocks recovers EAGLE blocks from a dump of Dynamo's form. Queries by
// local hashes and in tokens find them, whether or not a source announces them again. A
// query in tokens does not find the block behind which the prompt ends.
func TestRecoveredEagleBlocks(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, a *testServer) {
		pairs := func(from, to int) map[string]any {
			e := stored("GPU", from, to)
			tokens := e["token_ids"].([]int)
			list := make([][]int, len(tokens))
			for i, token := range tokens {
				list[i] = []int{token, token + 1}
			}
			e["token_ids"] = list
			return e
		}
		a.register(1, 0, "")
		a.publish(1, 0, pairs(1, 3))
		dump := a.send("GET", "/dump", "").Body.Bytes()

		b := newServer(t, Config{})
		in := b.conductor.Sources().Snapshots().Recover(0)
		must.Succeed(t, (&loader{in: in, skip: func(string) {}, longest: longestValue}).object(bytes.NewReader(dump)))
		in.Done()

		var tokens []uint32
		for i := range uint32(13) {
			tokens = append(tokens, i+1)
		}
		raw, _ := json.Marshal(hash.DefaultScheme().AppendWindows(nil, tokens, 4, 1, nil))
		clientHashes := string(raw[1 : len(raw)-1])
		f := func(s *testServer, path, body, want string) {
			t.Helper()
			if got := s.send("POST", path, body).Body.String(); len(got) < len(want) || got[:len(want)] != want {
				t.Errorf("%s %s: %s, want %s", path, body, got, want)
			}
		}
		f(a, "/query_by_hash", byHash(clientHashes, ""), `{"scores":{"1":{"0":12}}`)
		f(a, "/query", ask(promptOf(3), ""), `{"scores":{"1":{"0":8}}`)
		f(b, "/query_by_hash", byHash(clientHashes, ""), `{"scores":{"1":{"0":12}}`)
		f(b, "/query", ask(promptOf(3), ""), `{"scores":{"1":{"0":8}}`)
		b.register(3, 0, "")
		b.publish(3, 0, pairs(1, 2))
		f(b, "/query_by_hash", byHash(clientHashes, ""), `{"scores":{"1":{"0":12},"3":{"0":8}}`)
		f(b, "/query", ask(promptOf(3), ""), `{"scores":{"1":{"0":8},"3":{"0":8}}`)
	})
}
