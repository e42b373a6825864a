package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxPairs bounds the keys of one file after its aliases are followed. A thousand sources
// have ten thousand keys. Only aliases of aliases reach more.
const maxPairs = 1 << 20

// A tree is one parsed YAML or JSON file: YAML nodes with line and column.
type tree struct {
	name  string
	root  *yaml.Node // nil if the file is empty or cannot be parsed
	pairs int        // number of pairs that mapping has returned
}

// parseTree reads a file. The extensions .json, .yaml and .yml name the format. The content
// of a file with another extension decides.
func parseTree(name string, data []byte, r *report) *tree {
	t := &tree{name: name}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	ext := strings.ToLower(filepath.Ext(name))
	looksJSON := bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) && json.Valid(data)
	if ext == ".json" || ext != ".yaml" && ext != ".yml" && looksJSON {
		t.root = t.parseJSON(data, r)
	} else {
		t.root = t.parseYAML(data, r)
	}
	return t
}

func (t *tree) at(n *yaml.Node) place { return place{inFile, t.name, n.Line, n.Column} }

var yamlLine = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?`)

func (t *tree) parseYAML(data []byte, r *report) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		at, reason := t.yamlPlace(data, err.Error())
		r.add(at, "", "no valid YAML: %s", reason)
		return nil
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		at := t.at(&doc)
		if err == nil {
			at = t.at(&second)
		}
		r.add(at, "", "a second YAML document follows the first; a file holds one")
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
			at.line, at.col = lineCol(data, i)
		}
	} else if at.line == 0 || strings.HasPrefix(reason, "did not find expected") {
		at.line++
	}
	return at, reason
}

// parseJSON builds the same tree from JSON. The YAML parser cannot read all JSON: it
// rejects surrogate pairs and some tabs.
func (t *tree) parseJSON(data []byte, r *report) *yaml.Node {
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		at := place{inFile, t.name, 1, 1}
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			end := min(int(syntax.Offset), len(data))
			if !strings.Contains(err.Error(), "unexpected end") {
				end = max(0, end-1) // the offset counts the offending byte
			}
			at.line, at.col = lineCol(data, end)
		}
		r.add(at, "", "no valid JSON: %s", err)
		return nil
	}
	b := jsonBuilder{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	b.dec.UseNumber()
	return b.node()
}

// lineCol returns the line and the column, in characters from 1, of a byte.
func lineCol(data []byte, offset int) (line, col int) {
	line = 1 + bytes.Count(data[:offset], []byte("\n"))
	start := bytes.LastIndexByte(data[:offset], '\n') + 1
	return line, 1 + utf8.RuneCount(data[start:offset])
}

// A jsonBuilder turns the tokens of valid JSON into nodes.
type jsonBuilder struct {
	data      []byte
	dec       *json.Decoder
	seen      int // bytes whose newlines are counted
	line      int // line of byte seen
	lineStart int // offset of its first byte
}

// here returns where the next token starts.
func (b *jsonBuilder) here() (line, col int) {
	off := int(b.dec.InputOffset())
	for off < len(b.data) && strings.IndexByte(" \t\r\n,:", b.data[off]) >= 0 {
		off++
	}
	for ; b.seen < off; b.seen++ {
		if b.data[b.seen] == '\n' {
			b.line, b.lineStart = b.line+1, b.seen+1
		}
	}
	return b.line, 1 + utf8.RuneCount(b.data[b.lineStart:off])
}

func (b *jsonBuilder) node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode}
	n.Line, n.Column = b.here()
	tok, err := b.dec.Token()
	if err != nil {
		panic(fmt.Sprintf("BUG: JSON that was valid is not: %v", err))
	}
	switch v := tok.(type) {
	case json.Delim:
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		if v == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		for b.dec.More() {
			n.Content = append(n.Content, b.node())
		}
		b.dec.Token() // the closing bracket
	case string:
		n.Tag, n.Value, n.Style = "!!str", v, yaml.DoubleQuotedStyle
	case json.Number:
		n.Tag, n.Value = "!!int", v.String()
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	case bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(v)
	case nil:
		n.Tag, n.Value = "!!null", "null"
	}
	return n
}

// A pair is one key of a map with its value; aliases are followed.
type pair struct {
	name  string
	key   *yaml.Node
	value *yaml.Node
}

// mapping returns the pairs of a map in order, its own keys before those that << merges.
// Null is an empty map. A key that stands twice is reported and dropped. mapping reports
// any other node and returns false.
func (t *tree) mapping(n *yaml.Node, path string, r *report) ([]pair, bool) {
	n = follow(n)
	if isNull(n) {
		return nil, true
	}
	if n.Kind != yaml.MappingNode {
		r.add(t.at(n), path, "must be a map of keys, not %s", describe(n))
		return nil, false
	}
	var out []pair
	var merged []*yaml.Node
	seen := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := follow(n.Content[i]), n.Content[i+1]
		if t.pairs++; t.pairs > maxPairs {
			r.add(t.at(k), path, "the file unfolds to more than %d keys", maxPairs)
			return nil, false
		}
		if k.Kind != yaml.ScalarNode {
			r.add(t.at(k), path, "a key must be text, not %s", describe(k))
			continue
		}
		if k.ShortTag() == "!!merge" {
			merged = append(merged, v)
			continue
		}
		if first := seen[k.Value]; first != nil {
			r.add(t.at(k), join(path, k.Value), "stands twice; the first is at %s", t.at(first))
			continue
		}
		seen[k.Value] = k
		out = append(out, pair{k.Value, k, follow(v)})
	}
	for _, m := range merged {
		sources := []*yaml.Node{m}
		if f := follow(m); f.Kind == yaml.SequenceNode {
			sources = f.Content
		}
		for _, s := range sources {
			if hasMerge(follow(s)) {
				r.add(t.at(m), path, "<< takes maps that hold no << themselves")
				continue
			}
			pairs, _ := t.mapping(s, path, r)
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

// list returns the elements of a list; null is an empty one.
func (t *tree) list(n *yaml.Node, path string, r *report) []*yaml.Node {
	n = follow(n)
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.add(t.at(n), path, "must be a list, not %s", describe(n))
		return nil
	}
	return n.Content
}

// value reads a value of a kind that may be a list of texts.
func (t *tree) value(n *yaml.Node, path string, k kind, r *report) (any, bool) {
	if !k.list || follow(n).Kind != yaml.SequenceNode {
		return t.scalar(n, path, k, r)
	}
	k.wants = "text"
	var out []string
	all := true
	for i, e := range t.list(n, path, r) {
		v, ok := t.scalar(e, fmt.Sprintf("%s[%d]", path, i), k, r)
		if all = all && ok; ok {
			out = append(out, v.([]string)...)
		}
	}
	return out, all
}

// scalar reads a value of a kind, or reports why it cannot be read.
func (t *tree) scalar(n *yaml.Node, path string, k kind, r *report) (any, bool) {
	n = follow(n)
	tag := n.ShortTag()
	fits := false
	for _, want := range k.tags {
		fits = fits || n.Kind == yaml.ScalarNode && tag == want
	}
	fits = fits || k.literal != "" && n.Kind == yaml.ScalarNode && tag == "!!str" && n.Value == k.literal
	switch {
	case isNull(n):
		r.add(t.at(n), path, "has no value; it must be %s", k.wants)
	case !fits && n.Kind == yaml.ScalarNode && k.tags[0] == "!!str" && k.words == nil:
		r.add(t.at(n), path, "must be %s, not %s; write \"%s\"", k.wants, describe(n), n.Value)
	case !fits:
		r.add(t.at(n), path, "must be %s, not %s", k.wants, describe(n))
	default:
		v, err := k.parse(n.Value)
		if err == nil {
			return v, true
		}
		r.add(t.at(n), path, "%s", err)
	}
	return nil, false
}

// follow returns the node an alias stands for.
func follow(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

func hasMerge(n *yaml.Node) bool {
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

// describe names the type and the value of a node, for "must be X, not …".
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	value := n.Value
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

// join appends a key to a path. It quotes a key that is not plain.
func join(path, name string) string {
	switch {
	case !plainName.MatchString(name):
		return fmt.Sprintf("%s[%q]", path, name)
	case path == "":
		return name
	}
	return path + "." + name
}
