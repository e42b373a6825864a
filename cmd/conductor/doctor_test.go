package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/internal/must"
)

// TestDoctorGroupsSources requires that equal findings are one entry, and that --all lists each.
func TestDoctorGroupsSources(t *testing.T) {
	t.Parallel()
	var all []advice
	for i := range 5 {
		all = append(all, newAdvice("http://s", fmt.Sprintf("e%d|default|0", i), "stale", fmt.Sprint("text ", i)))
	}
	all = append(all, newAdvice("http://s", "", "unclaimed_topic", "one"), newAdvice("http://s", "", "unclaimed_topic", "two"),
		newAdvice("http://s", "e0|default|0", doctor.FindingSilent, "three"))
	f := func(each bool, want string) {
		t.Helper()
		var out strings.Builder
		printAdvice(&out, all, each)
		if !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s, want %s", out.String(), want)
		}
	}
	f(false, `error stale: 5 sources, e0|default|0, e1|default|0, e2|default|0 and 2 more
  text 0
  http://s/docs/findings#stale
warning unclaimed_topic: server
  one
  http://s/docs/findings#unclaimed_topic
warning unclaimed_topic: server
  two
  http://s/docs/findings#unclaimed_topic
warning silent: e0|default|0
  three
  http://s/docs/findings#silent
`)
	f(true, "error stale: e0|default|0\n  text 0\n  http://s/docs/findings#stale\nerror stale: e1|default|0\n  text 1\n")
}

// TestDoctorLeadsToPages requires that the page and heading that advice leads to exist, and that runbooks give its severity.
func TestDoctorLeadsToPages(t *testing.T) {
	t.Parallel()
	for code, g := range guides {
		name, anchor, _ := strings.Cut(g.page, "#")
		text, err := os.ReadFile(filepath.Join(repository, "docs", name+".md"))
		must.Succeed(t, err)
		found := anchor == ""
		for _, line := range strings.Split(string(text), "\n") {
			if title := strings.TrimLeft(line, "#"); title != line {
				found = found || strings.ReplaceAll(strings.ToLower(strings.TrimSpace(title)), " ", "-") == anchor
			}
		}
		if !found {
			t.Errorf("%s: docs/%s.md has no heading %s", code, name, anchor)
		}
		if told := fmt.Sprintf("\n### %s\n\nSeverity: ", code); strings.Contains(string(text), told) &&
			!strings.Contains(string(text), told+string(g.severity)+".\n") {
			t.Errorf("%s: docs/%s.md gives it another severity than %s", code, name, g.severity)
		}
	}
}
