package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.com/conductor/redact"
	"example.com/conductor/spelling"
)

// explainMistakes lets a command and those below it word mistakes of a command line in one sentence, with the
// nearest command or flag, and refuse commands that do not exist at any level.
func explainMistakes(c *cobra.Command) {
	c.SetFlagErrorFunc(FlagError)
	if c.Name() == "help" {
		c.Args = func(c *cobra.Command, args []string) error {
			if about, rest, err := c.Root().Find(args); err == nil && len(rest) > 0 {
				return unknownCommand(about, rest[0])
			}
			return nil
		}
	} else if c.HasSubCommands() && !c.Runnable() {
		c.DisableFlagsInUseLine = true
		c.Args = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(c, args[0])
			}
			return nil
		}
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	} else if c.Args != nil {
		c.Args = Arguments(c.Args)
	}
	for _, sub := range c.Commands() {
		explainMistakes(sub)
	}
}

// unknownCommand names the command that was probably meant.
func unknownCommand(c *cobra.Command, word string) error {
	var names []string
	meant := ""
	for _, sub := range c.Commands() {
		if sub.Hidden {
			continue
		}
		names = append(names, sub.Name())
		for _, other := range sub.SuggestFor {
			if strings.EqualFold(other, word) {
				meant = sub.Name()
			}
		}
	}
	if near := spelling.Closest(word, names); near != "" {
		meant = near
	}
	if meant != "" {
		return Usagef("unknown command %q; did you mean %q?", word, strings.TrimPrefix(c.CommandPath()+" "+meant, c.Root().Name()+" "))
	}
	return Usagef("unknown command %q; %s --help lists the commands", word, c.CommandPath())
}

// Arguments lets a check of arguments say what the command takes.
func Arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if check(c, args) == nil {
			return nil
		}
		_, takes, _ := strings.Cut(c.Use, " ")
		takes = strings.TrimSuffix(takes, "[flags]")
		switch {
		case takes == "" && len(args) > 0:
			return Usagef("%s takes no arguments, and got %q", c.CommandPath(), args[0])
		case len(args) == 0:
			return Usagef("%s takes %s, and got nothing", c.CommandPath(), takes)
		}
		return Usagef("%s takes %s, and got %s", c.CommandPath(), takes, quoted(args))
	}
}

// quoted lists words in quotes.
func quoted(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = fmt.Sprintf("%q", w)
	}
	return strings.Join(out, " ")
}

// FlagError words the error of a flag. It is a cobra.Command's FlagErrorFunc.
func FlagError(c *cobra.Command, err error) error {
	if given := c.Flags().Args(); c.HasSubCommands() && len(given) > 0 {
		return unknownCommand(c, given[0]) // its flags are not known either
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	var unknown *pflag.NotExistError
	var value *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		word, dashes := unknown.GetSpecifiedName(), "--"
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			word, dashes = short, "-"
		}
		word = redact.Word(word)
		if _, takes, _ := strings.Cut(c.Use, " "); strings.Contains(takes, "FILE") && (word == "config" || word == "file") {
			return Usagef("unknown flag --%s; the file is an argument: %s %s", word, c.CommandPath(), takes)
		}
		if near := spelling.Meant(word, names); len(near) > 0 {
			for i := range near {
				near[i] = "--" + near[i]
			}
			return Usagef("unknown flag %s%s; did you mean %s?", dashes, word, spelling.Or(near))
		}
		return Usagef("unknown flag %s%s; %s --help lists the flags", dashes, word, c.CommandPath())
	case errors.As(err, &value):
		kind, known := kinds[value.GetFlag().Value.Type()]
		if !known {
			return Usagef("--%s: %s", value.GetFlag().Name, HideWords(value.Unwrap().Error(), []string{value.GetValue()}))
		}
		return Usagef("--%s: %q is not %s", value.GetFlag().Name, redact.Word(value.GetValue()), kind)
	}
	return Usagef("%w", err)
}

// kinds says what values of flags are, by their types.
var kinds = map[string]string{
	"int": "a whole number", "uint": "a whole number from 0", "uint16": "a whole number from 0 to 65535",
	"uint32": "a whole number from 0 to 4294967295", "uint64": "a whole number from 0",
	"float64": "a number", "bool": "true or false", "duration": "a duration, such as 30s or 5m",
}

// checkFlags names the flags that are missing, or that exclude each other.
func checkFlags(c *cobra.Command) error {
	var missing []string
	told := make(map[string]bool) // by group: each of its flags has the same annotation
	var clash error
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if required := f.Annotations[cobra.BashCompOneRequiredFlag]; len(required) > 0 && required[0] == "true" && !f.Changed {
			missing = append(missing, "--"+f.Name)
		}
		for _, group := range f.Annotations[oneRequired] {
			if all := strings.Fields(group); !told[group] && !slices.ContainsFunc(all, c.Flags().Changed) {
				told[group], missing = true, append(missing, "--"+strings.Join(all, " or --"))
			}
		}
		for _, group := range f.Annotations[exclusive] {
			if given := slices.DeleteFunc(strings.Fields(group), func(name string) bool {
				return !c.Flags().Changed(name)
			}); len(given) > 1 {
				clash = Usagef("--%s exclude each other", strings.Join(given, " and --"))
			}
		}
	})
	if len(missing) > 0 {
		return Usagef("%s needs %s", c.CommandPath(), strings.Join(missing, ", "))
	}
	return clash
}

// Annotations of flags in groups, which cobra sets and keeps to itself: the names of the group, with spaces.
const (
	oneRequired = "cobra_annotation_one_required"
	exclusive   = "cobra_annotation_mutually_exclusive"
)
