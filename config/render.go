package config

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML renders the config as a file that loads to the same config. With comments, every setting has its meaning, its
// flag and its variable above it, every group its name, and the file begins with the settings that matter most.
func (c *Config) YAML(comments bool) string {
	root := &yaml.Node{Kind: yaml.MappingNode}
	put := func(m *yaml.Node, name string, value *yaml.Node, comment string) {
		addPair(m, name, value)
		if comments && comment != "" {
			m.Content[len(m.Content)-2].HeadComment = wrapText(comment)
		}
	}

	first := []string{"sources", "listeners"}
	for _, s := range settings {
		if s.example != "" {
			first = append(first, s.path)
		}
	}
	top := "Most servers set some of these: " + strings.Join(first, ", ") + ". conductor config init writes a file with them."
	listen := allSettings[0]
	put(root, listen.path, listNode(c.Listeners, listenerFields), fmt.Sprintf("%s (--%s, %s)", listen.help, listen.flag, listen.env()))
	if comments {
		root.Content[0].HeadComment = wrapText(top) + "\n\n" + root.Content[0].HeadComment
	}
	var last string
	var m *yaml.Node
	for _, s := range settings {
		if section := s.sectionName(); section != last {
			last, m = section, &yaml.Node{Kind: yaml.MappingNode}
			heading := ""
			if s.group != "" {
				heading = "---- " + s.group + " ----"
			}
			put(root, section, m, heading)
		}
		put(m, s.name, s.kind.valueNode(s.value(c)), fmt.Sprintf("%s (%s; --%s, %s)", s.help, s.kind.word, s.flag, s.env()))
	}
	put(root, "sources", listNode(c.Sources, sourceFields), "engines to subscribe to from the start, with the fields of POST /register")

	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		panic(fmt.Sprintf("BUG: config cannot be rendered: %v", err))
	}
	return out.String()
}

// StarterYAML returns a file with the dozen settings that most servers set, each with its meaning and an example.
// All but the listeners are commented out, so that it loads to the defaults.
func StarterYAML() string {
	var out strings.Builder
	comment := func(indent, text string) {
		for _, line := range strings.Split(wrapText(text), "\n") {
			out.WriteString(strings.TrimRight(indent+"# "+line, " ") + "\n")
		}
	}
	comment("", "Settings of conductor serve, at their defaults: remove the # before what you change, then run conductor config "+
		"check on this file. conductor config defaults prints all settings.")
	out.WriteString("\n")
	comment("", allSettings[0].help)
	out.WriteString("listeners:\n")
	for _, l := range Default().Listeners {
		fmt.Fprintf(&out, "  - {address: %q, dialect: %s}\n", l.Address, l.Dialect)
	}
	out.WriteString("\n")
	comment("", "engines that you know; others are registered over HTTP, by conductor register or a router. "+
		"With discover an engine is asked where it publishes, and for its block size.")
	out.WriteString("# sources:\n" +
		"#   - {instance_id: prefill, type: vLLM, modelname: deepseek, discover: \"http://10.0.0.1:8000\"}\n" +
		"#   - {instance_id: decode, type: vLLM, modelname: deepseek, block_size: 16,\n" +
		"#      endpoint: \"tcp://10.0.0.2:5557\", replay_endpoint: \"tcp://10.0.0.2:6557\"}\n")
	last := ""
	for _, s := range settings {
		if s.example == "" {
			continue
		}
		if section := s.sectionName(); section != last {
			last = section
			fmt.Fprintf(&out, "\n%s:\n", section)
		}
		comment("  ", s.help)
		fmt.Fprintf(&out, "  # %s: %s\n", s.name, s.example)
	}
	return out.String()
}

// wrapText breaks a text into lines of at most 100 characters.
func wrapText(text string) string {
	var out strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		if column > 0 && column+1+len(word) > 100 {
			out.WriteString("\n")
			column = 0
		} else if column > 0 {
			out.WriteString(" ")
			column++
		}
		out.WriteString(word)
		column += len(word)
	}
	return out.String()
}

// listNode renders a list of structs.
func listNode[T any](list []T, fields []field) *yaml.Node {
	out := &yaml.Node{Kind: yaml.SequenceNode}
	for i := range list {
		out.Content = append(out.Content, structNode(reflect.ValueOf(list[i]), fields))
	}
	if len(list) == 0 {
		out.Style = yaml.FlowStyle
	}
	return out
}

// structNode renders the members of a struct that are not empty.
func structNode(of reflect.Value, fields []field) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range fields {
		v := of.FieldByIndex(f.index)
		var n *yaml.Node
		if s, ok := of.Interface().(Source); ok && f.name == sourceTTL && len(s.MediaTTL) > 0 {
			n = &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
			for _, medium := range slices.Sorted(maps.Keys(s.MediaTTL)) {
				addPair(n, medium, textNode(formatDuration(s.MediaTTL[medium])))
			}
		} else if v.Kind() == reflect.Struct {
			n = structNode(v, f.members)
		} else if f.name == blockSize && v.IsZero() {
			n = textNode(Auto)
		} else if f.nullable && v.Kind() == reflect.Int && v.IsZero() {
			continue // a number that is not given
		} else {
			n = f.kind.valueNode(v.Interface())
		}
		if n.Value != "" || len(n.Content) > 0 {
			addPair(m, f.name, n)
		}
	}
	return m
}

// valueNode renders a value as one scalar, or as a list of texts in one line.
func (k kind) valueNode(v any) *yaml.Node {
	if list, ok := v.([]string); ok {
		n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, text := range list {
			n.Content = append(n.Content, textNode(text))
		}
		return n
	}
	n := textNode(formatValue(v))
	if n.Value == k.literal {
		return n
	}
	switch tag := k.tags[0]; tag {
	case "!!int", "!!bool":
		n = &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: n.Value}
	case "!!float":
		n = &yaml.Node{Kind: yaml.ScalarNode, Value: n.Value} // its digits say whether it is a whole number
	}
	return n
}

// addPair appends a key with its value to a map.
func addPair(m *yaml.Node, name string, value *yaml.Node) {
	m.Content = append(m.Content, textNode(name), value)
}

func textNode(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}
