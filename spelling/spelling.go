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

// Closest returns the word of known that word was probably meant to be, or "".
func Closest(word string, known []string) string {
	lower := strings.ToLower(word)
	for _, k := range known {
		if strings.ToLower(k) == lower || slices.Contains(otherNames[lower], k) {
			return k
		}
	}
	for _, k := range known {
		if rest, begins := strings.CutPrefix(strings.ToLower(k), lower); begins && len(word) > 2 && strings.ContainsAny(rest[:1], "-_") {
			return k
		}
	}
	best, at := 1+min(2, len(lower)/3), "" // one slip in three letters, two at most
	for _, k := range known {
		if d := distance(lower, strings.ToLower(k)); d < best {
			best, at = d, k
		}
	}
	return at
}

// DidYouMean returns how a message about an unknown word ends, with the word of known that was probably meant; "" if there is none.
func DidYouMean(word string, known []string) string {
	if closest := Closest(word, known); closest != "" {
		return fmt.Sprintf("; did you mean %q?", closest)
	}
	return ""
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours between two words.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64 // no key is that long, and the table is quadratic
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
