package config

import (
	"fmt"

	"example.com/conductor/spelling"
)

// didYouMean completes a message about an unknown word, or returns "".
func didYouMean(word string, known []string) string {
	if closest := spelling.Closest(word, known); closest != "" {
		return fmt.Sprintf("; did you mean %q?", closest)
	}
	return ""
}
