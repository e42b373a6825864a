package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"example.com/conductor/yamlfile"
)

// FieldError is one mistake or warning, with the place of the setting: file:line:column, file, env NAME or flag --name, "" for
// a value built in code. Load joins them with errors.Join, one line each.
type FieldError struct {
	yamlfile.Problem
	layer int
}

// A place is where a value was given; its zero value is "by default".
type place struct {
	layer          int // reporting order: file, environment, flags
	yamlfile.Place     // its name is that of the file, "env NAME" or "flag --name"
}

const (
	inFile = iota + 1
	inEnv
	inFlags
)

// placeIn returns a place of which only the name is known.
func placeIn(layer int, name string) place { return place{layer, yamlfile.Place{Name: name}} }

// A report collects problems and lists them in the order of a reader: file from top to
// bottom, environment, flags.
type report []FieldError

// addProblem records a mistake in the value of path, which stands at.
func (r *report) addProblem(at place, path, format string, args ...any) {
	*r = append(*r, FieldError{yamlfile.Problem{Place: at.Place, Path: path, Message: fmt.Sprintf(format, args...)}, at.layer})
}

// sorted returns the problems in order.
func (r report) sorted() []FieldError {
	slices.SortStableFunc(r, func(a, b FieldError) int {
		return cmp.Or(cmp.Compare(a.layer, b.layer), a.Place.Compare(b.Place))
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
		return e.layer == inFlags
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), InFlags)
	}
	return false
}
