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

// YAML renders the config as a file that loads to the same config. With comments, every
// key has its meaning, its flag and its variable above it.
func (c *Config) YAML(comments bool) string {
	root := &yaml.Node{Kind: yaml.MappingNode}
	put := func(m *yaml.Node, name string, value *yaml.Node, comment string) {
		addPair(m, name, value)
		if comments {
			m.Content[len(m.Content)-2].HeadComment = comment
		}
	}

	put(root, "listeners", listNode(c.Listeners, listenerFields), "ports; dialect is one of "+
		strings.Join(dialectKind.words, ", ")+" (--"+flagListen+", "+envListeners+")")
	var last string
	var m *yaml.Node
	for _, one := range settings {
		if section := one.sectionName(); section != last {
			last, m = section, &yaml.Node{Kind: yaml.MappingNode}
			addPair(root, section, m)
		}
		n := one.kind.valueNode(one.value(c))
		if one.kind.list {
			n = &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, text := range one.value(c).([]string) {
				n.Content = append(n.Content, textNode(text))
			}
		}
		put(m, one.name, n, fmt.Sprintf("%s (%s; --%s, %s)", one.help, one.kind.word, one.flag, one.env()))
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
		v := of.Field(f.index)
		var n *yaml.Node
		if s, ok := of.Interface().(Source); ok && f.name == sourceTTL && len(s.MediaTTL) > 0 {
			n = &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
			for _, medium := range slices.Sorted(maps.Keys(s.MediaTTL)) {
				addPair(n, medium, textNode(formatDuration(s.MediaTTL[medium])))
			}
		} else if v.Kind() == reflect.Struct {
			n = structNode(v, profileFields)
		} else if f.name == capacityBlocks && v.IsZero() {
			continue // 0 is no capacity
		} else {
			n = f.kind.valueNode(v.Interface())
		}
		if n.Value != "" || len(n.Content) > 0 {
			addPair(m, f.name, n)
		}
	}
	return m
}

// valueNode renders a value as one scalar.
func (k kind) valueNode(v any) *yaml.Node {
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
