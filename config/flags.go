package config

import (
	"strings"

	"github.com/spf13/pflag"
)

const (
	flagFile   = "config"
	flagListen = "listen"
)

// Flags defines one flag for every setting, and --config and --listen. Their values are checked by Load, so
// that one run reports every mistake.
func Flags(fs *pflag.FlagSet) {
	c := Default()
	fs.String(flagFile, "", "`file` with the settings, YAML or JSON (default $"+envFile+" or ~/"+mooncakeFile+")")
	fs.Var(&listenFlag{}, flagListen, "`address=dialect` to listen on, may be repeated; dialects: "+
		strings.Join(dialectKind.words, ", ")+" (default "+formatListeners(c.Listeners)+")")
	for _, s := range settings {
		s.defineFlag(fs)
	}
}

// defineFlag adds the flag of the setting.
func (s setting) defineFlag(fs *pflag.FlagSet) {
	fs.Var(&textFlag{formatValue(s.initial), s.kind.word}, s.flag, s.help)
	if s.kind.word == "bool" {
		fs.Lookup(s.flag).NoOptDefVal = "true" // --flag alone
	}
}

// A textFlag keeps what was given; Load parses it.
type textFlag struct{ value, word string }

func (f *textFlag) String() string     { return f.value }
func (f *textFlag) Set(s string) error { f.value = s; return nil }
func (f *textFlag) Type() string       { return f.word }

// A listenFlag keeps every value given.
type listenFlag struct{ values []string }

func (f *listenFlag) String() string     { return strings.Join(f.values, ",") }
func (f *listenFlag) Set(s string) error { f.values = append(f.values, s); return nil }
func (f *listenFlag) Type() string       { return "address=dialect" }

// givenFlag returns the value of a flag that was given.
func givenFlag(fs *pflag.FlagSet, name string) (string, bool) {
	if fs == nil {
		return "", false
	}
	f := fs.Lookup(name)
	if f == nil || !f.Changed {
		return "", false
	}
	return f.Value.String(), true
}

// fileFlag returns --config, "" when it was not given.
func fileFlag(fs *pflag.FlagSet) string {
	name, _ := givenFlag(fs, flagFile)
	return name
}

// readFlags reads the flags that were given.
func (l *loader) readFlags(fs *pflag.FlagSet) layer {
	out := layer{}
	if value, ok := givenFlag(fs, flagListen); ok {
		l.readListenerTexts(value, place{layer: inFlags, name: "flag --" + flagListen}, out)
	}
	for _, s := range settings {
		if value, ok := givenFlag(fs, s.flag); ok {
			l.readText(s, value, place{layer: inFlags, name: "flag --" + s.flag}, out)
		}
	}
	return out
}

// formatListeners renders listeners as --listen and CONDUCTOR_LISTENERS take them.
func formatListeners(list []Listener) string {
	var out []string
	for _, one := range list {
		out = append(out, one.Address+"="+one.Dialect)
	}
	return strings.Join(out, ",")
}
