// Package clitest has the tests that all commands of both programs have to pass.
package clitest

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/config"
)

// Commands returns the commands that do something, in the order of the help.
func Commands(of *cobra.Command) (all []*cobra.Command) {
	for _, c := range of.Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		if c.Runnable() && !c.HasAvailableSubCommands() {
			all = append(all, c)
		}
		all = append(all, Commands(c)...)
	}
	return all
}

// Run runs a command line in this process, and returns the exit status and what it printed.
func Run(root *cobra.Command, args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	root.SetArgs(args)
	root.SetOut(&o)
	root.SetErr(&e)
	root.SetIn(strings.NewReader(""))
	status = cli.Execute(root, &e)
	return status, o.String(), e.String()
}

// Understands returns an error if a command line has an unknown command, flag or argument. Nothing runs.
func Understands(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	return err
}

// Alike holds what every command has: help, JSON but for those without, a server from the environment, and
// exit status 2 for a line that cannot be understood.
func Alike(t *testing.T, root func() *cobra.Command, withoutJSON map[string]string) {
	t.Helper()
	const server = "http://conductor.example:1"
	t.Setenv(config.EnvServer, server)
	program := root().Name()
	for _, c := range Commands(root()) {
		path := strings.Fields(c.CommandPath())[1:]
		if _, allowed := withoutJSON[c.CommandPath()]; (c.Flags().Lookup("json") == nil) != allowed {
			t.Errorf("%s: --json is missing: %t, may be: %t", c.CommandPath(), !allowed, allowed)
		}
		if f := c.Flags().Lookup("server"); f != nil && f.DefValue != server {
			t.Errorf("%s: --server is %s by default, %s says %s", c.CommandPath(), f.DefValue, config.EnvServer, server)
		}
		if c.Long == "" || c.Example == "" {
			t.Errorf("%s: the help has no explanation or no example", c.CommandPath())
		}
		for _, line := range strings.Split(c.Example, "\n") {
			if call := strings.Fields(line); !slices.Contains(call, program) {
				t.Errorf("%s: the example %q does not call %s", c.CommandPath(), line, program)
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s has no help", c.CommandPath(), f.Name)
			}
		})
		if status, out, errs := Run(root(), append(slices.Clone(path), "--help")...); status != cli.ExitFine ||
			!strings.Contains(out, "Usage:") || errs != "" || strings.Contains(out, "\x1b") {
			t.Errorf("%s --help: %d %s%s", c.CommandPath(), status, out, errs)
		}
		for _, wrong := range []string{"--no-such-flag", "surplus surplus surplus"} {
			status, out, errs := Run(root(), append(slices.Clone(path), strings.Fields(wrong)...)...)
			if status != cli.ExitUsage || out != "" || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, program+": ") {
				t.Errorf("%s %s: %d %q %q", c.CommandPath(), wrong, status, out, errs)
			}
		}
	}
	status, said, _ := Run(root(), "version")
	if asFlag, out, errs := Run(root(), "--version"); status != cli.ExitFine || asFlag != cli.ExitFine || out != said || errs != "" ||
		strings.Count(out, "\n") != 1 {
		t.Errorf("--version: %d %q %q, version: %d %q", asFlag, out, errs, status, said)
	}
	if status, out, _ := Run(root(), "--help"); status != cli.ExitFine || !strings.Contains(out, "Exit status: 0") {
		t.Errorf("--help: %d %s", status, out)
	}
}
