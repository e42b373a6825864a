package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/yamlfile"
)

// maxValue bounds one value in bytes: aliases can repeat a longer one so often that the messages about it would fill the memory.
const maxValue = 64 << 10

// A tree is one parsed file of settings, with the values of its scalars.
type tree struct{ *yamlfile.File }

// parseTree reads a file.
func parseTree(name string, data []byte, problems *report) tree {
	t := tree{&yamlfile.File{Name: name, Report: func(p yamlfile.Problem) { *problems = append(*problems, FieldError{p, inFile}) }}}
	t.Parse(data)
	return t
}

func (t tree) placeOf(n *yaml.Node) place { return place{inFile, t.Place(n)} }

// readElements returns the elements of a list; null, and what is no list, is an empty one.
func (t tree) readElements(n *yaml.Node, path string) []*yaml.Node {
	elements, _ := t.Elements(n, path)
	return elements
}

// readValue reads a value of a kind that may be a list of texts.
func (t tree) readValue(n *yaml.Node, path string, k kind) (any, bool) {
	if !k.list || yamlfile.Resolve(n).Kind != yaml.SequenceNode {
		return t.readScalar(n, path, k)
	}
	k.wants = "text"
	var out []string
	all := true
	for i, e := range t.readElements(n, path) {
		if t.Full() {
			return nil, false
		}
		v, ok := t.readScalar(e, fmt.Sprintf("%s[%d]", path, i), k)
		if all = all && ok; ok {
			out = append(out, v.([]string)...)
		}
	}
	return out, all
}

// readScalar reads a value of a kind, or reports why it cannot be read.
func (t tree) readScalar(n *yaml.Node, path string, k kind) (any, bool) {
	n = yamlfile.Resolve(n)
	tag := n.ShortTag()
	fits := n.Kind == yaml.ScalarNode && (slices.Contains(k.tags, tag) ||
		k.literal != "" && tag == "!!str" && strings.EqualFold(n.Value, k.literal))
	switch {
	case len(n.Value) > maxValue:
		t.AddProblem(n, path, "must be %s, not %s of more than %d KiB", k.wants, t.Describe(n), maxValue>>10)
	case yamlfile.IsNull(n):
		t.AddProblem(n, path, "has no value; it must be %s", k.wants)
	case !fits && n.Kind == yaml.ScalarNode && k.tags[0] == "!!str" && k.words == nil:
		t.AddProblem(n, path, "must be %s, not %s; write \"%s\"", k.wants, t.Describe(n), n.Value)
	case !fits:
		t.AddProblem(n, path, "must be %s, not %s", k.wants, t.Describe(n))
	default:
		v, err := k.parse(n.Value)
		if err == nil {
			return v, true
		}
		t.AddProblem(n, path, "%s", err)
	}
	return nil, false
}
