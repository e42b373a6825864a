//go:build !race

// Nothing here runs side by side, and the race detector makes it five times slower.

package kvconductor_test

import (
	"bytes"
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// markdown lists the Markdown files of the repository.
func markdown(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(files(t), func(name string) bool { return !strings.HasSuffix(name, ".md") })
}

// TestReadmeLength requires that a newcomer can read the README in a few screens.
func TestReadmeLength(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(string(read(t, "README.md")), "\n"), "\n")
	if len(lines) > 120 {
		t.Errorf("README.md has %d lines; the most is 120", len(lines))
	}
	for i, line := range lines {
		if n := len([]rune(line)); n > 160 {
			t.Errorf("README.md:%d: %d characters; the most is 160", i+1, n)
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestDocsLinkWhatExists requires that the target of every relative link exists, and its heading.
func TestDocsLinkWhatExists(t *testing.T) {
	all := files(t)
	links := 0
	for _, name := range markdown(t) {
		text := fence.ReplaceAll(read(t, name), nil)
		for _, m := range link.FindAllSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(string(m[1]), "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			if target = path.Join(path.Dir(name), target); strings.HasPrefix(string(m[1]), "#") {
				target = name
			}
			if !slices.Contains(all, target) && !slices.ContainsFunc(all, func(f string) bool { return within(f, target) }) {
				t.Errorf("%s: links to %s, which does not exist", name, m[1])
			} else if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: links to %s; %s has no such heading", name, m[1], target)
			}
		}
	}
	if links < 20 {
		t.Errorf("only %d links were found", links)
	}
}

// anchors returns the names under which GitHub links to the headings of a Markdown text.
func anchors(text []byte) (out []string) {
	for _, m := range heading.FindAllSubmatch(fence.ReplaceAll(text, nil), -1) {
		slug := noSlug.ReplaceAll(bytes.ToLower(m[1]), nil)
		out = append(out, strings.ReplaceAll(string(slug), " ", "-"))
	}
	return out
}

var (
	ruleHeading = regexp.MustCompile(`(?m)^#### ([A-Z]+)-([0-9]+)$`)
	ruleID      = regexp.MustCompile(`\b([A-Z]+)-[0-9]+\b`)
	oldRule     = regexp.MustCompile(`(?i)\bdecisions? (?:# |// )?[0-9]`)
)

// TestRulesAreNumberedAndCited requires that rules are numbered within their topic, that each has an example,
// and that every id that code, tests or documents cite is the id of a rule.
func TestRulesAreNumberedAndCited(t *testing.T) {
	const name = "docs/semantics.md"
	text := string(read(t, name))
	rules, last := map[string]bool{}, map[string]int{}
	headings := ruleHeading.FindAllStringSubmatchIndex(text, -1)
	for i, at := range headings {
		topic, number := text[at[2]:at[3]], text[at[4]:at[5]]
		end := len(text)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		if last[topic]++; strconv.Itoa(last[topic]) != number {
			t.Errorf("%s: %s-%s is rule %d of its topic", name, topic, number, last[topic])
		}
		if !strings.Contains(text[at[1]:end], "Example:") {
			t.Errorf("%s: %s-%s has no example", name, topic, number)
		}
		rules[topic+"-"+number] = true
	}
	cited := 0
	for _, file := range files(t) {
		if ext := path.Ext(file); !slices.Contains([]string{".go", ".md", ".txt", ".yaml"}, ext) {
			continue
		}
		data := read(t, file)
		if found := oldRule.Find(data); found != nil {
			t.Errorf("%s: cites a rule by number: %q", file, found)
		}
		for _, m := range ruleID.FindAllStringSubmatch(string(data), -1) {
			if last[m[1]] == 0 {
				continue
			}
			if cited++; !rules[m[0]] {
				t.Errorf("%s: cites %s, which is no rule of %s", file, m[0], name)
			}
		}
	}
	if len(rules) < 80 || cited < 200 {
		t.Errorf("only %d rules and %d citations were found", len(rules), cited)
	}
}

// phrases show that a sentence has to be decoded: nouns are missing, or one word has
// several meanings.
var phrases = regexp.MustCompile(`(?i)\b(?:` + strings.ReplaceAll(strings.Join([]string{
	"whoever", "anew", "is told", "are told", "that is none", "are let be",
}, "|"), " ", `\s+`) + `)\b`)

var (
	comment  = regexp.MustCompile(`(?m)^.*?(?:^|[ \t])//(.*)$|^.*$`)
	codeSpan = regexp.MustCompile("`[^`\n]*`")
)

// TestCommentsUseNoListedPhrase requires that documents and comments say who does what.
func TestCommentsUseNoListedPhrase(t *testing.T) {
	for _, name := range files(t) {
		text := read(t, name)
		switch {
		case name == "docs_test.go":
			continue
		case strings.HasSuffix(name, ".md") || name == "openapi.yaml":
			text = codeSpan.ReplaceAll(text, []byte("x"))
		case strings.HasSuffix(name, ".go"):
			text = comment.ReplaceAll(text, []byte("$1"))
		default:
			continue
		}
		for _, at := range phrases.FindAllIndex(text, -1) {
			t.Errorf("%s:%d: %q", name, 1+bytes.Count(text[:at[0]], []byte("\n")), text[at[0]:at[1]])
		}
	}
}

var goFile = regexp.MustCompile("`([a-z_/]*\\.go)`")

// TestGoFilesExist requires that every Go file a document names exists, in a room the path
// may leave out. The CHANGELOG and the journal of measurements tell of files that were.
func TestGoFilesExist(t *testing.T) {
	all := files(t)
	for _, name := range markdown(t) {
		if name == "CHANGELOG.md" || within(name, "docs/benchmarks") {
			continue
		}
		for _, m := range goFile.FindAllSubmatch(read(t, name), -1) {
			file := string(m[1])
			if !slices.ContainsFunc(all, func(f string) bool { return f == file || strings.HasSuffix(f, "/"+file) }) {
				t.Errorf("%s: names %s, which does not exist", name, file)
			}
		}
	}
}

// TestDocumentsAreListed requires that the reading path leads to every page of docs.
func TestDocumentsAreListed(t *testing.T) {
	index := string(read(t, "docs/README.md"))
	for _, name := range markdown(t) {
		if page, ok := strings.CutPrefix(name, "docs/"); ok && path.Dir(page) == "." && page != "README.md" &&
			!strings.Contains(index, "]("+page) {
			t.Errorf("docs/README.md does not link to %s", page)
		}
	}
}

// TestExamplesAreAnswers requires that the rows of answers in the pages for users are those of a real server, which
// answers the script of the same name in conductor/testdata.
func TestExamplesAreAnswers(t *testing.T) {
	for _, page := range []string{"matching", "freshness"} {
		script := string(read(t, "conductor/testdata/"+page+".txt"))
		found := 0
		for _, block := range fence.FindAllString(string(read(t, "docs/"+page+".md")), -1) {
			text, ok := strings.CutPrefix(block, "```json\n")
			if !ok {
				continue
			}
			for name, row := range rowsOf(t, strings.TrimSuffix(text, "```")) {
				if found++; !strings.Contains(script, "default "+name+" "+row+"\n") {
					t.Errorf("docs/%s.md: no answer of the script has the row of %s: %s", page, name, row)
				}
			}
		}
		if found < 2 {
			t.Errorf("docs/%s.md: only %d rows were found", page, found)
		}
	}
}

// Rows returns the rows of an answer, or of its default tenant, without spaces, by instance.
func rowsOf(t *testing.T, text string) map[string]string {
	t.Helper()
	var rows map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if tenant, ok := rows["default"]; ok && len(rows) == 1 {
		return rowsOf(t, string(tenant))
	}
	out := map[string]string{}
	for name, row := range rows {
		var compact bytes.Buffer
		if err := json.Compact(&compact, row); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out[name] = compact.String()
	}
	return out
}
