package config

import (
	"maps"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// Options says where Load looks.
type Options struct {
	// File is the settings file. When it is "", --config names it, then
	// CONDUCTOR_CONFIG_PATH, then ~/.mooncake/conductor_config.json if that exists.
	File string
	// Env is the environment as NAME=value lines, usually os.Environ(). Without
	// it neither CONDUCTOR_… nor HOME exists.
	Env []string
	// Flags is a set that Flags has filled and that has been parsed; nil is none.
	Flags *pflag.FlagSet
	// Dynamo is laid over all of that.
	Dynamo DynamoServer

	sourcesApart bool // sources may contradict each other: they are registered one by one, so that costs only one of them
}

// Loaded is the outcome of Load.
type Loaded struct {
	Config   Config
	File     string       // the file that was read, "" when there was none
	Warnings []FieldError // settings without effect and unknown variables, which do no harm

	loader *loader
}

// Place returns the place that set a path of the config, such as sources[2] or hash.seed. It returns "" for a
// default.
func (d *Loaded) Place(path string) string { return d.loader.placeOf(path).String() }

// Load merges defaults, file, environment and flags, and checks the result. The error joins all mistakes in
// the order file, environment, flags, each a FieldError. The Loaded is never nil. It has the warnings also if
// there is an error.
func Load(o Options) (*Loaded, error) {
	l := newLoader()
	env := parseEnviron(o.Env)
	if o.File == "" {
		o.File = fileFlag(o.Flags)
	}
	name, data := l.findFile(o, env)
	return l.load(name, data, env, o)
}

// A layer is what one of file, environment and flags says: values by path. "listeners" and "sources" are
// whole lists.
type layer map[string]any

// A loader reads the layers and remembers, for the checks that follow, where each value came from and which
// were unreadable.
type loader struct {
	errs    report
	warns   report
	places  map[string]place  // path -> where the winning value stands
	names   map[string]string // path -> what the reader calls it, where the file has another name for it
	failed  map[string]bool   // paths whose value could not be read
	vouched map[string]bool   // paths whose value another package has checked
}

func newLoader() *loader {
	return &loader{
		places: map[string]place{}, names: map[string]string{}, failed: map[string]bool{}, vouched: map[string]bool{},
	}
}

// load is Load with the file read.
func (l *loader) load(name string, data []byte, env map[string]string, o Options) (*Loaded, error) {
	var file layer
	if name != "" {
		file = l.readFile(name, data)
	}
	c := mergeLayers(file, l.readEnv(env), l.readFlags(o.Flags))
	l.addDynamoServer(o.Dynamo, &c)
	l.reportComplaints(c.complaints())
	if !o.sourcesApart {
		l.reportComplaints(contradictions(c.Sources))
	}
	return &Loaded{Config: c, File: name, Warnings: l.warns.sorted(), loader: l}, l.errs.err()
}

// mergeLayers lays the layers over the defaults and fills a Config.
func mergeLayers(layers ...layer) Config {
	c := Default()
	v := viper.New()
	v.SetDefault("sources", c.Sources)
	for _, s := range allSettings {
		v.SetDefault(s.path, s.initial)
	}
	for _, given := range layers {
		for path, value := range given {
			v.Set(path, value)
		}
	}
	for _, s := range allSettings {
		s.assign(&c, v.Get(s.path))
	}
	c.Sources = v.Get("sources").([]Source)
	return c
}

// readText reads a setting that is given as text, which replaces the value of the layers below, the elements of a list
// and their mistakes included.
func (l *loader) readText(s setting, value string, at place, out layer) {
	element := s.path + "["
	maps.DeleteFunc(l.places, func(path string, _ place) bool { return strings.HasPrefix(path, element) })
	maps.DeleteFunc(l.failed, func(path string, _ bool) bool { return strings.HasPrefix(path, element) })
	maps.DeleteFunc(l.names, func(path, _ string) bool { return strings.HasPrefix(path, element) })
	v, err := s.kind.parse(strings.TrimSpace(value))
	if err != nil && at.layer == inEnv && s.env() == envLevel {
		// Mooncake takes an unknown level for INFO and starts.
		l.warns.addProblem(at, s.path, "%s; taken for \"info\"", err)
		v, err = "info", nil
	}
	l.places[s.path], l.failed[s.path] = at, err != nil
	if err != nil {
		for reason := range strings.SplitSeq(err.Error(), "\n") {
			l.errs.addProblem(at, s.path, "%s", reason)
		}
		return
	}
	out[s.path] = v
}

// nameOf returns what the reader calls a path.
func (l *loader) nameOf(path string) string {
	if name, ok := l.names[path]; ok {
		return name
	}
	if i := strings.LastIndexByte(path, '.'); i > 0 {
		return joinPath(l.nameOf(path[:i]), path[i+1:])
	}
	return path
}

// placeOf returns where a path was given, or else what holds it.
func (l *loader) placeOf(path string) place {
	for ; path != ""; path = parentPath(path) {
		if at, ok := l.places[path]; ok {
			return at
		}
	}
	return place{}
}

// isUnreadable reports whether a value, or what holds it, could not be read.
func (l *loader) isUnreadable(path string) bool {
	for ; path != ""; path = parentPath(path) {
		if l.failed[path] {
			return true
		}
	}
	return false
}

// parentPath returns the path of what holds a path: sources[2] for sources[2].endpoint, and sources for that.
func parentPath(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }
