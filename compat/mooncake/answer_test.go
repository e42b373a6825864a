package mooncake

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/match"
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
			if rec := send(s.mixed, "POST", "/register", packed(t, source(reg.name, reg.rank)), "Content-Type",
				msgpackType); rec.Code != 200 {
				t.Fatal(rec.Code, unpacked(rec.Body.Bytes()))
			}
			if n := holders[reg.name]; n > 0 {
				b := blocks{Medium: "GPU", Count: n}
				s.publish(source(reg.name, reg.rank)["endpoint"].(string), b.stored())
			}
		}
		ask := func(tokens int, only *string) {
			t.Helper()
			q := match.Query{Model: "m", BlockSize: blockSize, Tokens: promptTokens(tokens)}
			s.conductor.Answer(&q, func(ans *match.Answer) {
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
		s.conductor.Answer(&match.Query{Model: "m", BlockSize: blockSize, Tokens: promptTokens(2 * blockSize)},
			func(ans *match.Answer) {
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

// TestExpectedRows asks with the parameter expected, in both codecs: rule EXPECT-6.
func TestExpectedRows(t *testing.T) {
	inBubble(t, func(t *testing.T, s *testServer) {
		for _, name := range []string{"a", "b"} {
			if rec := send(s.mixed, "POST", "/register", packed(t, source(name, 0)), "Content-Type", msgpackType); rec.Code != 200 {
				t.Fatal(rec.Code, unpacked(rec.Body.Bytes()))
			}
		}
		b := blocks{Medium: "GPU", Count: 1}
		s.publish(source("a", 0)["endpoint"].(string), b.stored())
		r := match.Routed{Query: match.Query{Model: "m", BlockSize: blockSize, Tokens: promptTokens(2 * blockSize)}, Target: "a"}
		if _, err := s.conductor.For(conductor.Reader{}).Routed(&r); err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"model":"m","block_size":%d,"token_ids":%s}`, blockSize,
			strings.ReplaceAll(fmt.Sprint(promptTokens(2*blockSize)), " ", ","))
		query := map[string]any{"model": "m", "block_size": blockSize, "token_ids": promptTokens(2 * blockSize)}
		soon := fmt.Sprintf(
			`"a":{"longest_matched":%d,"expected":%d,"dp":{"0":%[1]d},"rank_matches":{"0":{"gpu":%[1]d,"cpu":%[1]d,"disk":%[1]d,`+
				`"expected":%d}}`, blockSize, 2*blockSize, 2*blockSize)
		none := `"b":{"longest_matched":0,"expected":0,"dp":{"0":0},"rank_matches":{"0":{"gpu":0,"cpu":0,"disk":0,"expected":0}}`
		for query, status := range map[string]int{"?dialect=v2&expected=1": 200, "?dialect=v2&expected": 200, "?dialect=v2&expected=0": 0,
			"?dialect=v2": 0, "?dialect=v2&expected=some": 400} {
			rec := send(s.mixed, "POST", "/query"+query, []byte(body))
			text := rec.Body.String()
			switch {
			case status == 400 && rec.Code == 400 && strings.Contains(text, `"field":"expected"`):
			case status == 0 && rec.Code == 200 && !strings.Contains(text, "expected"):
			case status == 200 && rec.Code == 200 && strings.Contains(text, soon) && strings.Contains(text, none):
			default:
				t.Errorf("%s: %d %s, want %s and %s", query, rec.Code, text, soon, none)
			}
		}
		rec := send(s.mixed, "POST", "/query?expected=1", packed(t, query), "Content-Type", msgpackType, "Accept", "application/json")
		if text := rec.Body.String(); rec.Code != 200 || !strings.Contains(text, soon) {
			t.Errorf("in msgpack: %d %s", rec.Code, text)
		}
		if rec := send(s.mixed, "POST", "/query?dialect=v2", []byte(strings.TrimSuffix(body, "}")+`,"expected":true}`)); rec.Code != 400 {
			t.Errorf("a body with expected: %d %s", rec.Code, rec.Body)
		}
	})
}
