package ingest

import "slices"

// BeyondVocabulary returns the index of the first token id beyond most, -1 for none; 0 is no bound.
func BeyondVocabulary(tokens []uint32, most uint32) int {
	if most == 0 {
		return -1
	}
	return slices.IndexFunc(tokens, func(id uint32) bool { return id > most })
}

// hasBadToken reports whether an event has a token id beyond the limit.
func (c *shared) hasBadToken(tokens []uint32) bool {
	return BeyondVocabulary(tokens, c.limits.Load().MaxTokenID) >= 0
}
