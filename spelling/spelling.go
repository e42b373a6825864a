// Package spelling finds the word that was probably meant, and makes nouns agree with numbers. It is pure.
package spelling

import (
	"fmt"
	"slices"
	"strings"
)

// otherNames maps a name that other APIs and older files use, in lower case, to our names
// for it.
var otherNames = map[string][]string{
	"model": {"modelname"}, "model_name": {"modelname"},
	"lora": {"lora_name"}, "lora_id": {"lora_name"},
	"tenant": {"tenant_id"}, "routing_group": {"tenant_id"},
	"instance": {"instance_id"}, "worker_id": {"instance_id"}, "backend_id": {"instance_id"},
	"rank": {"dp_rank"}, "data_parallel_rank": {"dp_rank"},
	"salt": {"additionalsalt", "cache_salt"}, "additional_salt": {"additionalsalt", "cache_salt"},
	"cache_salt": {"additionalsalt"}, "additionalsalt": {"cache_salt"},
	"tokens": {"token_ids"}, "hashes": {"seq_hashes"},
	"ip": {"endpoint"}, "port": {"endpoint"}, "host": {"endpoint"},
	"addr": {"address"}, "listen": {"listeners"}, "services": {"sources"},
	"kvevent_instances": {"kvevent_instance"}, "http_port": {"http_server_port"},
}

const (
	// maxMeant is the most words that Meant returns. A longer list helps nobody.
	maxMeant = 3
	// maxWord is how long a word may be in bytes: no key is longer, and distance takes quadratic time.
	maxWord = 64
)

// Meant returns the words of known that word was probably meant to be: several if it is the beginning of several and ends where a
// - or _ follows, as --replay does of --replay-endpoint and --replay-port. It returns none if there are more than three of these.
func Meant(word string, known []string) (all []string) {
	if len(word) > maxWord {
		return nil
	}
	lower := strings.ToLower(word)
	for _, k := range known {
		if strings.ToLower(k) == lower || slices.Contains(otherNames[lower], k) {
			return []string{k}
		}
	}
	for _, k := range known {
		rest, begins := strings.CutPrefix(strings.ToLower(k), lower)
		if begins && len(word) > 2 && strings.ContainsAny(rest[:1], "-_") && !slices.Contains(all, k) {
			all = append(all, k)
		}
	}
	switch {
	case len(all) > maxMeant:
		return nil
	case len(all) > 0:
		return all
	}
	best := 1 + min(2, len(lower)/3) // one slip in three letters, two at most
	for _, k := range known {
		if d := distance(lower, strings.ToLower(k)); d < best {
			best, all = d, []string{k}
		}
	}
	return all
}

// Closest returns the word of known that word was probably meant to be. It returns "" if there is no such word, or more than one.
func Closest(word string, known []string) string {
	if all := Meant(word, known); len(all) == 1 {
		return all[0]
	}
	return ""
}

// DidYouMean returns how a message about an unknown word ends, with the words of known that were probably meant; "" if there are none.
func DidYouMean(word string, known []string) string { return Offer(Meant(word, known)) }

// Offer returns how a message ends that offers words: "; did you mean "a" or "b"?"; "" if there are none, or too many.
func Offer(words []string) string {
	if len(words) == 0 || len(words) > maxMeant {
		return ""
	}
	var quoted []string
	for _, k := range words {
		quoted = append(quoted, fmt.Sprintf("%q", k))
	}
	return "; did you mean " + Or(quoted) + "?"
}

// Or joins alternatives: "a, b or c".
func Or(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours between two words.
func distance(a, b string) int {
	if len(a) > maxWord || len(b) > maxWord {
		return maxWord
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range len(b) + 1 {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
