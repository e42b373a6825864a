package config

import (
	"strings"

	"github.com/spf13/pflag"
)

const (
	flagFile   = "config"
	flagListen = "listen"
)

// Flags defines one flag for every key, and --config and --listen. Their values
// are checked by Load, so that one run reports every mistake.
func Flags(fs *pflag.FlagSet) {
	c := Default()
	fs.String(flagFile, "", "`file` with the settings, YAML or JSON (default $"+envFile+" or ~/"+mooncakeFile+")")
	fs.Var(&listenFlag{}, flagListen, "`address=dialect` to listen on, may be repeated; dialects: "+Conductor+", "+ConductorMsgpack+", "+ConductorJSONV2+", "+Dynamo+", "+GRPC+
		" (default "+showListeners(c.Listeners)+")")
	for _, k := range keys {
		k.define(fs, k.show(&c))
	}
}

// define adds the flag of a key, with a default to show.
func (k key) define(fs *pflag.FlagSet, shown string) {
	fs.Var(&textFlag{shown, k.kind.word}, k.flag, k.help)
	if k.kind.word == "bool" {
		fs.Lookup(k.flag).NoOptDefVal = "true" // --flag alone
	}
}

// A textFlag keeps what was given; Load parses it.
type textFlag struct{ value, word string }

func (f *textFlag) String() string     { return f.value }
func (f *textFlag) Set(s string) error { f.value = s; return nil }
func (f *textFlag) Type() string       { return f.word }

// A listenFlag keeps every value given.
type listenFlag struct{ values []string }

func (f *listenFlag) String() string { return strings.Join(f.values, ",") }
func (f *listenFlag) Set(s string) error {
	f.values = append(f.values, strings.Split(s, ",")...)
	return nil
}
func (f *listenFlag) Type() string { return "address=dialect" }

// fileFlag returns --config, "" when it was not given.
func fileFlag(fs *pflag.FlagSet) string {
	if fs == nil {
		return ""
	}
	if f := fs.Lookup(flagFile); f != nil && f.Changed {
		return f.Value.String()
	}
	return ""
}

// readFlags reads the flags that were given.
func (l *loader) readFlags(fs *pflag.FlagSet) layer {
	out := layer{}
	if fs == nil {
		return out
	}
	given := func(name string) (string, place, bool) {
		f := fs.Lookup(name)
		if f == nil || !f.Changed {
			return "", place{}, false
		}
		return f.Value.String(), place{layer: inFlags, name: "flag --" + name}, true
	}
	if value, at, ok := given(flagListen); ok {
		l.readListenerTexts(strings.Split(value, ","), at, out)
	}
	for _, k := range keys {
		if value, at, ok := given(k.flag); ok {
			l.readText(k, value, at, out)
		}
	}
	return out
}

func showListeners(list []Listener) string {
	var out []string
	for _, one := range list {
		out = append(out, one.Address+"="+one.Dialect)
	}
	return strings.Join(out, ",")
}
