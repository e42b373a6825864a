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
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/reach"
	"example.com/conductor/redact"
	"example.com/conductor/spelling"
	"example.com/conductor/yamlfile"
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
	at := placeIn(inFile, o.File)
	switch {
	case o.File != "":
		name = o.File
	case named != "":
		name, at = named, placeIn(inEnv, "env "+envFile)
	case home != "":
		name = filepath.Join(home, mooncakeFile)
		at.Name = name
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
	if t.Root == nil {
		return
	}
	pairs, _ := t.Pairs(t.Root, "")
	var sources []Source
	var port *yamlfile.Pair
	sections := slices.DeleteFunc(pairs, func(p yamlfile.Pair) bool {
		switch p.Name {
		case "listeners":
			listeners, ok := l.readListeners(t, p.Value)
			l.values.Set("listeners", listeners)
			l.noteOrigin("listeners", t.placeOf(p.Key), ok)
		case "sources":
			l.noteOrigin("sources", t.placeOf(p.Key), true)
			for i, n := range l.readSourceList(t, p.Value) {
				if t.Full() {
					break
				}
				sources = append(sources, l.readSource(t, len(sources), n, fmt.Sprintf("sources[%d]", i), ""))
			}
		case mooncakePort:
			port = &p
		case mooncakeSources:
			l.noteOrigin("sources", t.placeOf(p.Key), true)
			entries, _ := t.Pairs(p.Value, mooncakeSources)
			for _, e := range entries {
				if t.Full() {
					break
				}
				sources = append(sources, l.readSource(t, len(sources), e.Value, yamlfile.JoinPath(mooncakeSources, e.Name), e.Name))
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
func (l *loader) readMap(t tree, path string, n *yaml.Node) []yamlfile.Pair {
	pairs, ok := t.Pairs(n, l.nameOf(path))
	l.noteOrigin(path, t.placeOf(n), ok)
	return pairs
}

// readFields reads the pairs of the map at path into a struct.
func (l *loader) readFields(t tree, path string, pairs []yamlfile.Pair, fields []field, into reflect.Value) {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	for _, p := range pairs {
		if t.Full() {
			return
		}
		i := slices.Index(names, p.Name)
		if i < 0 {
			l.reportUnknownKey(t, p, l.nameOf(path), names)
			continue
		}
		f, at := fields[i], yamlfile.JoinPath(path, p.Name)
		switch {
		case f.nullable && yamlfile.IsNull(p.Value):
			l.noteOrigin(at, t.placeOf(p.Value), true)
		case f.members != nil && f.nullable:
			l.readWhole(t, at, p.Value, f.members, into.FieldByIndex(f.index))
		case f.members != nil:
			section, _ := t.Pairs(p.Value, at)
			l.readFields(t, at, section, f.members, into.FieldByIndex(f.index))
		default:
			v, ok := t.readValue(p.Value, l.nameOf(at), f.kind)
			if l.noteOrigin(at, t.placeOf(p.Value), ok); ok {
				into.FieldByIndex(f.index).Set(reflect.ValueOf(v))
			}
		}
	}
}

// readWhole reads the map at path into a struct whose fields mean nothing without each other.
func (l *loader) readWhole(t tree, path string, n *yaml.Node, fields []field, into reflect.Value) {
	l.readFields(t, path, l.readMap(t, path, n), fields, into)
	isMap := !l.origins[path].failed
	whole := isMap
	for _, f := range fields {
		at := yamlfile.JoinPath(path, f.name)
		o, given := l.origins[at]
		if isMap && !given && !f.nullable {
			t.AddProblem(n, l.nameOf(at), "is required")
			whole = false
		}
		whole = whole && !o.failed
	}
	l.noteOrigin(path, t.placeOf(n), whole)
}

// reportUnknownKey reports an unknown key, with the key that was probably meant: one of the same map, or one of the same name
// somewhere else. In a section that is one setting alone, whose name has two words: enabled or file mean something in each section.
func (l *loader) reportUnknownKey(t tree, p yamlfile.Pair, section string, names []string) {
	hint := spelling.DidYouMean(p.Name, names)
	if hint == "" {
		var elsewhere []string
		for _, s := range settings {
			if s.name == p.Name {
				elsewhere = append(elsewhere, s.path)
			}
		}
		if section == "" || len(elsewhere) == 1 && strings.Contains(p.Name, "_") {
			hint = spelling.Offer(elsewhere)
		}
	}
	t.AddUnknownKey(p, section, hint)
}

// readListeners reads the list of listeners. It returns false if there is none.
func (l *loader) readListeners(t tree, n *yaml.Node) (out []Listener, ok bool) {
	out = []Listener{}
	if t.refuseMapForList(n, "listeners") || t.refuseListenerText(n, "listeners", "a list", "[%s]") {
		return out, false
	}
	elements, ok := t.Elements(n, "listeners")
	for i, e := range elements {
		if t.Full() {
			break
		}
		path := fmt.Sprintf("listeners[%d]", i)
		one := Listener{Dialect: Conductor}
		if t.refuseListenerText(e, path, "a map of keys", "%s") {
			l.noteOrigin(path, t.placeOf(e), false)
		} else {
			l.readFields(t, path, l.readMap(t, path, e), listenerFields, reflect.ValueOf(&one).Elem())
		}
		out = append(out, one)
	}
	return out, ok
}

// maxForm is how long a value may be in bytes that messages repeat in the form in which a file has it.
const maxForm = 256

// refuseMapForList reports a map at path in place of the list of such maps. It returns false if there is no map.
func (t tree) refuseMapForList(n *yaml.Node, path string) bool {
	n = yamlfile.Resolve(n)
	if n.Kind != yaml.MappingNode {
		return false
	}
	remedy := `put "- " before it`
	if n.Style&yaml.FlowStyle != 0 {
		remedy = "put [ ] around it"
	}
	t.AddProblem(n, path, "must be a list, not a map; %s", remedy)
	return true
}

// refuseListenerText reports a text or port at path in place of listeners, such as address=dialect of the flag, and says how a file
// has it. It returns false if there is neither.
func (t tree) refuseListenerText(n *yaml.Node, path, wants, form string) bool {
	n = yamlfile.Resolve(n)
	text := n.Value
	switch tag := n.ShortTag(); {
	case n.Kind != yaml.ScalarNode || tag != "!!str" && tag != "!!int":
		return false
	case tag == "!!int":
		text = ":" + text // a port
	}
	texts := []string{fmt.Sprintf("{address: HOST:PORT, dialect: %s}", Conductor)}
	if meant, err := parseListeners(text[:min(len(text), maxForm)]); err == nil && len(text) < maxForm {
		texts = nil
		for _, one := range meant.([]Listener) {
			texts = append(texts, fmt.Sprintf("{address: %q, dialect: %s}", one.Address, one.Dialect))
		}
	}
	t.AddProblem(n, path, "must be %s, not %s; write "+form, wants, t.Describe(n), strings.Join(texts, ", "))
	return true
}

// readMooncakePort turns http_server_port into the one listener it stands for.
func (l *loader) readMooncakePort(t tree, p yamlfile.Pair) {
	if ours, both := l.origins["listeners"]; both {
		l.errs.addProblem(t.placeOf(p.Key), mooncakePort, "listeners (%s) says the same; keep one of the two", ours)
		return
	}
	v, ok := t.readScalar(p.Value, mooncakePort, countKind())
	if !ok {
		return
	}
	port := v.(int)
	if port < 1 || port > 65535 {
		l.errs.addProblem(t.placeOf(p.Value), mooncakePort, "%d is out of range 1 to 65535", port)
		return
	}
	l.values.Set("listeners", []Listener{{":" + strconv.Itoa(port), Conductor}})
	l.noteOrigin("listeners", t.placeOf(p.Value), true)
	l.origins["listeners[0].address"] = origin{place: t.placeOf(p.Value), called: mooncakePort}
}

// readSourceList returns the entries of the list of sources.
func (l *loader) readSourceList(t tree, n *yaml.Node) []*yaml.Node {
	if t.refuseMapForList(n, "sources") || t.refuseSourceText(n, "sources", "a list", "[%s]") {
		return nil
	}
	return t.readElements(n, "sources")
}

// refuseSourceText reports the URL of an engine at path in place of sources, and says how a file has it. It returns false if there
// is no such URL.
func (t tree) refuseSourceText(n *yaml.Node, path, wants, form string) bool {
	n = yamlfile.Resolve(n)
	if n.Kind != yaml.ScalarNode || len(n.Value) > maxForm || reach.CheckURL(n.Value) != nil {
		return false
	}
	source := fmt.Sprintf("{discover: %q, instance_id: NAME}", redact.URL(n.Value))
	t.AddProblem(n, path, "must be %s, not %s; write "+form, wants, t.Describe(n), source)
	return true
}

// readSource reads entry i of the final list of sources, which the reader of the file calls name. instance is
// its instance id if it gives none.
func (l *loader) readSource(t tree, i int, n *yaml.Node, name, instance string) Source {
	path := fmt.Sprintf("sources[%d]", i)
	l.origins[path] = origin{called: name}
	if t.refuseSourceText(n, name, "a map of keys", "%s") {
		l.noteOrigin(path, t.placeOf(n), false)
		return Source{}
	}
	s := Source{Registration: registration.Registration{Instance: instance}}
	pairs := slices.DeleteFunc(l.readMap(t, path, n), func(p yamlfile.Pair) bool {
		switch {
		case p.Name == sourceTTL && p.Value.Kind == yaml.MappingNode:
			s.MediaTTL = l.readMediaTTL(t, yamlfile.JoinPath(path, sourceTTL), p.Value)
		case p.Name == "cache_group": // Mooncake's
			if !yamlfile.IsNull(p.Value) && (p.Value.ShortTag() != "!!int" || p.Value.Value != "0") { // 0 is what happens anyway
				l.warns.addProblem(t.placeOf(p.Key), yamlfile.JoinPath(l.nameOf(path), p.Name),
					"has no effect; groups are told apart by the events")
			}
		default:
			return false
		}
		return true
	})
	l.readFields(t, path, pairs, sourceFields, reflect.ValueOf(&s).Elem())
	at := yamlfile.JoinPath(path, blockSize)
	_, given := l.origins[at]
	switch {
	case s.BlockSize == AutoCount:
		s.BlockSize = 0 // the engine tells it
	case !given && s.Discover == "" && !l.origins[path].failed:
		t.AddProblem(n, l.nameOf(at), "is required: the engine's tokens a block")
	}
	return s.withTenant()
}

// readMediaTTL reads the map of media at path.
func (l *loader) readMediaTTL(t tree, path string, n *yaml.Node) map[string]time.Duration {
	pairs := l.readMap(t, path, n)
	out := make(map[string]time.Duration, len(pairs))
	for _, p := range pairs {
		if t.Full() {
			break
		}
		at := path + "." + p.Name
		if yamlfile.IsNull(p.Value) {
			continue
		}
		v, ok := t.readScalar(p.Value, l.nameOf(at), durationKind())
		if l.noteOrigin(at, t.placeOf(p.Value), ok); ok {
			out[p.Name] = v.(time.Duration)
		}
	}
	return out
}
