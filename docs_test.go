package kvconductor_test

import (
	"bytes"
	"path"
	"regexp"
	"slices"
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

// TestLinks requires that the target of every relative link exists, and its heading.
func TestLinks(t *testing.T) {
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

// TestDocumentsAreListed requires that the reading path leads to every page of docs.
func TestDocumentsAreListed(t *testing.T) {
	index := string(read(t, "docs/README.md"))
	for _, name := range markdown(t) {
		if page, ok := strings.CutPrefix(name, "docs/"); ok && path.Dir(page) == "." && page != "README.md" && !strings.Contains(index, "]("+page) {
			t.Errorf("docs/README.md does not link to %s", page)
		}
	}
}
