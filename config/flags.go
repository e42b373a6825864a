package config

import "github.com/spf13/pflag"

const flagFile = "config"

// Flags defines one flag for every setting, and --config. Their values are checked by Load, so that one run reports
// every mistake.
func Flags(fs *pflag.FlagSet) {
	fs.String(flagFile, "", "`file` with the settings, YAML or JSON (default $"+envFile+" or ~/"+mooncakeFile+")")
	for _, s := range allSettings {
		s.defineFlag(fs)
	}
}

// defineFlag adds the flag of the setting.
func (s setting) defineFlag(fs *pflag.FlagSet) {
	f := &textFlag{value: formatValue(s.initial), word: s.kind.word}
	help := s.help
	if s.path == "listeners" {
		help, f.repeats = help+"; may be repeated", true
	}
	fs.Var(f, s.flag, help)
	if s.kind.word == "bool" {
		fs.Lookup(s.flag).NoOptDefVal = "true" // --flag alone
	}
}

// A textFlag keeps what was given; Load parses it. If it repeats, all values count, else the last one.
type textFlag struct {
	value, word    string
	repeats, given bool
}

func (f *textFlag) String() string { return f.value }
func (f *textFlag) Type() string   { return f.word }

func (f *textFlag) Set(s string) error {
	if f.repeats && f.given {
		s = f.value + "," + s
	}
	f.value, f.given = s, true
	return nil
}

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

// readFlags reads the flags that were given.
func (l *loader) readFlags(fs *pflag.FlagSet) {
	for _, s := range allSettings {
		if value, ok := givenFlag(fs, s.flag); ok {
			l.readText(s, value, placeIn(inFlags, "flag --"+s.flag))
		}
	}
}
