package yamlfile

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// read parses a text and reads the maps in the list at its top. It returns their pairs, and what was reported.
func read(text string, secrets bool) (maps [][]Pair, said string) {
	var problems []Problem
	f := &File{Name: "f.yaml", Secrets: secrets, Report: func(p Problem) { problems = append(problems, p) }}
	if f.Parse([]byte(text)); f.Root != nil {
		elements, _ := f.Elements(f.Root, "top")
		for i, e := range elements {
			path := fmt.Sprintf("top[%d]", i)
			pairs, _ := f.Pairs(e, path)
			maps = append(maps, pairs)
			for _, p := range pairs {
				if p.Name == "wrong" {
					f.AddUnknownKey(p, path, "")
				}
			}
		}
	}
	if err := Join(problems); err != nil {
		said = err.Error()
	}
	return maps, said
}

// TestPairs follows aliases and merges.
func TestPairs(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		maps, said := read(text, false)
		var last []string
		for _, p := range maps[len(maps)-1] {
			last = append(last, p.Name+"="+p.Value.Value)
		}
		if got := strings.Join(last, " ") + "|" + said; got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	f("[{a: 1, b: 2}]", "a=1 b=2|")
	f("[~]", "|")
	f("[&x {a: 1}, *x]", "a=1|")
	f("[&x {a: 1, b: 2}, {b: 3, <<: *x}]", "b=3 a=1|")
	f("[&x {a: 1}, &y {b: 2, a: 3}, {<<: [*x, *y]}]", "a=1 b=2|")
	f("[&x {a: 1}, &y {<<: *x, b: 2}, {<<: *y, c: 3}]", "c=3 b=2 a=1|")
	f("[{a: 1, a: 2}]", `a=1|f.yaml:1:9: top[0].a: stands twice; the first is at f.yaml:1:3`)
	f("[[]]", "|f.yaml:1:2: top[0]: must be a map of keys, not a list")
	f("[text]", `|f.yaml:1:2: top[0]: must be a map of keys, not the text "text"`)
	f("[&x {<<: *x, a: 1}]", "a=1|f.yaml:1:10: top[0]: << merges a map into itself")
	f("[&x {<<: {<<: [*x]}, a: 1}]", "a=1|f.yaml:1:15: top[0]: << merges a map into itself")
	f("[&x {wrong: 1}, *x]", "wrong=1|f.yaml:1:6: top[0].wrong: unknown key\nf.yaml:1:6: top[1].wrong: unknown key")
	f("[&x {wrong: 1}, {<<: *x}]", "wrong=1|f.yaml:1:6: top[0].wrong: unknown key\nf.yaml:1:6: top[1].wrong: unknown key")
}

// TestBounds reads files that unfold to more than anybody can read.
func TestBounds(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if _, said := read(text, false); !strings.Contains(said, want) || strings.Count(said, "\n") > maxProblems {
			t.Errorf("%d lines, want %s: %.200s", strings.Count(said, "\n"), want, said)
		}
	}
	chain, bomb := "[&x0 {a: 1}", "[&x0 {a: 1}"
	for i := range 40 {
		chain += fmt.Sprintf(", &x%d {<<: *x%d}", i+1, i)
		bomb += fmt.Sprintf(", &x%d {<<: [%s]}", i+1, strings.Repeat(fmt.Sprintf("*x%d, ", i), 10))
	}
	f(chain+"]", "top[33]: more than 32 maps merge each other with <<")
	f(bomb+"]", "the file unfolds to more than 1048576 keys and elements")
	f("["+strings.Repeat("x, ", 2000)+"]", "more than 1000 mistakes: the rest of the file is not read")
	f("&x [*x]", "top[0]: must be a map of keys, not a list")
}

// TestSecrets holds that nothing is repeated of a file that may have secrets in the wrong places.
func TestSecrets(t *testing.T) {
	secret := "kvc_" + strings.Repeat("s3cret", 8)
	for _, text := range []string{"[" + secret + "]", "[!" + secret + " " + secret + "]", "[12" + strings.Repeat("3", 40) + "]",
		"[*" + secret + "]", "[{" + secret + ": 1, " + secret + ": 2}]", "[{? {a: " + secret + "} : 1}]"} {
		_, said := read(text, true)
		if said == "" || strings.Contains(said, "s3cret") || strings.Contains(said, "333") {
			t.Errorf("%s: %q", text, said)
		}
	}
}

// TestDescribeIsBounded describes a long text as often as a file with aliases can, and texts whose secret does not end where they
// are cut.
func TestDescribeIsBounded(t *testing.T) {
	long := "[&x '" + strings.Repeat("a@b:// ", 1<<19) + "'" + strings.Repeat(", *x", 900) + "]"
	for _, secrets := range []bool{false, true} {
		if _, said := read(long, secrets); len(said) > 1<<18 {
			t.Errorf("%d bytes", len(said))
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	Excerpt(long)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(len(long))/4 {
		t.Errorf("the beginning of a text of %d bytes takes %d: all of it was searched for secrets", len(long), took)
	}
	for _, end := range []string{"", "@host", "@host and more"} {
		for _, begin := range []string{"http://user:", "user:", `"http://user:`} {
			_, said := read("['"+begin+strings.Repeat("s3cret", 200)+end+"']", false)
			if strings.Contains(said, "s3c") && (end != "" || begin != "user:") {
				t.Errorf("%.20s…%s: %s", begin, end, said)
			}
		}
	}
	_, said := read("["+strings.Repeat("long", 300)+", !"+strings.Repeat("t", 300)+" {}]", false)
	if want := `not the text "` + strings.Repeat("long", 10) + `…"`; !strings.Contains(said, want) || len(said) > 300 {
		t.Errorf("%s, want %s", said, want)
	}
	_, said = read("[{? "+strings.Repeat("wrong", 300)+" : 1, ? "+strings.Repeat("wrong", 300)+" : 2}]", false)
	if len(said) > 300 {
		t.Errorf("a long key: %s", said)
	}
}
