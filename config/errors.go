package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.com/conductor/spelling"
)

// FieldError is one mistake or warning, with the place of the setting. Load joins them with errors.Join, one
// line each.
type FieldError struct {
	Path    string // the key, such as sources[2].endpoint; "" when the whole place is meant
	Place   string // file:line:column, file, env NAME or flag --name; "" for a value built in code
	Message string

	at place
}

// Error returns "place: path: message" without the parts that are empty.
func (e FieldError) Error() string {
	var parts []string
	for _, s := range []string{e.Place, e.Path, e.Message} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// A place is where a value was given; its zero value is "by default".
type place struct {
	layer     int    // reporting order: file, environment, flags
	name      string // file name, "env NAME" or "flag --name"
	line, col int    // from 1; 0 when unknown
}

const (
	inFile = iota + 1
	inEnv
	inFlags
)

func (p place) String() string {
	switch {
	case p.line > 0 && p.col > 0:
		return fmt.Sprintf("%s:%d:%d", p.name, p.line, p.col)
	case p.line > 0:
		return fmt.Sprintf("%s:%d", p.name, p.line)
	}
	return p.name
}

// A report collects problems and lists them in the order of a reader: file from top to
// bottom, environment, flags.
type report []FieldError

// addProblem records a mistake in the value of path, which stands at.
func (r *report) addProblem(at place, path, format string, args ...any) {
	*r = append(*r, FieldError{path, at.String(), fmt.Sprintf(format, args...), at})
}

// sorted returns the problems in order.
func (r report) sorted() []FieldError {
	slices.SortStableFunc(r, func(a, b FieldError) int {
		return cmp.Or(cmp.Compare(a.at.layer, b.at.layer), cmp.Compare(a.at.line, b.at.line), cmp.Compare(a.at.col, b.at.col))
	})
	return r
}

// err joins the problems, nil when there are none.
func (r report) err() error {
	var errs []error
	for _, e := range r.sorted() {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// InFlags reports whether one of the mistakes of Load is in a flag, so that the command line is wrong.
func InFlags(err error) bool {
	switch e := err.(type) {
	case FieldError:
		return e.at.layer == inFlags
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), InFlags)
	}
	return false
}

// didYouMean completes a message about an unknown word, or returns "".
func didYouMean(word string, known []string) string {
	if closest := spelling.Closest(word, known); closest != "" {
		return fmt.Sprintf("; did you mean %q?", closest)
	}
	return ""
}
