package digest

import (
	"encoding/hex"
	"slices"
	"testing"
)

// tokens returns 1 to n.
func tokens(n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(i + 1)
	}
	return list
}

// TestDigestsOfPublishedVectors holds the chains to what the engines' own code computed.
func TestDigestsOfPublishedVectors(t *testing.T) {
	f := func(a Algorithm, seed string, prompt []uint32, block int, want ...uint64) {
		t.Helper()
		c := New(a, seed)
		var got []uint64
		var at Digest
		for b := range slices.Chunk(prompt, block) {
			if len(got) == 0 {
				at = c.First(b)
			} else {
				at = c.Next(at, b)
			}
			got = append(got, a.Event(at))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, seed %q: blocks of %d of %v: got %d, want %d", a, seed, block, prompt, got, want)
		}
	}
	f(CBOR, "0", tokens(8), 4, 2164874634404590027, 17270480062156288726)
	f(Pickle, "0", tokens(8), 4, 10362225831949560093, 12472515041799373675)
	f(CBOR, "vllm-none-hash", tokens(8), 4, 9561501211280363793, 15292913576410714033)
	f(Pickle, "vllm-none-hash", tokens(8), 4, 1882140585328457242, 15284023028817948126)
	first, second := int64(-3488128144981237669), int64(5674439469042975057)
	f(Page, "", tokens(8), 4, uint64(first), uint64(second))
	f(Page, "another", []uint32{1, 2, 7, 8}, 2, 3817746824117602890, 863173374788446151)
}

// TestLookAhead compares with what CPython's pickle and SHA-256 compute for the tuples
// that vLLM 0.33 hashes, and with the pairs of SGLang's own code.
func TestLookAhead(t *testing.T) {
	f := func(a Algorithm, ahead int, prompt []uint32, block int, want ...uint64) {
		t.Helper()
		c := New(a, "0")
		var got []uint64
		var at Digest
		for ; len(prompt) >= block+ahead; prompt = prompt[block:] {
			if len(got) == 0 {
				at = c.First(prompt[:block], prompt[block:block+ahead]...)
			} else {
				at = c.Next(at, prompt[:block], prompt[block:block+ahead]...)
			}
			got = append(got, a.Event(at))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, look-ahead %d, blocks of %d: got %d, want %d", a, ahead, block, got, want)
		}
	}
	wide := make([]uint32, 16) // tokens of one byte, then of two
	for i := range wide {
		wide[i] = uint32(250 + i)
	}
	f(Pickle, 1, wide, 4, 16741220435964166707, 16478823191872641298, 14343142771199900697)
	f(Pickle, 2, wide, 4, 17203267458672263214, 10585231215613995266, 8094572200884898287)
	f(Pickle, 3, wide, 4, 416524051015336202, 14499428576914421857, 9969624966491520558)
	f(Pickle, 4, wide, 4, 14715084807809516803, 2671986898738817594, 12113954601563567956)
	f(CBOR, 1, wide, 4, 17481955718614077866, 10968277544525297680, 3310918850604932527)
	f(CBOR, 4, wide, 4, 10298625557738533429, 15289616051446143674, 10573398155856451001)
	pair := int64(-1303529142941650691)
	f(Page, 1, tokens(3), 2, uint64(pair))
	f(Page, 1, []uint32{10, 20, 30, 40}, 3, 15710792592378487421)
}

func TestRootDigests(t *testing.T) {
	f := func(a Algorithm, seed, want string) {
		t.Helper()
		if got := New(a, seed).root.Hex(); got != want {
			t.Errorf("%v, seed %q: root %s, want %s", a, seed, got, want)
		}
	}
	f(CBOR, "0", "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e")
	f(Pickle, "0", "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c")
	f(CBOR, "vllm-none-hash", "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0")
	f(Pickle, "vllm-none-hash", "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198")
}

// TestHashedBytes: the bytes under the hash, where a number or a length changes its form.
func TestHashedBytes(t *testing.T) {
	f := func(a Algorithm, block []uint32, want string) {
		t.Helper()
		c := New(a, "0")
		c.First(block)
		got := hex.EncodeToString(c.buf)
		root := hex.EncodeToString(c.root[:])
		if a == Page {
			root = ""
		}
		if at := len(want) - len("…"); want[at:] == "…" {
			want, got = want[:at], got[:min(len(got), at+len(root)-len("R"))]
		}
		for i := range want {
			if want[i] == 'R' {
				want = want[:i] + root + want[i+1:]
				break
			}
		}
		if got != want {
			t.Errorf("%v of %v:\ngot  %s\nwant %s", a, block, got, want)
		}
	}
	f(CBOR, tokens(4), "835820R8401020304f6")
	f(CBOR, []uint32{23, 24, 255, 256, 65535, 65536, 1<<32 - 1}, "835820R8717181818ff19010019ffff1a000100001afffffffff6")
	f(CBOR, make([]uint32, 24), "835820R9818000000…")
	f(CBOR, make([]uint32, 300), "835820R99012c000000…")
	f(Pickle, tokens(1), "8005952b000000000000004320R944b0185944e87942e")
	f(Pickle, tokens(3), "8005952f000000000000004320R944b014b024b0387944e87942e")
	f(Pickle, tokens(4), "80059532000000000000004320R94284b014b024b034b0474944e87942e")
	f(Pickle, []uint32{255, 256, 65535, 65536, 1<<31 - 1, 1 << 31, 1<<32 - 1},
		"8005954a000000000000004320R94284bff4d00014dffff4a000001004affffff7f8a0500000080008a05ffffffff0074944e87942e")
	f(Page, []uint32{1, 256, 1 << 31}, "010000000001000000000080")

	c := New(Page, "")
	c.First([]uint32{1, 2}, 3)
	if got := hex.EncodeToString(c.buf); got != "01000000020000000200000003000000" {
		t.Errorf("the pairs of 1, 2 and 3 are hashed as %s", got)
	}
}

// TestPairsLookAhead: a page of pairs has a look-ahead of one token, no longer one.
func TestPairsLookAhead(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a page was hashed with two tokens behind it")
		}
	}()
	New(Page, "").First(tokens(2), 3, 4)
}

func TestLongBlockPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a block of more than one frame was hashed")
		}
	}()
	c := New(Pickle, "0")
	c.First(make([]uint32, Longest))
	c.First(make([]uint32, Longest+1))
}
