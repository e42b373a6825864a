package yamlfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// parseJSON builds the same nodes from JSON. The YAML parser cannot read all JSON: it
// rejects surrogate pairs and some tabs.
func (f *File) parseJSON(data []byte) *yaml.Node {
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		at := Place{f.Name, 1, 1}
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			end := min(int(syntax.Offset), len(data))
			if !strings.Contains(err.Error(), "unexpected end") {
				end = max(0, end-1) // the offset counts the offending byte
			}
			at.Line, at.Col = lineAndColumn(data, end)
		}
		f.addProblem(at, "", "no valid JSON: %s", err)
		return nil
	}
	b := jsonBuilder{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	b.dec.UseNumber()
	return b.readNode()
}

// lineAndColumn returns the line and the column, in characters from 1, of a byte.
func lineAndColumn(data []byte, offset int) (line, col int) {
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

// nextToken returns where the next token starts.
func (b *jsonBuilder) nextToken() (line, col int) {
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

func (b *jsonBuilder) readNode() *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode}
	n.Line, n.Column = b.nextToken()
	tok, err := b.dec.Token()
	if err != nil {
		panic(fmt.Sprintf("BUG: JSON that was valid is not: %v", err))
	}
	switch v := tok.(type) {
	case json.Delim:
		n.Kind, n.Tag, n.Style = yaml.SequenceNode, "!!seq", yaml.FlowStyle
		if v == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		for b.dec.More() {
			n.Content = append(n.Content, b.readNode())
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
