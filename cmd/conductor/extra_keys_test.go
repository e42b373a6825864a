package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"syscall"
	"testing"

	"github.com/zeebo/xxh3"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// TestExtraKeysOverSockets holds that blocks with embeddings, and with extra keys of any other
// form, are found by queries that name the same, and by no others: as they are published, after a
// restart from a snapshot, and once some are removed.
func TestExtraKeysOverSockets(t *testing.T) {
	t.Parallel()
	embeddings := func(n int) []byte { return bytes.Repeat([]byte{byte(n)}, 32) }
	number := func(n int) uint64 { return xxh3.Hash(append([]byte{0xc4, 32}, embeddings(n)...)) } // of its msgpack
	e := newRuledEngine(t, "e", 0)
	settings := fmt.Sprintf("snapshot: {dir: %q}\nsources:\n", t.TempDir()) + explainSource(e, "vLLM", "m", "")
	p := serveProcess(t, settings)

	zeros := make([]int, 3*recordedBlock)
	array := []any{
		"BlockStored", []int{1, 2, 3}, nil, zeros, recordedBlock, nil, "GPU", nil,
		[]any{[]any{embeddings(1)}, []any{embeddings(2)}, []any{embeddings(3)}}, 0,
	}
	other := ruledStored(0, 3, "block_hashes", []int{11, 12, 13}, "token_ids", zeros, "extra_keys",
		[]any{[]any{embeddings(4)}, []any{embeddings(2)}, []any{embeddings(3)}})
	shapes := []any{nil, []any{map[string]any{"type": "mm", "id": "x"}, "adapter:image"}, []any{[]any{"tag", 1, 2.5}}}
	e.publish(array, other, ruledStored(0, 3, "extra_keys", shapes))

	longest := regexp.MustCompile(`"longest_matched":(\d+)`)
	f := func(what, path, field string, list any, more, want string) {
		t.Helper()
		text, err := json.Marshal(list)
		must.Succeed(t, err)
		answer := post(t, p.url+path, fmt.Sprintf(`{"model":"m","block_size":%d,%q:%s%s}`, recordedBlock, field, text, more), 200)
		if got := longest.FindStringSubmatch(answer); got == nil || got[1] != want {
			t.Errorf("%s: %s, want %s", what, answer, want)
		}
	}
	keys := func(items ...int) []uint64 {
		of := make([][]uint64, len(items))
		for i, n := range items {
			of[i] = []uint64{number(n)}
		}
		s := hash.DefaultScheme()
		return s.AppendChain(nil, s.AppendWindows(nil, make([]uint32, len(zeros)), recordedBlock, 0, of))
	}
	check := func(held, shaped string) {
		t.Helper()
		f("a text of zeros", "/query", "token_ids", zeros, "", "0")
		f("the plain prompt", "/query", "token_ids", recordedTokens(3), "", "16")
		f("its hashes", "/query_by_hash", "seq_hashes", []int{1000, 1001, 1002}, `,"hash":"engine"`, shaped)
		f("one prompt's embeddings", "/query_by_hash", "seq_hashes", keys(1, 2, 3), "", held)
		f("the other's", "/query_by_hash", "seq_hashes", keys(4, 2, 3), "", "48")
		f("the other's from the second block on", "/query_by_hash", "seq_hashes", keys(4, 5, 3), "", "16")
		f("nobody's", "/query_by_hash", "seq_hashes", keys(2, 3, 1), "", "0")
	}
	if s := e.settled(p); len(s.Findings) > 0 || len(s.DroppedBy) > 0 {
		t.Errorf("findings %v, dropped %v", s.Findings, s.DroppedBy)
	}
	check("48", "48")

	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGTERM))
	must.Succeed(t, p.cmd.Wait())
	p = serveProcess(t, settings)
	eventually(t, "the snapshot is not read", func() (string, bool) {
		rows, body := servicesOf[struct{ Blocks int }](t, p.url)
		return body, len(rows) == 1 && rows[0].Blocks == 9
	})
	check("48", "48")
	eventually(t, "the engine is not heard again", func() (string, bool) {
		e.publish()
		rows, body := servicesOf[ruledService](t, p.url)
		return body, len(rows) == 1 && rows[0].LastSeq != nil && *rows[0].LastSeq > 0
	})
	e.publish(map[string]any{"type": "BlockRemoved", "block_hashes": []int{2, 1002}, "medium": "GPU"})
	e.settled(p)
	check("16", "32")
}
