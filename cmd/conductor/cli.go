package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
)

// Exit statuses of every command.
const (
	exitFine  = 0
	exitError = 1 // it failed, or it found something
	exitUsage = 2 // the command line says what no command understands
)

const exitHelp = `

Exit status: 0 if all is well, 1 after an error or if the command looked for something and found it
(doctor, diff, config check), 2 if the command line cannot be understood.

Environment: CONDUCTOR_SERVER is the server that commands ask, NO_COLOR turns colours off. Commands
that print for people print JSON with --json.`

// errUsage is a mistake in a command line.
type errUsage struct{ error }

func (e errUsage) Unwrap() error { return e.error }

// usagef returns an errUsage.
func usagef(format string, args ...any) error { return errUsage{fmt.Errorf(format, args...)} }

// execute runs the command that args name, and returns its exit status. Errors go to errs.
func execute(root *cobra.Command, errs io.Writer) int {
	understood := false // the line has a command, and that its flags and arguments
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
			return err
		}
		understood = true
		return nil
	}
	err := root.Execute()
	if err == nil {
		return exitFine
	}
	if !errors.Is(err, errReported) {
		fmt.Fprintln(errs, "conductor:", err)
	}
	if usage := (errUsage{}); !understood || errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

// coloured reports whether text for w has colours: w is a terminal, and NO_COLOR is not set.
func coloured(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

// jsonFlag adds the flag --json.
func jsonFlag(cmd *cobra.Command, meaning string) *bool {
	return cmd.Flags().Bool("json", false, meaning)
}

// printSettings prints settings that are given as YAML, as they are or as JSON.
func printSettings(out io.Writer, text string, asJSON bool) error {
	if !asJSON {
		_, err := io.WriteString(out, text)
		return err
	}
	var all map[string]any
	if err := yaml.Unmarshal([]byte(text), &all); err != nil {
		return err
	}
	return printJSON(out, all)
}
