package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A layer is what one of file, environment and flags says: values by path.
// "listeners" and "sources" are whole lists.
type layer map[string]any

// A loader reads the layers and remembers, for the checks that follow, where
// each value came from and which were unreadable.
type loader struct {
	errs   report
	warns  report
	places map[string]place  // path -> where the winning value stands
	names  map[string]string // path -> what the reader calls it, where the file has another name for it
	failed map[string]bool   // paths whose value could not be read

	vouched map[string]bool // paths whose value another package has checked
}

func newLoader() *loader {
	return &loader{places: map[string]place{}, names: map[string]string{}, failed: map[string]bool{}, vouched: map[string]bool{}}
}

// readFile checks a whole file against the known keys.
func (l *loader) readFile(name string, data []byte) layer {
	t := parseTree(name, data, &l.errs)
	if t.root == nil {
		return nil
	}
	pairs, _ := t.mapping(t.root, "", &l.errs)
	out := layer{}
	var sources []Source
	var known []field
	for _, name := range append([]string{"listeners", "sources", mooncakePort, mooncakeSources}, sections()...) {
		known = append(known, field{name: name})
	}
	var port *pair
	for _, p := range pairs {
		switch {
		case p.name == "listeners":
			out["listeners"] = l.readListeners(t, p.value)
			l.places["listeners"] = t.at(p.key)
		case p.name == "sources":
			l.places["sources"] = t.at(p.key)
			for i, n := range t.list(p.value, "sources", &l.errs) {
				at := len(sources)
				l.rename(fmt.Sprintf("sources[%d]", at), fmt.Sprintf("sources[%d]", i))
				sources = append(sources, l.readSource(t, at, n, ""))
			}
		case p.name == mooncakePort:
			port = &p
		case p.name == mooncakeSources:
			l.places["sources"] = t.at(p.key)
			sources = append(sources, l.readMooncakeSources(t, len(sources), p)...)
		case slices.Contains(sections(), p.name):
			l.readSection(t, p, out)
		default:
			l.unknown(t, p, "", known)
		}
	}
	if port != nil {
		l.readMooncakePort(t, *port, out)
	}
	if sources != nil {
		out["sources"] = sources
	}
	return out
}

// readSection reads one map of scalars.
func (l *loader) readSection(t *tree, section pair, out layer) {
	pairs, _ := t.mapping(section.value, section.name, &l.errs)
	l.readPairs(t, section.name, pairs, sectionFields(section.name), func(name string, v any) { out[section.name+"."+name] = v })
}

// readMap begins the map at path.
func (l *loader) readMap(t *tree, path string, n *yaml.Node) []pair {
	l.places[path] = t.at(n)
	pairs, ok := t.mapping(n, l.nameOf(path), &l.errs)
	l.failed[path] = !ok
	return pairs
}

// readPairs reads the pairs of the map at path, and hands every value to set.
func (l *loader) readPairs(t *tree, path string, pairs []pair, fields []field, set func(name string, v any)) {
	for _, p := range pairs {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == p.name })
		if i < 0 {
			l.unknown(t, p, l.nameOf(path), fields)
			continue
		}
		at := join(path, p.name)
		l.places[at] = t.at(p.value)
		if fields[i].nullable && isNull(p.value) {
			continue
		}
		v, ok := t.value(p.value, l.nameOf(at), fields[i].kind, &l.errs)
		if l.failed[at] = !ok; ok {
			set(p.name, v)
		}
	}
}

// into returns what sets the members of a struct.
func into(p any) func(name string, v any) {
	return func(name string, v any) { member(reflect.ValueOf(p).Elem(), name).Set(reflect.ValueOf(v)) }
}

// unknown reports an unknown key, with the key that was probably meant:
// one of the same map, or one of the same name somewhere else.
func (l *loader) unknown(t *tree, p pair, section string, fields []field) {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	hint := didYouMean(p.name, names)
	if hint == "" {
		for _, k := range keys {
			if strings.HasSuffix(k.path, "."+p.name) {
				hint = fmt.Sprintf("; did you mean %q?", k.path)
			}
		}
	}
	l.errs.add(t.at(p.key), join(section, p.name), "unknown key%s", hint)
}

