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

// YAML renders the config as a file that loads to the same config. With
// comments, every key says what it means and which flag and variable set it.
func (c *Config) YAML(comments bool) string {
	root := &yaml.Node{Kind: yaml.MappingNode}

	listeners := &yaml.Node{Kind: yaml.SequenceNode}
	for _, one := range c.Listeners {
		m := &yaml.Node{Kind: yaml.MappingNode}
		put(m, "address", textNode(one.Address))
		put(m, "dialect", textNode(one.Dialect))
		listeners.Content = append(listeners.Content, m)
	}
	head := put(root, "listeners", listeners)
	if comments {
		head.HeadComment = "HTTP ports; dialect is one of " + strings.Join(dialects.words, ", ") +
			" (--" + flagListen + ", " + envListeners + ")"
	}

	var last string
	var m *yaml.Node
	for _, k := range keys {
		section, name, _ := strings.Cut(k.path, ".")
		if section != last {
			last, m = section, &yaml.Node{Kind: yaml.MappingNode}
			put(root, section, m)
		}
		n := textNode(k.show(c))
		switch tag := k.kind.tags[0]; {
		case k.kind.list:
			n = &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, one := range k.value(c).([]string) {
				n.Content = append(n.Content, textNode(one))
			}
		case tag == "!!int" || tag == "!!bool":
			n = &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: k.show(c)}
		}
		head := put(m, name, n)
		if comments {
			head.HeadComment = fmt.Sprintf("%s (%s; --%s, %s)", k.help, k.kind.word, k.flag, k.env())
		}
	}

	sources := &yaml.Node{Kind: yaml.SequenceNode}
	for i := range c.Sources {
		m := &yaml.Node{Kind: yaml.MappingNode}
		for _, f := range sourceFields {
			v := member(reflect.ValueOf(&c.Sources[i]).Elem(), f.name)
			n := textNode(show(v.Interface()))
			if media := c.Sources[i].MediaTTL; f.name == sourceTTL && len(media) > 0 {
				n = &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
				for _, medium := range slices.Sorted(maps.Keys(media)) {
					n.Content = append(n.Content, textNode(medium), textNode(showDuration(media[medium])))
				}
			} else if v.CanInt() {
				n = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: n.Value}
			} else if p := c.Sources[i].HashProfile; f.name == hashProfile && p != (HashProfile{}) {
				n = &yaml.Node{Kind: yaml.MappingNode}
				for _, f := range profileFields {
					if v := member(reflect.ValueOf(p), f.name).String(); v != "" {
						put(n, f.name, textNode(v))
					}
				}
			} else if f.name == hashProfile || n.Value == "" {
				continue
			}
			put(m, f.name, n)
		}
		sources.Content = append(sources.Content, m)
	}
	if len(sources.Content) == 0 {
		sources.Style = yaml.FlowStyle
	}
	head = put(root, "sources", sources)
	if comments {
		head.HeadComment = "engines to subscribe to from the start, with the fields of POST /register"
	}

	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		panic(fmt.Sprintf("BUG: config cannot be rendered: %v", err))
	}
	return out.String()
}

func put(m *yaml.Node, name string, value *yaml.Node) (key *yaml.Node) {
	key = &yaml.Node{Kind: yaml.ScalarNode, Value: name}
	m.Content = append(m.Content, key, value)
	return key
}

func textNode(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}
