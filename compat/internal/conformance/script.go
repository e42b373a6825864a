// Package conformance is what the scripts of dialects that others define are run with:
// the notation of scripts, publishers on real sockets, comparing answers, servers as
// processes. What a step does, the dialect's own test says.
//
// A script is a list of steps,
//
//	[only KIND] [eventually] command [word] [key=value ...]
//	lines of input
//	---- [KIND]
//	lines of expected output
//
// with a blank line after each. KIND is a kind of server; a step that two kinds answer
// differently has two expectations.
package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Patience bounds what other goroutines and processes bring about; nothing
// waits for it to pass.
const Patience = 30 * time.Second

// Step is one command of a script.
type Step struct {
	Line       int    // of its first line, from 1
	Only       string // kind of server; "" for all
	Eventually bool   // tried again until it is as expected
	Name       string
	Words      []string // neither command nor key=value
	Keys       map[string]string
	Input      []string
	Want       []Expectation
	Raw        []string // as written, up to the first ----
}

// Expectation is what a step should bring about on one kind of server.
type Expectation struct {
	Of    string // kind of server, "" for all
	Lines []string
}

// Expected returns the lines a server's output must have, nil if the step has
// none for it.
func (st *Step) Expected(kind string) *[]string {
	for i := range st.Want {
		if st.Want[i].Of == "" || st.Want[i].Of == kind {
			return &st.Want[i].Lines
		}
	}
	return nil
}

// Until polls with a pause, and reports whether ok held in time.
func Until(ok func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(Patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// Parse returns the steps, and the comments that precede each. Commands named in literal
// have no key=value in their first line.
func Parse(t *testing.T, file, text string, literal ...string) (steps []Step, comments map[int][]string) {
	comments = make(map[int][]string)
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		if lines[i] == "" || strings.HasPrefix(lines[i], "#") {
			comments[len(steps)] = append(comments[len(steps)], lines[i])
			i++
			continue
		}
		st := Step{Line: i + 1, Keys: make(map[string]string)}
		for ; i < len(lines) && lines[i] != "" && !strings.HasPrefix(lines[i], "----"); i++ {
			st.Raw = append(st.Raw, lines[i])
		}
		st.head(literal)
		st.Input = st.Raw[1:]
		for ; i < len(lines) && lines[i] != ""; i++ {
			if of, ok := strings.CutPrefix(lines[i], "----"); ok {
				st.Want = append(st.Want, Expectation{Of: strings.TrimSpace(of)})
				continue
			}
			last := &st.Want[len(st.Want)-1]
			last.Lines = append(last.Lines, lines[i])
		}
		if st.Want == nil {
			t.Fatalf("%s:%d: command without ----", file, st.Line)
		}
		for j := range st.Want {
			if st.Want[j].Lines == nil {
				st.Want[j].Lines = []string{}
			}
		}
		steps = append(steps, st)
	}
	return steps, comments
}

// head reads the first line of a step.
func (st *Step) head(literal []string) {
	words := strings.Fields(st.Raw[0])
	if words[0] == "only" {
		st.Only, words = words[1], words[2:]
	}
	if words[0] == "eventually" {
		st.Eventually, words = true, words[1:]
	}
	st.Name = words[0]
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok && !strings.HasPrefix(w, "/") && !slices.Contains(literal, st.Name) {
			st.Keys[key] = value
		} else {
			st.Words = append(st.Words, w)
		}
	}
}

// Print writes what Parse read.
func Print(steps []Step, comments map[int][]string) string {
	var out strings.Builder
	for i, st := range steps {
		for _, c := range comments[i] {
			out.WriteString(c + "\n")
		}
		out.WriteString(strings.Join(st.Raw, "\n") + "\n")
		for _, w := range st.Want {
			out.WriteString(strings.TrimSpace("---- "+w.Of) + "\n")
			for _, l := range w.Lines {
				out.WriteString(l + "\n")
			}
		}
	}
	for _, c := range comments[len(steps)] {
		out.WriteString(c + "\n")
	}
	return out.String()
}

// Has reports whether a word stands in the first line.
func (st *Step) Has(word string) bool {
	return slices.Contains(st.Words, word)
}
