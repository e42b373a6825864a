package ingest

import "slices"

// BeyondVocabulary returns the index of the first token id beyond most, -1 for none; 0 is no bound.
func BeyondVocabulary(tokens []uint32, most uint32) int {
	if most == 0 {
		return -1
	}
	return slices.IndexFunc(tokens, func(id uint32) bool { return id > most })
}

// forbidsTokens reports whether an event has a token id beyond the limit.
func (l *Limits) forbidsTokens(tokens []uint32) bool {
	return BeyondVocabulary(tokens, l.MaxTokenID) >= 0
}
