package config

import (
	"fmt"

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
	// Check, if set, reports rules of other packages that the merged config breaks.
	Check func(Config) []Complaint
}

// Loaded is the outcome of Load.
type Loaded struct {
	Config   Config
	File     string       // the file that was read, "" when there was none
	Warnings []FieldError // settings without effect and unknown variables, which do no harm

	loader *loader
}

// Load merges defaults, file, environment and flags, and checks the result. The error
// joins all mistakes in the order file, environment, flags, each a FieldError. The Loaded
// is never nil. It has the warnings also if there is an error.
func Load(o Options) (*Loaded, error) {
	l := newLoader()
	env := environ(o.Env)
	if o.File == "" {
		o.File = fileFlag(o.Flags)
	}
	name, data := l.findFile(o, env)
	return l.load(name, data, env, o)
}

func (l *loader) load(name string, data []byte, env map[string]string, o Options) (*Loaded, error) {
	var file layer
	if name != "" {
		file = l.readFile(name, data)
	}
	c, err := merge(file, l.readEnv(env), l.readFlags(o.Flags))
	if err != nil {
		return &Loaded{loader: l}, fmt.Errorf("BUG: settings that were read cannot be merged: %w", err)
	}
	l.lay(o.Dynamo, &c)
	l.report(c.complaints())
	if o.Check != nil {
		l.report(o.Check(c))
	}
	return &Loaded{Config: c, File: name, Warnings: l.warns.list(), loader: l}, l.errs.err()
}

// Place returns the place that set a path of the config, such as sources[2] or hash.seed.
// It returns "" for a default.
func (d *Loaded) Place(path string) string { return d.loader.placeOf(path).String() }

// merge lays the layers over the defaults and fills a Config.
func merge(layers ...layer) (Config, error) {
	v := viper.New()
	c := Default()
	v.SetDefault("listeners", c.Listeners)
	for _, k := range keys {
		v.SetDefault(k.path, k.value(&c))
	}
	for _, given := range layers {
		for path, value := range given {
			v.Set(path, value)
		}
	}
	c = Config{}
	return c, v.UnmarshalExact(&c)
}
