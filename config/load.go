package config

import (
	"cmp"
	"maps"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"example.com/conductor/yamlfile"
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

// Unread reports whether a value that a path names, or a part of it, could not be read, so that the default stands there.
func (d *Loaded) Unread(path string) bool {
	return d.loader.isUnreadable(path) || d.loader.anyUnreadable(path)
}

// Load merges defaults, file, environment and flags, and checks the result. The error joins all mistakes in
// the order file, environment, flags, each a FieldError. The Loaded is never nil. It has the warnings also if
// there is an error.
func Load(o Options) (*Loaded, error) {
	l := newLoader()
	env := parseEnviron(o.Env)
	asked, _ := givenFlag(o.Flags, flagFile)
	o.File = cmp.Or(o.File, asked)
	name, data := l.findFile(o, env)
	return l.load(name, data, env, o)
}

// A loader reads the layers over each other and remembers, for the checks that follow, where each value came from and
// which were unreadable.
type loader struct {
	errs    report
	warns   report
	values  *viper.Viper // by path, those of later layers over those of earlier ones; "listeners" and "sources" are whole lists
	origins map[string]origin
}

// An origin is where the winning value of a path stands, and what became of it.
type origin struct {
	place
	called  string // what the file calls the path, "" if that is the path itself
	failed  bool   // the value could not be read
	vouched bool   // another package has checked it
}

func newLoader() *loader {
	l := &loader{values: viper.New(), origins: map[string]origin{}}
	l.values.SetDefault("sources", []Source(nil))
	for _, s := range allSettings {
		l.values.SetDefault(s.path, s.initial)
	}
	return l
}

// load is Load with the file read.
func (l *loader) load(name string, data []byte, env map[string]string, o Options) (*Loaded, error) {
	if name != "" {
		l.readFile(name, data)
	}
	l.readEnv(env)
	l.readFlags(o.Flags)
	c := Config{Sources: l.values.Get("sources").([]Source)}
	for _, s := range allSettings {
		s.assign(&c, l.values.Get(s.path))
	}
	l.addDynamoServer(o.Dynamo, &c)
	l.reportComplaints(c.complaints())
	if !o.sourcesApart {
		l.reportComplaints(contradictions(c.Sources))
	}
	return &Loaded{Config: c, File: name, Warnings: l.warns.sorted(), loader: l}, l.errs.err()
}

// noteOrigin remembers where the value of a path stands, and whether it could be read.
func (l *loader) noteOrigin(path string, at place, ok bool) {
	o := l.origins[path]
	o.place, o.failed = at, !ok
	l.origins[path] = o
}

// readText reads a setting that is given as text, which replaces the value of the layers below, the elements of a list
// and their mistakes included.
func (l *loader) readText(s setting, value string, at place) {
	maps.DeleteFunc(l.origins, func(path string, _ origin) bool { return isWithin(path, s.path) })
	v, err := s.kind.parse(strings.TrimSpace(value))
	if err != nil && at.layer == inEnv && s.env() == envLevel {
		// Mooncake takes an unknown level for INFO and starts.
		l.warns.addProblem(at, s.path, "%s; taken for \"info\"", err)
		v, err = "info", nil
	}
	l.noteOrigin(s.path, at, err == nil)
	if err != nil {
		for reason := range strings.SplitSeq(err.Error(), "\n") {
			l.errs.addProblem(at, s.path, "%s", reason)
		}
		return
	}
	l.values.Set(s.path, v)
}

// nameOf returns what the reader calls a path.
func (l *loader) nameOf(path string) string {
	if called := l.origins[path].called; called != "" {
		return called
	}
	if i := strings.LastIndexByte(path, '.'); i > 0 {
		return yamlfile.JoinPath(l.nameOf(path[:i]), path[i+1:])
	}
	return path
}

// placeOf returns where a path was given, or else what holds it.
func (l *loader) placeOf(path string) place {
	for ; path != ""; path = parentPath(path) {
		if o, ok := l.origins[path]; ok {
			return o.place
		}
	}
	return place{}
}

// isUnreadable reports whether a value, or what holds it, could not be read.
func (l *loader) isUnreadable(path string) bool {
	for ; path != ""; path = parentPath(path) {
		if l.origins[path].failed {
			return true
		}
	}
	return false
}

// isWithin reports whether a path is another one, or a part of it.
func isWithin(path, whole string) bool {
	rest, found := strings.CutPrefix(path, whole)
	return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// parentPath returns the path of what holds a path: sources[2] for sources[2].endpoint, and sources for that.
func parentPath(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }
