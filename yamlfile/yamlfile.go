// Package yamlfile reads YAML and JSON files that people write, and tells all mistakes in them at once, each with its line and
// column and the path of the key:
//
//	file --Parse--> Root --Pairs, Elements--> nodes that are read one by one
//	                           |
//	                   Report: a Problem for each mistake
//
// The callers know which keys there are and what their values mean; this package knows the form of a file. Aliases and << are
// followed, so a key behind an alias is checked like any other. The work is bounded: a file cannot unfold to many more nodes
// than it has bytes, and cycles of aliases end.
package yamlfile

import (
	"bytes"
	"cmp"
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

const (
	// maxNodes is how many keys and elements a file may have after its aliases are followed, or as many as it has bytes if
	// those are more. A thousand sources have ten thousand keys. Only aliases of aliases reach the bound.
	maxNodes = 1 << 20
	// maxMerges is how deep maps that << merges may merge others.
	maxMerges = 32
	// maxProblems is how many mistakes of one file are reported. Nobody reads more, and a file of 16 MiB could have millions.
	maxProblems = 1000
	// maxKey is how many bytes of a key are shown of a file that has Secrets: fewer than a token has. Of other files maxPlainKey
	// are shown, because aliases can repeat a key of megabytes in every mistake.
	maxKey, maxPlainKey = 32, 128
	// maxShown is how many bytes of a value are shown, and maxRedacted how many are searched for secrets before that.
	maxShown, maxRedacted = 40, 512
)

// A File is one parsed YAML or JSON file: nodes with line and column.
type File struct {
	Name string
	// Secrets hides values and long keys in problems, because people put secrets into the wrong place.
	Secrets bool
	// Report takes each problem as it is found.
	Report func(Problem)
	// Root is the node at the top. It is nil if the file is empty or cannot be parsed.
	Root *yaml.Node

	limit    int          // of nodes
	nodes    int          // that Pairs and Elements have returned
	merging  []*yaml.Node // the maps that are being merged, the outermost first
	problems int          // that were reported
}

// A Problem is a mistake or a warning.
type Problem struct {
	Place   Place
	Path    string // the key, such as sources[2].endpoint; "" when the whole place is meant
	Message string
}

// Error returns "place: path: message" without the parts that are empty.
func (p Problem) Error() string {
	var parts []string
	for _, s := range []string{p.Place.String(), p.Path, p.Message} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// A Place is where a value stands.
type Place struct {
	Name      string // of the file; "" if it has none
	Line, Col int    // from 1; 0 when unknown
}

func (p Place) String() string {
	switch {
	case p.Name == "":
		return ""
	case p.Line > 0 && p.Col > 0:
		return fmt.Sprintf("%s:%d:%d", p.Name, p.Line, p.Col)
	case p.Line > 0:
		return fmt.Sprintf("%s:%d", p.Name, p.Line)
	}
	return p.Name
}

// Compare orders places of one file from top to bottom.
func (p Place) Compare(other Place) int {
	return cmp.Or(cmp.Compare(p.Line, other.Line), cmp.Compare(p.Col, other.Col))
}

// Join returns problems of one file as one error, a line for each, in the order in which they stand there. It returns nil if
// there are none.
func Join(problems []Problem) error {
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Place.Compare(b.Place) })
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}

// Parse reads the content of the file. The extensions .json, .yaml and .yml name its format; with another extension the
// content decides.
func (f *File) Parse(data []byte) {
	data = withoutMark(data)
	ext := strings.ToLower(filepath.Ext(f.Name))
	looksJSON := bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) && json.Valid(data)
	if ext == ".json" || ext != ".yaml" && ext != ".yml" && looksJSON {
		f.limit = max(maxNodes, len(data))
		f.Root = f.parseJSON(data)
		return
	}
	f.ParseYAML(data)
}

// withoutMark cuts off the byte order mark.
func withoutMark(data []byte) []byte { return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) }

// ParseYAML reads the content of the file as YAML, which JSON mostly is too.
func (f *File) ParseYAML(data []byte) {
	data = withoutMark(data)
	f.limit = max(maxNodes, len(data))
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return
	}
	if err != nil {
		at, reason := f.yamlPlace(data, err.Error())
		f.addProblem(at, "", "no valid YAML: %s", reason)
		return
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		at := &doc
		if err == nil {
			at = &second
		}
		f.AddProblem(at, "", "a second YAML document follows the first; a file holds one")
		return
	}
	if len(doc.Content) > 0 {
		f.Root = doc.Content[0]
	}
}

