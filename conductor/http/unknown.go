package http

import (
	"strconv"
	"strings"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/prompt"
	"example.com/conductor/spelling"
)

// Bounds of the warnings about one body.
const (
	maxWarnings    = 8
	maxWarningName = 64 // bytes
)

// checkNames counts the unknown fields of the body that r has scanned in a codec. It returns an error
// for the first one if the request is strict. A request that wants warnings gets one for
// each of the first maxWarnings.
func (a *api) checkNames(r *body.Request, in body.Codec, s body.Shape, strict, warn bool) (warnings []string, err error) {
	if r.Unknown == 0 {
		return nil, nil
	}
	a.conductor.Matcher().CountUnknownFields(r.Unknown)
	if !strict && !warn {
		return nil, nil
	}
	return unknownNames(r, in, s, strict)
}

// unknownNames makes the warnings of checkNames and, for a strict request, the error.
func unknownNames(r *body.Request, in body.Codec, s body.Shape, strict bool) (warnings []string, err error) {
	src := r.Src
	if in == body.JSON {
		src = src[prompt.Space(src, 0):]
	}
	s.Strangers(in, src, func(path, name string, near body.Shape) {
		if len(warnings) == maxWarnings {
			return
		}
		if len(name) > maxWarningName {
			name = name[:maxWarningName] + "…"
		}
		name = strings.ToValidUTF8(name, "")
		message := "unknown field " + path + name
		if closest := spelling.Closest(name, near.Names()); closest != "" {
			message += "; did you mean " + closest + "?"
		}
		if strict && err == nil {
			err = invalid.Field(path+name, "unknown_field", "%s", message)
		}
		warnings = append(warnings, message)
	})
	if more := r.Unknown - len(warnings); more > 0 {
		warnings = append(warnings, strconv.Itoa(more)+" more unknown fields")
	}
	return warnings, err
}

// writeWarnings writes warnings as a pair of an answer, if there are any.
func writeWarnings(e *body.Encoder, warnings []string) {
	if len(warnings) == 0 {
		return
	}
	e.Name("warnings")
	e.List(len(warnings))
	for _, w := range warnings {
		e.Text(w)
	}
	e.EndList()
}
