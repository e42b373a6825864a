package lmcache

import "slices"

// Lack is a chunk that an emitter holds in part.
type Lack struct {
	Medium     string
	Have, Want int  // shards
	Certain    bool // its parents are of the prompt too
}

// Prompt is what Lacks looks for.
type Prompt struct {
	Tokens []uint32
	// Salted reports whether chunks of a salt count for the prompt.
	Salted func(salt string) bool
	// Named reports whether a hash names the part of the prompt that ends at a position.
	Named func(end int, hash uint64) bool
}

// Lacks returns the chunks of a prompt that a feed holds in part, and that have the tokens in
// [from, to). It looks at all chunks of the feed.
func (h *Hub) Lacks(f *Feed, p *Prompt, from, to int) (all []Lack) {
	h.mu.Lock()
	defer h.mu.Unlock()
	links := h.chainsOf(f.Model).links
	for at, c := range f.book.chunks {
		link, known := links[at.hash]
		start := link.end - len(c.tokens)
		if c.whole > 0 || len(c.tokens) == 0 || !known || !p.Salted(at.salt) || start > from || to > link.end ||
			!p.hasTokens(c.tokens, start) {
			continue
		}
		certain := h.matchesPrompt(p, at.salt, f.Model, link.parent, start)
		for i := range c.copies {
			all = append(all, Lack{mediumOf(at.tier, c.copies[i].backend), c.copies[i].have, c.copies[i].world, certain})
		}
	}
	return all
}

// Lacking returns how many blocks lie in chunks that lack shards.
func (f *Feed) Lacking() int { return int(f.lacking.Load()) }

// hasTokens reports whether the prompt has tokens from position start on. Tokens beyond the end of the prompt are not compared.
func (p *Prompt) hasTokens(tokens []uint32, start int) bool {
	if start < 0 || start >= len(p.Tokens) {
		return false
	}
	end := min(start+len(tokens), len(p.Tokens))
	return slices.Equal(p.Tokens[start:end], tokens[:end-start])
}

// matchesPrompt reports whether the chunk with a hash ends at a position of a prompt, and the chunks in front of it are those of
// the prompt too. It knows that by names, or by the tokens of chunks that lack shards. A hash of "" stands for the beginning
// of the prompt, so it matches at position 0. mu is held.
func (h *Hub) matchesPrompt(p *Prompt, salt, model, hash string, end int) bool {
	links := h.chainsOf(model).links
next:
	for hash != "" {
		if p.Named(end, blockHashOf(salt, hash)) {
			return true
		}
		for at, feeds := range h.feeds {
			for _, f := range feeds {
				for _, tier := range []string{host, storage} {
					c := f.book.chunks[chunkID{tier, salt, hash}]
					if at.model != model || c == nil || len(c.tokens) == 0 || len(c.tokens) > end {
						continue
					}
					if !p.hasTokens(c.tokens, end-len(c.tokens)) {
						return false
					}
					link, known := links[hash]
					if !known {
						return false
					}
					hash, end = link.parent, end-len(c.tokens)
					continue next
				}
			}
		}
		return false
	}
	return end == 0
}
