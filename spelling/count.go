package spelling

import (
	"fmt"
	"strings"
)

// number is what counts things.
type number interface {
	int | int32 | int64 | uint | uint32 | uint64
}

// Count returns a number and the noun that belongs to it: "1 source", "2 sources". It knows the plurals of
// regular nouns; of several words the last one is the noun.
func Count[N number](n N, noun string) string {
	return fmt.Sprintf("%d %s", n, Agree(n, noun, plural(noun)))
}

// Agree returns the form of a word that agrees with a number: Agree(n, "is", "are").
func Agree[N number](n N, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// plural returns the plural of a regular noun.
func plural(noun string) string {
	for _, hiss := range []string{"s", "x", "ch", "sh"} {
		if strings.HasSuffix(noun, hiss) {
			return noun + "es"
		}
	}
	if before, ok := strings.CutSuffix(noun, "y"); ok && before != "" && !strings.ContainsAny(before[len(before)-1:], "aeiou") {
		return before + "ies"
	}
	return noun + "s"
}
