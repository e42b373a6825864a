package workload

import (
	"slices"
	"testing"

	"example.com/conductor/internal/must"
)

func TestAppendTokensIsStable(t *testing.T) {
	a := AppendTokens(nil, Segment{ID: 1, Len: 512})
	if again := AppendTokens(nil, Segment{ID: 1, Len: 512}); !slices.Equal(a, again) {
		t.Error("one segment has two contents")
	}
	if short := AppendTokens(nil, Segment{ID: 1, Len: 100}); !slices.Equal(a[:100], short) {
		t.Error("a shorter segment is no prefix of the longer one")
	}
	b := AppendTokens(nil, Segment{ID: 2, Len: 512})
	if slices.Equal(a[:16], b[:16]) {
		t.Error("two segments begin alike")
	}
	for _, token := range append(a, b...) {
		if token >= vocabulary {
			t.Fatalf("token %d is outside the vocabulary", token)
		}
	}
	different := map[uint32]bool{}
	for _, token := range a {
		different[token] = true
	}
	if len(different) < 500 {
		t.Errorf("%d different tokens of 512", len(different))
	}
}

// draw takes n requests; a source that ends earlier is an error.
func draw(t *testing.T, s Source, n int) []Request {
	t.Helper()
	var rs []Request
	for range n {
		r, ok := s.Next()
		if !ok {
			t.Fatalf("%v ended after %d requests", s, len(rs))
		}
		rs = append(rs, r)
	}
	return rs
}

func TestGeneratorIsDeterministic(t *testing.T) {
	for _, kind := range Kinds {
		make := func(seed uint64) []Request {
			g, err := NewGenerator(kind, seed)
			must.Succeed(t, err)
			return draw(t, g, 200)
		}
		a, b, c := make(7), make(7), make(8)
		equal := func(x, y Request) bool { return slices.Equal(x.Prompt, y.Prompt) && x.Output == y.Output }
		if !slices.EqualFunc(a, b, equal) {
			t.Errorf("%s: one seed makes two workloads", kind)
		}
		if slices.EqualFunc(a, c, equal) {
			t.Errorf("%s: two seeds make one workload", kind)
		}
	}
}

// TestGeneratorShares: later prompts repeat the beginnings of earlier ones, and
// the turns of a session also the answers.
func TestGeneratorShares(t *testing.T) {
	f := func(kind string, least, most float64, answers bool) {
		t.Helper()
		g, err := NewGenerator(kind, 1)
		must.Succeed(t, err)
		seen, outputs := map[uint64]bool{}, map[uint64]bool{}
		tokens, known, repeated := 0, 0, 0
		for _, r := range draw(t, g, 1000) {
			if r.PromptLen() < 1 || r.Output.Len < 1 {
				t.Fatalf("%s: request %+v", kind, r)
			}
			for _, s := range r.Prompt {
				tokens += s.Len
				if !seen[s.ID] && !outputs[s.ID] {
					break
				}
				known += s.Len
				if outputs[s.ID] {
					repeated++
				}
			}
			for _, s := range r.Prompt {
				seen[s.ID] = true
			}
			outputs[r.Output.ID] = true
		}
		if share := float64(known) / float64(tokens); share < least || share > most {
			t.Errorf("%s: %.2f of the prompts repeat an earlier beginning, want %.2f to %.2f", kind, share, least, most)
		}
		if (repeated > 0) != answers {
			t.Errorf("%s: %d answers come back in prompts", kind, repeated)
		}
	}
	f("mixed", 0.5, 0.99, true)
	f("system", 0.5, 0.99, false)
	f("chat", 0.4, 0.99, true)
	f("tools", 0.5, 0.99, true)
}

func TestUnknownKind(t *testing.T) {
	if _, err := NewGenerator("batch", 1); err == nil {
		t.Error("workload \"batch\" was accepted")
	}
}
