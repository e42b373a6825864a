package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/redact"
)

// maxPairs bounds the keys of one file after its aliases are followed. A thousand sources
// have ten thousand keys. Only aliases of aliases reach more.
const maxPairs = 1 << 20

// A tree is one parsed YAML or JSON file: YAML nodes with line and column.
type tree struct {
	name     string
	problems *report    // where what cannot be read is reported
	root     *yaml.Node // nil if the file is empty or cannot be parsed
	pairs    int        // number of pairs that readPairs has returned
}

// parseTree reads a file. The extensions .json, .yaml and .yml name the format. The content
// of a file with another extension decides.
func parseTree(name string, data []byte, problems *report) *tree {
	t := &tree{name: name, problems: problems}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	ext := strings.ToLower(filepath.Ext(name))
	looksJSON := bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) && json.Valid(data)
	if ext == ".json" || ext != ".yaml" && ext != ".yml" && looksJSON {
		t.root = t.parseJSON(data)
	} else {
		t.root = t.parseYAML(data)
	}
	return t
}

func (t *tree) placeOf(n *yaml.Node) place { return place{inFile, t.name, n.Line, n.Column} }

var yamlLine = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?`)

func (t *tree) parseYAML(data []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		at, reason := t.yamlPlace(data, err.Error())
		t.problems.addProblem(at, "", "no valid YAML: %s", reason)
		return nil
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		at := t.placeOf(&doc)
		if err == nil {
			at = t.placeOf(&second)
		}
		t.problems.addProblem(at, "", "a second YAML document follows the first; a file holds one")
		return nil
	}
	if len(doc.Content) == 0 {
		return nil
	}
	return doc.Content[0]
}

// yamlPlace takes the place out of a message of the YAML parser. The parser names no
// column. Half of its messages count lines from 0 and leave out line 0.
func (t *tree) yamlPlace(data []byte, message string) (place, string) {
	at := place{layer: inFile, name: t.name}
	m := yamlLine.FindStringSubmatch(message)
	reason := yamlLine.ReplaceAllString(message, "")
	if m != nil {
		at.line, _ = strconv.Atoi(m[1]) // 0 when there is none
	}
	var anchor string
	if n, _ := fmt.Sscanf(reason, "unknown anchor '%s", &anchor); n == 1 {
		alias := []byte("*" + strings.TrimSuffix(anchor, "'"))
		if i := bytes.Index(data, alias); i >= 0 {
			at.line, at.col = lineAndColumn(data, i)
		}
	} else if at.line == 0 || strings.HasPrefix(reason, "did not find expected") {
		at.line++
	}
	return at, reason
}

// A pair is one key of a map with its value; aliases are followed.
type pair struct {
	name  string
	key   *yaml.Node
	value *yaml.Node
}

// readPairs returns the pairs of a map in order, its own keys before those that << merges.
// Null is an empty map. A key that stands twice is reported and dropped. readPairs reports
// any other node and returns false.
func (t *tree) readPairs(n *yaml.Node, path string) ([]pair, bool) {
	n = resolveAlias(n)
	if isNull(n) {
		return nil, true
	}
	if n.Kind != yaml.MappingNode {
		t.problems.addProblem(t.placeOf(n), path, "must be a map of keys, not %s", describeNode(n))
		return nil, false
	}
	var out []pair
	var merged []*yaml.Node
	seen := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := resolveAlias(n.Content[i]), n.Content[i+1]
		if t.pairs++; t.pairs > maxPairs {
			t.problems.addProblem(t.placeOf(k), path, "the file unfolds to more than %d keys", maxPairs)
			return nil, false
		}
		if k.Kind != yaml.ScalarNode {
			t.problems.addProblem(t.placeOf(k), path, "a key must be text, not %s", describeNode(k))
			continue
		}
		if k.ShortTag() == "!!merge" {
			merged = append(merged, v)
			continue
		}
		if first := seen[k.Value]; first != nil {
			t.problems.addProblem(t.placeOf(k), joinPath(path, k.Value), "stands twice; the first is at %s", t.placeOf(first))
			continue
		}
		seen[k.Value] = k
		out = append(out, pair{k.Value, k, resolveAlias(v)})
	}
	for _, m := range merged {
		sources := []*yaml.Node{m}
		if f := resolveAlias(m); f.Kind == yaml.SequenceNode {
			sources = f.Content
		}
		for _, s := range sources {
			if hasMergeKey(resolveAlias(s)) {
				t.problems.addProblem(t.placeOf(m), path, "<< takes maps that hold no << themselves")
				continue
			}
			pairs, _ := t.readPairs(s, path)
			for _, p := range pairs {
				if seen[p.name] == nil {
					seen[p.name] = p.key
					out = append(out, p)
				}
			}
		}
	}
	return out, true
}

// readElements returns the elements of a list; null is an empty one.
func (t *tree) readElements(n *yaml.Node, path string) []*yaml.Node {
	n = resolveAlias(n)
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		t.problems.addProblem(t.placeOf(n), path, "must be a list, not %s", describeNode(n))
		return nil
	}
	return n.Content
}

// readValue reads a value of a kind that may be a list of texts.
func (t *tree) readValue(n *yaml.Node, path string, k kind) (any, bool) {
	if !k.list || resolveAlias(n).Kind != yaml.SequenceNode {
		return t.readScalar(n, path, k)
	}
	k.wants = "text"
	var out []string
	all := true
	for i, e := range t.readElements(n, path) {
		v, ok := t.readScalar(e, fmt.Sprintf("%s[%d]", path, i), k)
		if all = all && ok; ok {
			out = append(out, v.([]string)...)
		}
	}
	return out, all
}

// readScalar reads a value of a kind, or reports why it cannot be read.
func (t *tree) readScalar(n *yaml.Node, path string, k kind) (any, bool) {
	n = resolveAlias(n)
	tag := n.ShortTag()
	fits := n.Kind == yaml.ScalarNode && (slices.Contains(k.tags, tag) ||
		k.literal != "" && tag == "!!str" && strings.EqualFold(n.Value, k.literal))
	switch {
	case isNull(n):
		t.problems.addProblem(t.placeOf(n), path, "has no value; it must be %s", k.wants)
	case !fits && n.Kind == yaml.ScalarNode && k.tags[0] == "!!str" && k.words == nil:
		t.problems.addProblem(t.placeOf(n), path, "must be %s, not %s; write \"%s\"", k.wants, describeNode(n), n.Value)
	case !fits:
		t.problems.addProblem(t.placeOf(n), path, "must be %s, not %s", k.wants, describeNode(n))
	default:
		v, err := k.parse(n.Value)
		if err == nil {
			return v, true
		}
		t.problems.addProblem(t.placeOf(n), path, "%s", err)
	}
	return nil, false
}

// resolveAlias returns the node an alias stands for.
func resolveAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

func hasMergeKey(n *yaml.Node) bool {
	if n.Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].ShortTag() == "!!merge" {
			return true
		}
	}
	return false
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describeNode names the type and the value of a node, for "must be X, not …".
func describeNode(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	value := redact.Text(n.Value)
	if len(value) > 40 {
		value = strings.ToValidUTF8(value[:40], "") + "…"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "the number " + value
	case "!!bool":
		return "the truth value " + value
	case "!!null":
		return "nothing"
	case "!!str":
		return fmt.Sprintf("the text %q", value)
	}
	return fmt.Sprintf("a value of type %q", strings.TrimPrefix(n.ShortTag(), "!!"))
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// joinPath appends a key to a path. It quotes a key that is not plain.
func joinPath(path, name string) string {
	switch {
	case !plainName.MatchString(name):
		return fmt.Sprintf("%s[%q]", path, name)
	case path == "":
		return name
	}
	return path + "." + name
}
