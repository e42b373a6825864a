// Package scripttest runs scripts, the tests in testdata. A script is a list of steps,
//
//	[only KIND] [eventually] command [word] [key=value ...]
//	lines of input
//	---- [KIND]
//	lines of expected output
//
// with a blank line after each. Lines that begin with # are comments. KIND is a kind of
// server. A step that two kinds answer differently has two expectations. $NAME is a
// variable. The commands are those of the test that runs the script.
package scripttest

import (
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Patience bounds what other goroutines and processes bring about; nothing
// waits for it to pass.
const Patience = 2 * time.Minute

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

// Line returns a step of one line, without input and expectation.
func Line(text string) *Step {
	st := &Step{Keys: make(map[string]string), Raw: []string{text}}
	st.head(nil)
	return st
}

// Parse reads a file. It returns the steps, and the comments that precede each. Commands
// named in literal have no key=value in their first line.
func Parse(t testing.TB, file string, literal ...string) (steps []Step, comments map[int][]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	comments = make(map[int][]string)
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
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

// Runner runs the steps of a script one after the other.
type Runner struct {
	T       *testing.T
	Kind    string            // of the server under test
	Vars    map[string]string // values of variables
	Rewrite bool              // the outputs of this run become the expectations of the file

	// Execute runs a step once. It returns the output, and an error unless the output is as
	// expected.
	Execute func(st *Step, want []string) (got string, bad error)
	// Patient reports whether a step is tried again like one that says eventually; nil is
	// never.
	Patient func(st *Step) bool
}

// Run runs the steps of a file.
func (r *Runner) Run(file string, steps []Step, comments map[int][]string) {
	r.T.Helper()
	for i := range steps {
		r.run(file, &steps[i])
	}
	if r.Rewrite {
		if err := os.WriteFile(file, []byte(Print(steps, comments)), 0o644); err != nil {
			r.T.Fatal(err)
		}
	}
}

// run executes one step and compares what came out.
func (r *Runner) run(file string, st *Step) {
	r.T.Helper()
	if st.Only != "" && st.Only != r.Kind {
		return
	}
	want := st.Expected(r.Kind)
	if want == nil {
		r.T.Fatalf("%s:%d: no expectation for %s", file, st.Line, r.Kind)
	}
	got, bad := r.Execute(st, *want)
	if bad != nil && (st.Eventually || !r.Rewrite && r.Patient != nil && r.Patient(st)) {
		Until(func() bool {
			got, bad = r.Execute(st, *want)
			return bad == nil
		})
	}
	switch {
	case bad == nil:
	case !r.Rewrite:
		r.T.Errorf("%s:%d: %s\n%v\ngot:\n%s\nwant:\n%s", file, st.Line, r.Expand(strings.Join(st.Raw, "\n")), bad, r.Unexpand(got),
			strings.Join(*want, "\n"))
	case got == "":
		*want = nil
	default:
		*want = strings.Split(r.Unexpand(strings.TrimRight(got, "\n")), "\n")
	}
}

// Same returns an error unless an output equals the expectation.
func (r *Runner) Same(got string, want []string) error {
	if strings.TrimRight(got, "\n") != r.Expand(strings.Join(want, "\n")) {
		return errors.New("not as expected")
	}
	return nil
}

// variable is $NAME, or a part of it.
var variable = regexp.MustCompile(`\$[A-Za-z]+[0-9]*(\.[a-z]+)?`)

// Expand fills in variables. $bin is part of the notation for bytes.
func (r *Runner) Expand(text string) string {
	if r.Vars == nil {
		return text
	}
	return variable.ReplaceAllStringFunc(text, func(name string) string {
		if name == "$bin" {
			return name
		}
		v, ok := r.Vars[name[1:]]
		if !ok {
			r.T.Fatalf("no variable %s", name)
		}
		return v
	})
}

// ExpandAll fills in variables of lines.
func (r *Runner) ExpandAll(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = r.Expand(l)
	}
	return out
}

// Unexpand puts variables back, unless a value is too short to be one for sure.
func (r *Runner) Unexpand(text string) string {
	names := slices.SortedFunc(maps.Keys(r.Vars), func(a, b string) int { return len(r.Vars[b]) - len(r.Vars[a]) })
	for _, name := range names {
		if len(r.Vars[name]) > 9 {
			text = strings.ReplaceAll(text, r.Vars[name], "$"+name)
		}
	}
	return text
}

// Word returns a word of a step.
func (r *Runner) Word(st *Step, i int) string {
	r.T.Helper()
	if i >= len(st.Words) {
		r.T.Fatalf("line %d: %s needs another word", st.Line, st.Name)
	}
	return r.Expand(st.Words[i])
}

// Key returns the value of a key of a step.
func (r *Runner) Key(st *Step, name, otherwise string) string {
	if v, ok := st.Keys[name]; ok {
		return r.Expand(v)
	}
	return otherwise
}

// Number returns the value of a key of a step.
func (r *Runner) Number(st *Step, name string, otherwise uint64) uint64 {
	r.T.Helper()
	n, err := strconv.ParseUint(r.Key(st, name, strconv.FormatUint(otherwise, 10)), 10, 64)
	if err != nil {
		r.T.Fatalf("line %d: %v", st.Line, err)
	}
	return n
}
