package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/conductor/registration"
)

// Mooncake's own file, as all its versions since March 2026 read it:
//
//	{"http_server_port": 13333,
//	 "kvevent_instance": {"NAME": {"endpoint": …, "type": …, "modelname": …, "block_size": …, …}}}
//
// It works unchanged, and its two keys may stand next to ours. Where its readers differ among themselves, or
// ours differs from all of them:
//
//	http_server_port absent   the default listeners; theirs bound port 0, a free one that no router could know
//	http_server_port given    that one listener, as theirs had
//	a bad entry               an error like any other; theirs logged it and served without the engine, which
//	                          looks like an empty cache
//	instance id               instance_id where given, else the entry's name, so several entries can be the
//	                          ranks of one instance
//	tenant_id ""              the default tenant; their first reader made it another
//	dp_rank absent            0; their later readers skipped the entry
//	type                      SGLang and Standard too
//	hash_profile absent       blocks are found by their tokens; their later readers skipped the entry
//	cache_group               accepted without effect, with a warning: groups are learned from events
const (
	mooncakePort    = "http_server_port"
	mooncakeSources = "kvevent_instance"
	mooncakeFile    = ".mooncake/conductor_config.json" // under $HOME
)

// findFile returns the file to read: the one asked for, the one named by CONDUCTOR_CONFIG_PATH, Mooncake's
// usual one, or none.
func (l *loader) findFile(o Options, env map[string]string) (name string, data []byte) {
	home, named := env["HOME"], env[envFile]
	at := place{layer: inFile, name: o.File}
	switch {
	case o.File != "":
		name = o.File
	case named != "":
		name, at = named, place{layer: inEnv, name: "env " + envFile}
	case home != "":
		name = filepath.Join(home, mooncakeFile)
		at.name = name
	default:
		return "", nil
	}
	data, err := os.ReadFile(name)
	var pathError *fs.PathError
	switch {
	case err == nil:
		return name, data
	case !errors.Is(err, fs.ErrNotExist):
		if errors.As(err, &pathError) {
			err = pathError.Err
		}
		l.errs.addProblem(at, "", "cannot read %q: %s", name, err)
	case o.File != "":
		l.errs.addProblem(at, "", "no such file")
	case named != "":
		l.warns.addProblem(at, "", "%q does not exist; serving without a file", name)
	}
	return "", nil
}

// readFile checks a whole file against the known keys.
func (l *loader) readFile(name string, data []byte) {
	t := parseTree(name, data, &l.errs)
	if t.root == nil {
		return
	}
	pairs, _ := t.readPairs(t.root, "")
	var sources []Source
	var port *pair
	sections := slices.DeleteFunc(pairs, func(p pair) bool {
		switch p.name {
		case "listeners":
			l.values.Set("listeners", l.readListeners(t, p.value))
			l.noteOrigin("listeners", t.placeOf(p.key), true)
		case "sources":
			l.noteOrigin("sources", t.placeOf(p.key), true)
			for i, n := range t.readElements(p.value, "sources") {
				sources = append(sources, l.readSource(t, len(sources), n, fmt.Sprintf("sources[%d]", i), ""))
			}
		case mooncakePort:
			port = &p
		case mooncakeSources:
			l.noteOrigin("sources", t.placeOf(p.key), true)
			entries, _ := t.readPairs(p.value, mooncakeSources)
			for _, e := range entries {
				sources = append(sources, l.readSource(t, len(sources), e.value, joinPath(mooncakeSources, e.name), e.name))
			}
		default:
			return false
		}
		return true
	})
	var said Config
	l.readFields(t, "", sections, fileFields, reflect.ValueOf(&said).Elem())
	for _, s := range settings {
		if o, given := l.origins[s.path]; given && !o.failed {
			l.values.Set(s.path, s.value(&said))
		}
	}
	if port != nil { // behind listeners, which it may clash with
		l.readMooncakePort(t, *port)
	}
	if sources != nil {
		l.values.Set("sources", sources)
	}
}

// readMap begins the map at path.
func (l *loader) readMap(t *tree, path string, n *yaml.Node) []pair {
	pairs, ok := t.readPairs(n, l.nameOf(path))
	l.noteOrigin(path, t.placeOf(n), ok)
	return pairs
}

// readFields reads the pairs of the map at path into a struct.
func (l *loader) readFields(t *tree, path string, pairs []pair, fields []field, into reflect.Value) {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	for _, p := range pairs {
		i := slices.Index(names, p.name)
		if i < 0 {
			l.reportUnknownKey(t, p, l.nameOf(path), names)
			continue
		}
		f, at := fields[i], joinPath(path, p.name)
		switch {
		case f.nullable && isNull(p.value):
			l.noteOrigin(at, t.placeOf(p.value), true)
		case f.members != nil && f.nullable:
			l.readWhole(t, at, p.value, f.members, into.FieldByIndex(f.index))
		case f.members != nil:
			section, _ := t.readPairs(p.value, at)
			l.readFields(t, at, section, f.members, into.FieldByIndex(f.index))
		default:
			v, ok := t.readValue(p.value, l.nameOf(at), f.kind)
			if l.noteOrigin(at, t.placeOf(p.value), ok); ok {
				into.FieldByIndex(f.index).Set(reflect.ValueOf(v))
			}
		}
	}
}

