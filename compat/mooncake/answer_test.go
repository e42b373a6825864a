package mooncake

import (
	"bytes"
	"testing"

	"kvconductor/conductor"
	"kvconductor/conductor/body"
)

// TestPreparedRows compares answers whose zeros are copied with the same packed row by
// row.
func TestPreparedRows(t *testing.T) {
	inBubble(t, func(t *testing.T, s *testServer) {
		// a has two ranks; c and f hold something, so that runs of zeros end, begin and
		// are in between.
		holders := map[string]int{"c": 2, "f": 1}
		for _, reg := range []struct {
			name string
			rank int
		}{{"a", 0}, {"a", 3}, {"b", 0}, {"c", 0}, {"d", 0}, {"e", 0}, {"f", 0}} {
			if rec := send(s.mixed, "POST", "/register", packed(t, source(reg.name, reg.rank)), "Content-Type", msgpackType); rec.Code != 200 {
				t.Fatal(rec.Code, unpacked(rec.Body.Bytes()))
			}
			if n := holders[reg.name]; n > 0 {
				b := blocks{Medium: "GPU", Count: n}
				s.publish(source(reg.name, reg.rank)["endpoint"].(string), b.stored())
			}
		}
		ask := func(tokens int, only *string) {
			t.Helper()
			q := conductor.Query{Model: "m", BlockSize: blockSize, Tokens: promptTokens(tokens)}
			s.conductor.Answer(&q, func(ans *conductor.Answer) {
				if len(ans.Rows) != 6 || ans.Roster == nil {
					t.Fatalf("%d rows, roster %v", len(ans.Rows), ans.Roster)
				}
				plain := *ans
				plain.Roster = nil
				for _, codec := range []body.Codec{body.JSON, body.Msgpack} {
					got, want := body.Encoder{Codec: codec}, body.Encoder{Codec: codec}
					writeAnswer(&got, ans, only)
					writeAnswer(&want, &plain, only)
					if !bytes.Equal(got.Out, want.Out) {
						t.Errorf("%d tokens: %q, want %q", tokens, got.Out, want.Out)
					}
				}
			})
		}
		for _, tokens := range []int{0, blockSize, 2 * blockSize} {
			ask(tokens, nil)
			for _, name := range []string{"a", "c", "f", "nobody"} {
				ask(tokens, &name)
			}
		}
		held := 0
		s.conductor.Answer(&conductor.Query{Model: "m", BlockSize: blockSize, Tokens: promptTokens(2 * blockSize)}, func(ans *conductor.Answer) {
			for _, row := range ans.Rows {
				held += row.Longest
			}
		})
		if held != 3 {
			t.Fatalf("%d blocks are held, want 3", held)
		}
	})
}

func promptTokens(n int) (tokens []uint32) {
	for i := range n {
		tokens = append(tokens, uint32(i+1))
	}
	return tokens
}