var (
	yamlLine = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?`)
	// fromZero finds the messages that count lines from 0: those of the parser. Those of the scanner count from 1.
	fromZero = regexp.MustCompile(`^did not find expected (?:<|node content|key|'-'|',')`)
)

// yamlPlace takes the place out of a message of the YAML library, which names no column and leaves out the first line.
func (f *File) yamlPlace(data []byte, message string) (Place, string) {
	at := Place{Name: f.Name}
	m := yamlLine.FindStringSubmatch(message)
	reason := yamlLine.ReplaceAllString(message, "")
	if m != nil {
		at.Line, _ = strconv.Atoi(m[1]) // 0 when there is none
	}
	var anchor string
	if n, _ := fmt.Sscanf(reason, "unknown anchor '%s", &anchor); n == 1 {
		alias := []byte("*" + strings.TrimSuffix(anchor, "'"))
		if i := bytes.Index(data, alias); i >= 0 {
			at.Line, at.Col = lineAndColumn(data, i)
		}
		if f.Secrets {
			reason = "unknown anchor referenced"
		}
	} else if at.Line == 0 || fromZero.MatchString(reason) {
		at.Line++
	}
	if strings.HasSuffix(reason, "expected alphabetic or numeric character") {
		reason += `; put a text that begins with * in quotes, as in "*"`
	}
	return at, reason
}

// Place returns where a node stands.
func (f *File) Place(n *yaml.Node) Place { return Place{f.Name, n.Line, n.Column} }

// AddProblem reports a problem with the value of path, which n is or which n lacks.
func (f *File) AddProblem(n *yaml.Node, path, format string, args ...any) {
	f.addProblem(f.Place(n), path, format, args...)
}

func (f *File) addProblem(at Place, path, format string, args ...any) {
	switch f.problems++; {
	case f.problems <= maxProblems:
		f.Report(Problem{at, path, fmt.Sprintf(format, args...)})
	case f.problems == maxProblems+1:
		f.Report(Problem{at, "", fmt.Sprintf("more than %d mistakes: the rest of the file is not read", maxProblems)})
	}
}

// Full reports whether the file has too many mistakes, or unfolds to too many nodes. Then Pairs and Elements return nothing more,
// and a caller stops reading the list or map that it is in.
func (f *File) Full() bool { return f.problems > maxProblems || f.nodes > f.limit }

// count adds nodes that are about to be read at path, a part of n. It returns false if the file is not to be read on.
func (f *File) count(n *yaml.Node, path string, nodes int) bool {
	if f.Full() {
		return false
	}
	if f.nodes += nodes; f.nodes > f.limit {
		f.AddProblem(n, path, "the file unfolds to more than %d keys and elements", f.limit)
		return false
	}
	return true
}

// A Pair is one key of a map with its value; aliases are followed.
type Pair struct {
	Name  string
	Key   *yaml.Node
	Value *yaml.Node
}

// Pairs returns the pairs of a map in order, its own keys before those that << merges.
// Null is an empty map. A key that stands twice is reported and dropped. Pairs reports
// any other node and returns false.
func (f *File) Pairs(n *yaml.Node, path string) ([]Pair, bool) {
	n = Resolve(n)
	switch {
	case IsNull(n):
		return nil, true
	case n.Kind != yaml.MappingNode:
		f.AddProblem(n, path, "must be a map of keys, not %s", f.Describe(n))
		return nil, false
	case !f.count(n, path, len(n.Content)/2):
		return nil, false
	}
	var out []Pair
	var merged []*yaml.Node
	seen := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content) && !f.Full(); i += 2 {
		k, v := Resolve(n.Content[i]), n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			f.AddProblem(k, path, "a key must be text, not %s", f.Describe(k))
			continue
		}
		if k.ShortTag() == "!!merge" {
			merged = append(merged, v)
			continue
		}
		if first := seen[k.Value]; first != nil {
			f.AddProblem(k, f.PathOf(path, k.Value), "stands twice; the first is at %s", f.Place(first))
			continue
		}
		seen[k.Value] = k
		out = append(out, Pair{k.Value, k, Resolve(v)})
	}
	if len(merged) == 0 {
		return out, true
	}
	f.merging = append(f.merging, n)
	for _, m := range merged {
		for _, p := range f.mergedPairs(m, path) {
			if seen[p.Name] == nil {
				seen[p.Name] = p.Key
				out = append(out, p)
			}
		}
	}
	f.merging = f.merging[:len(f.merging)-1]
	return out, true
}

// mergedPairs returns the pairs of the map, or of the list of maps, that << merges at path.
func (f *File) mergedPairs(m *yaml.Node, path string) (out []Pair) {
	sources := []*yaml.Node{m}
	if list := Resolve(m); list.Kind == yaml.SequenceNode {
		if !f.count(m, path, len(list.Content)) {
			return nil
		}
		sources = list.Content
	}
	for _, s := range sources {
		switch {
		case slices.Contains(f.merging, Resolve(s)):
			f.AddProblem(m, path, "<< merges a map into itself")
		case len(f.merging) >= maxMerges:
			f.AddProblem(m, path, "more than %d maps merge each other with <<", maxMerges)
		default:
			pairs, _ := f.Pairs(s, path)
			out = append(out, pairs...)
		}
	}
	return out
}

// Elements returns the elements of a list; null is an empty one. It reports any other node and returns false.
func (f *File) Elements(n *yaml.Node, path string) ([]*yaml.Node, bool) {
	n = Resolve(n)
	switch {
	case IsNull(n):
		return nil, true
	case n.Kind != yaml.SequenceNode:
		f.AddProblem(n, path, "must be a list, not %s", f.Describe(n))
		return nil, false
	case !f.count(n, path, len(n.Content)):
		return nil, false
	}
	return n.Content, true
}

// AddUnknownKey reports a key of the map at path that has no meaning. hint ends the sentence, or is "".
func (f *File) AddUnknownKey(p Pair, path, hint string) {
	f.AddProblem(p.Key, f.PathOf(path, p.Name), "unknown key%s", hint)
}

// Resolve returns the node an alias stands for.
func Resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// IsNull reports whether a node is the scalar null.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Describe names the type of a node, and its value if that is no secret, for "must be X, not …".
func (f *File) Describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	article, value, quoted := "a ", "", ""
	if !f.Secrets {
		shown := Excerpt(n.Value)
		article, value, quoted = "the ", " "+shown, fmt.Sprintf(" %q", shown)
	}
	switch n.ShortTag() {
	case "!!float":
		if f.Secrets {
			return "a fraction"
		}
		fallthrough
	case "!!int":
		return article + "number" + value
	case "!!bool":
		return article + "truth value" + value
	case "!!null":
		return "nothing"
	case "!!str":
		return article + "text" + quoted
	}
	if f.Secrets {
		return "a value of another type"
	}
	return fmt.Sprintf("a value of type %q", Excerpt(strings.TrimPrefix(n.ShortTag(), "!!")))
}

// Excerpt returns the beginning of a text without the secrets of URLs in it. A long text costs no more than a short one.
func Excerpt(text string) string {
	shown := text
	if len(text) > maxRedacted {
		// The rest may have the @ that ends a password. redact hides a password only before an @, so one is added, and a quote
		// that ends the URL.
		shown = text[:maxRedacted] + `@x"`
	}
	shown = redact.Text(shown)
	if len(shown) > maxShown || len(text) > maxRedacted {
		shown = strings.ToValidUTF8(shown[:min(len(shown), maxShown)], "") + "…"
	}
	return shown
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// PathOf returns the path of a key of the map at path. It cuts a long key, and if the file has Secrets, one that may be a secret.
func (f *File) PathOf(path, key string) string {
	if f.Secrets && len(key) > maxKey {
		key = strings.ToValidUTF8(key[:maxKey/4], "") + "…"
	} else if len(key) > maxPlainKey {
		key = strings.ToValidUTF8(key[:maxPlainKey], "") + "…"
	}
	return JoinPath(path, key)
}

// JoinPath appends a key to a path. It quotes a key that is not plain.
func JoinPath(path, name string) string {
	switch {
	case !plainName.MatchString(name):
		return fmt.Sprintf("%s[%q]", path, name)
	case path == "":
		return name
	}
	return path + "." + name
}