func (l *loader) readListeners(t *tree, n *yaml.Node) []Listener {
	out := []Listener{}
	for i, e := range t.list(n, "listeners", &l.errs) {
		path := fmt.Sprintf("listeners[%d]", i)
		one := Listener{Dialect: Conductor}
		l.readPairs(t, path, l.readMap(t, path, e), listenerFields, into(&one))
		out = append(out, one)
	}
	return out
}

// readSource reads entry i of the final list of sources; instance is its
// instance id if it gives none.
func (l *loader) readSource(t *tree, i int, n *yaml.Node, instance string) Source {
	path := fmt.Sprintf("sources[%d]", i)
	s := Source{InstanceID: instance}
	pairs := slices.DeleteFunc(l.readMap(t, path, n), func(p pair) bool {
		switch {
		case p.name == hashProfile:
			s.HashProfile = l.readProfile(t, join(path, hashProfile), p.value)
		case p.name == sourceTTL && p.value.Kind == yaml.MappingNode:
			s.MediaTTL = l.readMediaTTL(t, join(path, sourceTTL), p.value)
		default:
			return l.ignored(t, path, p)
		}
		return true
	})
	l.readPairs(t, path, pairs, sourceFields, into(&s))
	if _, given := l.places[join(path, "block_size")]; s.Discover != "" && !given {
		s.BlockSize = AutoCount
	}
	return s.withTenant()
}

// readProfile reads the hash_profile at path; null is none.
func (l *loader) readProfile(t *tree, path string, n *yaml.Node) (out HashProfile) {
	l.readPairs(t, path, l.readMap(t, path, n), profileFields, into(&out))
	if isNull(n) {
		return out
	}
	whole := !l.failed[path]
	for _, f := range profileFields {
		at := join(path, f.name)
		if _, given := l.places[at]; !l.failed[path] && !given && !f.nullable {
			l.errs.add(t.at(n), l.nameOf(at), "is required")
			whole = false
		}
		whole = whole && !l.failed[at]
	}
	l.failed[path] = !whole // the meaning of a field depends on the others
	return out
}

// readMediaTTL reads the map of media at path.
func (l *loader) readMediaTTL(t *tree, path string, n *yaml.Node) map[string]time.Duration {
	pairs := l.readMap(t, path, n)
	out := make(map[string]time.Duration, len(pairs))
	for _, p := range pairs {
		at := path + "." + p.name
		l.places[at] = t.at(p.value)
		if isNull(p.value) {
			continue
		}
		v, ok := t.scalar(p.value, l.nameOf(at), duration(), &l.errs)
		if l.failed[at] = !ok; ok {
			out[p.name] = v.(time.Duration)
		}
	}
	return out
}

// rename records what the reader of a file calls a path.
func (l *loader) rename(path, name string) {
	if path != name {
		l.names[path] = name
	}
}

// nameOf returns what the reader calls a path.
func (l *loader) nameOf(path string) string {
	if name, ok := l.names[path]; ok {
		return name
	}
	if i := strings.LastIndexByte(path, '.'); i > 0 {
		return join(l.nameOf(path[:i]), path[i+1:])
	}
	return path
}

// placeOf returns where a path was given, or else what holds it.
func (l *loader) placeOf(path string) place {
	for path != "" {
		if at, ok := l.places[path]; ok {
			return at
		}
		i := strings.LastIndexAny(path, ".[")
		path = path[:max(i, 0)]
	}
	return place{}
}

// unreadable reports whether a value, or what holds it, could not be read.
func (l *loader) unreadable(path string) bool {
	for path != "" {
		if l.failed[path] {
			return true
		}
		i := strings.LastIndexAny(path, ".[")
		path = path[:max(i, 0)]
	}
	return false
}