// readWhole reads the map at path into a struct whose fields mean nothing without each other.
func (l *loader) readWhole(t *tree, path string, n *yaml.Node, fields []field, into reflect.Value) {
	l.readFields(t, path, l.readMap(t, path, n), fields, into)
	isMap := !l.origins[path].failed
	whole := isMap
	for _, f := range fields {
		at := joinPath(path, f.name)
		o, given := l.origins[at]
		if isMap && !given && !f.nullable {
			l.errs.addProblem(t.placeOf(n), l.nameOf(at), "is required")
			whole = false
		}
		whole = whole && !o.failed
	}
	l.noteOrigin(path, t.placeOf(n), whole)
}

// reportUnknownKey reports an unknown key, with the key that was probably meant: one of the same map, or one
// of the same name somewhere else.
func (l *loader) reportUnknownKey(t *tree, p pair, section string, names []string) {
	hint := didYouMean(p.name, names)
	if hint == "" {
		for _, s := range settings {
			if s.name == p.name {
				hint = fmt.Sprintf("; did you mean %q?", s.path)
			}
		}
	}
	l.errs.addProblem(t.placeOf(p.key), joinPath(section, p.name), "unknown key%s", hint)
}

func (l *loader) readListeners(t *tree, n *yaml.Node) []Listener {
	out := []Listener{}
	for i, e := range t.readElements(n, "listeners") {
		path := fmt.Sprintf("listeners[%d]", i)
		one := Listener{Dialect: Conductor}
		l.readFields(t, path, l.readMap(t, path, e), listenerFields, reflect.ValueOf(&one).Elem())
		out = append(out, one)
	}
	return out
}

// readMooncakePort turns http_server_port into the one listener it stands for.
func (l *loader) readMooncakePort(t *tree, p pair) {
	if ours, both := l.origins["listeners"]; both {
		l.errs.addProblem(t.placeOf(p.key), mooncakePort, "listeners (%s) says the same; keep one of the two", ours)
		return
	}
	v, ok := t.readScalar(p.value, mooncakePort, countKind())
	if !ok {
		return
	}
	port := v.(int)
	if port < 1 || port > 65535 {
		l.errs.addProblem(t.placeOf(p.value), mooncakePort, "%d is out of range 1 to 65535", port)
		return
	}
	l.values.Set("listeners", []Listener{{":" + strconv.Itoa(port), Conductor}})
	l.noteOrigin("listeners", t.placeOf(p.value), true)
	l.origins["listeners[0].address"] = origin{place: t.placeOf(p.value), called: mooncakePort}
}

// readSource reads entry i of the final list of sources, which the reader of the file calls name. instance is
// its instance id if it gives none.
func (l *loader) readSource(t *tree, i int, n *yaml.Node, name, instance string) Source {
	path := fmt.Sprintf("sources[%d]", i)
	l.origins[path] = origin{called: name}
	s := Source{Registration: registration.Registration{Instance: instance}}
	pairs := slices.DeleteFunc(l.readMap(t, path, n), func(p pair) bool {
		switch {
		case p.name == sourceTTL && p.value.Kind == yaml.MappingNode:
			s.MediaTTL = l.readMediaTTL(t, joinPath(path, sourceTTL), p.value)
		case p.name == "cache_group": // Mooncake's
			if !isNull(p.value) && (p.value.ShortTag() != "!!int" || p.value.Value != "0") { // 0 is what happens anyway
				l.warns.addProblem(t.placeOf(p.key), joinPath(l.nameOf(path), p.name), "has no effect; groups are told apart by the events")
			}
		default:
			return false
		}
		return true
	})
	l.readFields(t, path, pairs, sourceFields, reflect.ValueOf(&s).Elem())
	at := joinPath(path, blockSize)
	_, given := l.origins[at]
	switch {
	case s.BlockSize == AutoCount:
		s.BlockSize = 0 // the engine tells it
	case !given && s.Discover == "" && !l.origins[path].failed:
		l.errs.addProblem(l.origins[path].place, l.nameOf(at), "is required: the engine's tokens a block")
	}
	return s.withTenant()
}

// readMediaTTL reads the map of media at path.
func (l *loader) readMediaTTL(t *tree, path string, n *yaml.Node) map[string]time.Duration {
	pairs := l.readMap(t, path, n)
	out := make(map[string]time.Duration, len(pairs))
	for _, p := range pairs {
		at := path + "." + p.name
		if isNull(p.value) {
			continue
		}
		v, ok := t.readScalar(p.value, l.nameOf(at), durationKind())
		if l.noteOrigin(at, t.placeOf(p.value), ok); ok {
			out[p.name] = v.(time.Duration)
		}
	}
	return out
}
