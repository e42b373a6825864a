package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// isHeader reports whether a line is "Name: value" and not JSON or text.
func isHeader(line string) bool {
	name, _, ok := strings.Cut(line, ":")
	return ok && name != "" && !strings.ContainsAny(name, " {}[]\"")
}

// sameHeader compares without regard to order and spaces in lists; a header
// that must not be there has no value.
func sameHeader(h http.Header, name, want string) bool {
	split := func(v string) []string {
		parts := strings.Split(strings.ReplaceAll(strings.ToLower(v), " ", ""), ",")
		slices.Sort(parts)
		return parts
	}
	return slices.Equal(split(h.Get(name)), split(want))
}

// CompareBody compares an answer with its expectation: nothing at all, lines
// of "exact" and "contains", or one JSON document.
func CompareBody(want []string, answer string) error {
	if len(want) == 0 {
		if answer != "" {
			return fmt.Errorf("the body is not empty")
		}
		return nil
	}
	document := ""
	for _, line := range want {
		if text, ok := strings.CutPrefix(line, "exact "); ok {
			if answer != text {
				return fmt.Errorf("another body")
			}
		} else if text, ok := strings.CutPrefix(line, "contains "); ok {
			if !strings.Contains(answer, text) {
				return fmt.Errorf("no %q in it", text)
			}
		} else if line == "anything" {
			continue
		} else {
			document += line + "\n"
		}
	}
	if document == "" {
		return nil
	}
	w, err := decodeJSON(document)
	if err != nil {
		return fmt.Errorf("the expectation: %w", err)
	}
	g, err := decodeJSON(answer)
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	return compareJSON("", w, g)
}

// decodeJSON reads a document, its numbers as they are.
func decodeJSON(text string) (any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}

// compareJSON holds that got has all of want. "*" is any value, "absent" a key
// that is not there; an object may have more keys, unless want says "...": "no".
func compareJSON(at string, want, got any) error {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is no object", at)
		}
		for key, value := range w {
			inner, there := g[key]
			switch {
			case key == "...":
				for k := range g {
					if _, listed := w[k]; !listed {
						return fmt.Errorf("%s has %q", at, k)
					}
				}
			case value == "absent":
				if there {
					return fmt.Errorf("%s.%s is there", at, key)
				}
			case !there:
				return fmt.Errorf("%s.%s is missing", at, key)
			default:
				if err := compareJSON(at+"."+key, value, inner); err != nil {
					return err
				}
			}
		}
		if len(w) == 0 && len(g) != 0 {
			return fmt.Errorf("%s is not empty", at)
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%s has other elements", at)
		}
		for i := range w {
			if err := compareJSON(fmt.Sprintf("%s[%d]", at, i), w[i], g[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if want != "*" && want != got {
		return fmt.Errorf("%s is %v", at, got)
	}
	return nil
}

// Numbers reads 3..7, 1,2,3, 5x16 (sixteen times 5) or nothing.
func Numbers(text string) []json.Number {
	out := []json.Number{}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		if low, high, ok := strings.Cut(part, ".."); ok {
			from, _ := strconv.Atoi(low)
			to, _ := strconv.Atoi(high)
			for ; from <= to; from++ {
				out = append(out, json.Number(strconv.Itoa(from)))
			}
		} else if value, times, ok := strings.Cut(part, "x"); ok {
			n, _ := strconv.Atoi(times)
			for range n {
				out = append(out, json.Number(value))
			}
		} else {
			out = append(out, json.Number(part))
		}
	}
	return out
}
