package main

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/spelling"
)

// sourceFilter chooses sources by what a flag for each names: a source passes if for every flag that is given one of the
// patterns fits. Patterns are those of shells: prefill-*.
type sourceFilter struct{ flags []*sourceFlag }

// sourceFlag is one flag of a sourceFilter.
type sourceFlag struct {
	name     string
	patterns []string
	words    func(*client.Service) []string // that a pattern may fit
}

// addFlags defines the flags. Of a list of replicas only those are known that fleet says.
func (f *sourceFilter) addFlags(cmd *cobra.Command) {
	add := func(name, meaning string, words func(*client.Service) []string) {
		one := &sourceFlag{name: name, words: words}
		cmd.Flags().StringSliceVar(&one.patterns, name, nil, meaning)
		f.flags = append(f.flags, one)
	}
	add("instance", "show sources of this instance `name` alone; patterns such as 'prefill-*' and lists with commas are taken too",
		func(s *client.Service) []string { return []string{s.InstanceID} })
	add("tenant", "show sources of this tenant `name` alone", func(s *client.Service) []string { return []string{s.TenantID} })
	add("model", "show sources of this model `name` alone, which may be an alias",
		func(s *client.Service) []string { return append([]string{s.ModelName, modelText(s)}, s.Aliases...) })
	add("state", "show sources in this `state` alone: "+strings.Join(sourceStates, ", "),
		func(s *client.Service) []string { return []string{s.State} })
	add("finding", "show sources with this finding's `code` alone; '*' is any finding", findingCodes)
}

// findingCodes returns the codes of a source's findings, but for the one that its state says already.
func findingCodes(s *client.Service) (codes []string) {
	for _, f := range s.Findings {
		if f.Code != s.State {
			codes = append(codes, f.Code)
		}
	}
	return codes
}

// check returns the first pattern that nothing can fit.
func (f *sourceFilter) check() error {
	for _, one := range f.flags {
		for _, pattern := range one.patterns {
			if _, err := path.Match(pattern, ""); err != nil {
				return cli.Usagef("--%s: %q is no pattern: a [ needs its ], or a \\ before it", one.name, pattern)
			}
			if one.name != "state" || strings.ContainsAny(pattern, `*?[\`) || slices.Contains(sourceStates, pattern) {
				continue
			}
			if near := spelling.Closest(pattern, sourceStates); near != "" {
				return cli.Usagef("--state: %q is no state; did you mean %q?", pattern, near)
			}
			return cli.Usagef("--state: %q is none of %s", pattern, strings.Join(sourceStates, ", "))
		}
	}
	return nil
}

// given reports whether any flag is given.
func (f *sourceFilter) given(names ...string) bool {
	return slices.ContainsFunc(f.flags, func(one *sourceFlag) bool {
		return len(one.patterns) > 0 && (len(names) == 0 || slices.Contains(names, one.name))
	})
}

// passes reports whether a source is to be shown.
func (f *sourceFilter) passes(s *client.Service) bool {
	return !slices.ContainsFunc(f.flags, func(one *sourceFlag) bool { return !one.passes(s) })
}

func (one *sourceFlag) passes(s *client.Service) bool {
	return len(one.patterns) == 0 || slices.ContainsFunc(one.patterns, func(pattern string) bool {
		return slices.ContainsFunc(one.words(s), func(word string) bool {
			fits, err := path.Match(strings.ReplaceAll(pattern, "/", slash), strings.ReplaceAll(word, "/", slash))
			return fits && err == nil || word == pattern
		})
	})
}

// slash stands for the / of names of models, which no * of a path fits.
const slash = "\x00"

// apply leaves only the sources that match the filter in an answer, and of its other lists only entries about such sources.
func (f *sourceFilter) apply(answer *servicesAnswer) {
	if !f.given() {
		return
	}
	answer.Services = slices.DeleteFunc(answer.Services, func(s client.Service) bool { return !f.passes(&s) })
	answer.Discovery = slices.DeleteFunc(answer.Discovery, func(d askedRow) bool { return !f.passesAsked(&d) })
	answer.Unregistered = slices.DeleteFunc(answer.Unregistered, func(u unregisteredRow) bool { return !f.passesUnregistered(&u) })
	answer.LMCache, answer.Unclaimed = nil, nil
}

// passesAsked reports whether an engine that is asked where it publishes is to be shown.
func (f *sourceFilter) passesAsked(d *askedRow) bool {
	return !f.given("model", "state", "finding") && f.passes(&client.Service{InstanceID: d.InstanceID, TenantID: d.TenantID})
}

// passesUnregistered reports whether something that queries ask for and no engine is registered for is to be shown.
func (f *sourceFilter) passesUnregistered(u *unregisteredRow) bool {
	return !f.given("instance", "state", "finding") && f.passes(&client.Service{TenantID: u.TenantID, ModelName: u.ModelName})
}

// applyJSON does what apply does, and leaves all that it does not know as it is.
func (f *sourceFilter) applyJSON(answer []byte) (map[string]json.RawMessage, error) {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(answer, &parts); err != nil {
		return nil, err
	}
	n, err := keepRows(parts, "services", f.passes)
	if err != nil {
		return nil, err
	}
	if _, err = keepRows(parts, "discovery", f.passesAsked); err != nil {
		return nil, err
	}
	if _, err = keepRows(parts, "unregistered", f.passesUnregistered); err != nil {
		return nil, err
	}
	delete(parts, "lmcache")
	delete(parts, "unclaimed")
	parts["count"] = json.RawMessage(strconv.Itoa(n))
	return parts, nil
}

// keepRows keeps the rows of a list that pass, and returns how many these are. Lists that the answer does not have are left out.
func keepRows[T any](parts map[string]json.RawMessage, name string, passes func(*T) bool) (int, error) {
	if parts[name] == nil {
		return 0, nil
	}
	var rows []json.RawMessage
	if err := json.Unmarshal(parts[name], &rows); err != nil {
		return 0, err
	}
	kept := []json.RawMessage{}
	for _, text := range rows {
		row := new(T)
		if err := json.Unmarshal(text, row); err != nil {
			return 0, err
		}
		if passes(row) {
			kept = append(kept, text)
		}
	}
	var err error
	parts[name], err = json.Marshal(kept)
	return len(kept), err
}

// whyNone says why no source of all is shown.
func (f *sourceFilter) whyNone(all []client.Service) string {
	for _, one := range f.flags {
		if len(one.patterns) == 0 || slices.ContainsFunc(all, func(s client.Service) bool { return one.passes(&s) }) {
			continue
		}
		var words []string
		for i := range all {
			words = append(words, one.words(&all[i])...)
		}
		text := fmt.Sprintf("none of %s has the %s %s", spelling.Count(len(all), "source"), one.name, strings.Join(one.patterns, ", "))
		if near := spelling.Closest(one.patterns[0], words); near != "" {
			text += fmt.Sprintf("; did you mean %q?", near)
		}
		return text
	}
	return fmt.Sprintf("none of %s has all that the flags name", spelling.Count(len(all), "source"))
}
