package dynamo

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// FuzzBlocks requires that a list of blocks that is cut out equals the one that encoding/json
// reads, and that the remainder is the rest of the document.
func FuzzBlocks(f *testing.F) {
	for _, list := range []string{
		``, `{}`, `{"block_hash":1,"tokens_hash":2}`, `{"block_hash":1,"tokens_hash":2,"mm_extra_info":null}`,
		`{"block_hash":18446744073709551615,"tokens_hash":0},{"block_hash":7,"tokens_hash":9,"mm_extra_info":null}`,
		`{"block_hash":18446744073709551616,"tokens_hash":0}`, `{"block_hash":184467440737095516150,"tokens_hash":0}`,
		`{"block_hash":-1,"tokens_hash":2}`,
		`{"block_hash":01,"tokens_hash":2}`, `{"block_hash":1.5,"tokens_hash":2}`, `{"block_hash":1e3,"tokens_hash":2}`,
		`{"block_hash":,"tokens_hash":2}`,
		`{"tokens_hash":2,"block_hash":1}`, `{"block_hash": 1,"tokens_hash":2}`, `{"block_hash":1,"tokens_hash":2},`,
		`{"block_hash":1,"tokens_hash":2}{`,
		`{"block_hash":1,"tokens_hash":2,"mm_extra_info":{"mm_objects":[]}}`, `{"block_hash":1,"tokens_hash":2,"mm_extra_info":null,"x":1}`,
		`{"block_hash":1`,
	} {
		f.Add(fmt.Sprintf(`{"a":"\"blocks\":[","blocks":[%s],"z":1}`, list))
	}
	f.Add(`{"blocks":[{"block_hash":1,"tokens_hash":2}`)
	f.Fuzz(func(t *testing.T, text string) {
		var b dumpBlocks
		short := b.cut([]byte(text))
		if short == nil {
			return
		}
		var whole, rest map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &whole); err != nil {
			return // nothing is made of it: the rest is no document either
		}
		if err := json.Unmarshal(short, &rest); err != nil {
			t.Fatalf("%s is left of %s: %v", short, text, err)
		}
		if string(rest["blocks"]) != "[]" || len(rest) != len(whole) {
			return // a list within another value, or one of two
		}
		var blocks []struct {
			Block  uint64 `json:"block_hash"`
			Tokens uint64 `json:"tokens_hash"`
		}
		if err := json.Unmarshal(whole["blocks"], &blocks); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var engine, clientHashes []uint64
		for _, one := range blocks {
			engine, clientHashes = append(engine, one.Block), append(clientHashes, one.Tokens)
		}
		if !slices.Equal(engine, b.engine) || !slices.Equal(clientHashes, b.clientHashes) {
			t.Fatalf("%s: %v %v", text, b.engine, b.clientHashes)
		}
	})
}

// What every indexer writes is read by hand, what only looks like it is not.
func TestBlocksAreCut(t *testing.T) {
	f := func(list string, want int) {
		t.Helper()
		var b dumpBlocks
		got := -1
		if b.cut([]byte(`{"blocks":[`+list+`]}`)) != nil {
			got = len(b.engine)
		}
		if got != want {
			t.Errorf("%s: %d blocks, want %d", list, got, want)
		}
	}
	f(`{"block_hash":1,"tokens_hash":2,"mm_extra_info":null}`, 1)
	f(`{"block_hash":1,"tokens_hash":2},{"block_hash":18446744073709551615,"tokens_hash":0,"mm_extra_info":null}`, 2)
	f(``, -1)
	f(`{"block_hash":-1,"tokens_hash":2}`, -1)
	f(`{"block_hash":18446744073709551616,"tokens_hash":2}`, -1)
	f(`{"block_hash":00,"tokens_hash":2}`, -1)
	f(`{"block_hash":1,"tokens_hash":2,"mm_extra_info":{"mm_objects":[]}}`, -1)
	f(`{"tokens_hash":2,"block_hash":1}`, -1)
	f(`{"block_hash":1,"tokens_hash":2},`, -1)
}
