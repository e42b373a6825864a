package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/conductor/doctor"
	"example.com/conductor/internal/must"
)

// TestDoctorGroupsSources requires that sources with one sentence are one entry, that no source is under another one's sentence,
// and that --all lists each.
func TestDoctorGroupsSources(t *testing.T) {
	t.Parallel()
	var all []advice
	for i := range 12 {
		text := "there has never been a connection"
		if i%2 == 1 {
			text = fmt.Sprint("no connection since ", i)
		}
		all = append(all, newAdvice("http://s", fmt.Sprintf("e%d|default|0", i), "stale", text))
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
	for i := range all[:12] { // the last observation does not part sources with one sentence
		all[i].cause = fmt.Sprintf(" (port %d)", i)
		all[i].Text += all[i].cause
	}
	f(false, `error stale: 6 sources, e0|default|0, e2|default|0, e4|default|0 and 3 more
  there has never been a connection (such as: port 0)
  http://s/docs/findings#stale
error stale: e1|default|0
  no connection since 1 (port 1)
  http://s/docs/findings#stale
error stale: e3|default|0
  no connection since 3 (port 3)
  http://s/docs/findings#stale
error stale: 4 more sources, with other sentences: conductor doctor --all lists them
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
	f(true, "error stale: e0|default|0\n  there has never been a connection (port 0)\n  http://s/docs/findings#stale\n"+
		"error stale: e1|default|0\n  no connection since 1 (port 1)\n")
}

// TestDoctorOnEngineThatIsAsked checks the advice about an engine that has no source yet.
func TestDoctorOnEngineThatIsAsked(t *testing.T) {
	t.Parallel()
	rank, learns := 0, "its block size is not known before its first events: wait for them, or register it with block_size"
	f := func(row askedRow, severity doctor.Severity, want string) {
		t.Helper()
		row.InstanceID, row.TenantID = "c", "default"
		if a := row.advice(""); a.Severity != severity || a.Text != want || a.Source != "c|default" {
			t.Errorf("%+v", a)
		}
	}
	f(askedRow{DPRank: &rank, State: "learning", LastError: learns}, doctor.Info, learns)
	f(askedRow{DPRank: &rank, State: "waiting", LastError: "no place"}, doctor.Error,
		"its first events, which tell its block size, have not come: check its endpoint, or register it with block_size (no place)")
	f(askedRow{State: "waiting", LastError: "refused"}, doctor.Error,
		"the engine has not told where it publishes: check its HTTP server and discover (refused)")
	f(askedRow{State: "waiting"}, doctor.Error, "the engine has not told where it publishes: check its HTTP server and discover")
}

// TestDoctorLeadsToPages requires that the page and heading that advice leads to exist, and that runbooks give its severity.
func TestDoctorLeadsToPages(t *testing.T) {
	t.Parallel()
	codes := []string{"no_sources", "not_ready", "memory_bound", "discovery", "unclaimed", "unclaimed_topic", "not_registered", "stale"}
	for _, code := range slices.AppendSeq(codes, maps.Keys(pages)) {
		a := newAdvice("", "", code, "")
		name, anchor, _ := strings.Cut(strings.TrimPrefix(a.Runbook, "/docs/"), "#")
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
			!strings.Contains(string(text), told+string(a.Severity)+".\n") {
			t.Errorf("%s: docs/%s.md gives it another severity than %s", code, name, a.Severity)
		}
	}
}
