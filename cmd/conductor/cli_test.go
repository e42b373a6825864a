package main

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// withoutJSON are the commands that print nothing for people, with the reason.
var withoutJSON = map[string]string{
	"conductor serve":       "it logs, in JSON",
	"conductor relay":       "it logs, in JSON",
	"conductor bench peers": "it prints rows of a document; bench index --json is what it runs",
}

// commands returns the commands that do something, in the order of the help.
func commands(of *cobra.Command) (all []*cobra.Command) {
	for _, c := range of.Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		if c.Runnable() && !c.HasAvailableSubCommands() {
			all = append(all, c)
		}
		all = append(all, commands(c)...)
	}
	return all
}

// runCLI runs a command line in this process, and returns the exit status and what it printed.
func runCLI(args ...string) (status int, out, errs string) {
	root := rootCommand()
	var o, e bytes.Buffer
	root.SetArgs(args)
	root.SetOut(&o)
	root.SetErr(&e)
	root.SetIn(strings.NewReader(""))
	status = execute(root, &e)
	return status, o.String(), e.String()
}

// TestCommandsAreAlike holds what every command has: help, JSON, a server from the environment, and
// exit status 2 for a line that cannot be understood.
func TestCommandsAreAlike(t *testing.T) {
	const server = "http://conductor.example:1"
	t.Setenv(serverEnv, server)
	all := commands(rootCommand())
	if len(all) < 20 {
		t.Fatalf("only %d commands", len(all))
	}
	for _, c := range all {
		path := strings.Fields(c.CommandPath())[1:]
		if _, allowed := withoutJSON[c.CommandPath()]; (c.Flags().Lookup("json") == nil) != allowed {
			t.Errorf("%s: --json is missing: %t, may be: %t", c.CommandPath(), !allowed, allowed)
		}
		if f := c.Flags().Lookup("server"); f != nil && f.DefValue != server {
			t.Errorf("%s: --server is %s by default, %s says %s", c.CommandPath(), f.DefValue, serverEnv, server)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s has no help", c.CommandPath(), f.Name)
			}
		})
		if status, out, errs := runCLI(append(slices.Clone(path), "--help")...); status != exitFine || !strings.Contains(out, "Usage:") || errs != "" || strings.Contains(out, "\x1b") {
			t.Errorf("%s --help: %d %s%s", c.CommandPath(), status, out, errs)
		}
		for _, wrong := range []string{"--no-such-flag", "surplus surplus surplus"} {
			status, out, errs := runCLI(append(slices.Clone(path), strings.Fields(wrong)...)...)
			if status != exitUsage || out != "" || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "conductor: ") {
				t.Errorf("%s %s: %d %q %q", c.CommandPath(), wrong, status, out, errs)
			}
		}
	}
	if status, out, _ := runCLI("--help"); status != exitFine || !strings.Contains(out, "Exit status: 0") || !strings.Contains(out, "NO_COLOR") || !strings.Contains(out, "completion") {
		t.Errorf("--help: %d %s", status, out)
	}
}

// TestExitStatus holds the statuses of single lines.
func TestExitStatus(t *testing.T) {
	t.Setenv(serverEnv, "http://127.0.0.1:1") // where none listens
	f := func(want int, args ...string) {
		t.Helper()
		if status, out, errs := runCLI(args...); status != want {
			t.Errorf("%v: %d, want %d: %s%s", args, status, want, out, errs)
		}
	}
	f(exitFine, "version")
	f(exitFine, "version", "--json")
	f(exitFine, "config", "defaults", "--json")
	f(exitFine, "config", "check", "--json", "../../deploy/conductor.yaml")
	f(exitError, "config", "check", "no-such-file.yaml")
	f(exitError, "config", "check", "--json", "no-such-file.yaml")
	f(exitError, "health")
	f(exitError, "doctor", "--json")
	f(exitError, "diff", "no-such-file", "no-such-file")
	f(exitUsage, "no-such-command")
	f(exitUsage, "diff", "one")
	f(exitUsage, "query", "--model", "m")
	f(exitUsage, "query", "--model", "m", "--block-size", "16", "--tokens", "1", "--seq-hashes", "2")
	f(exitUsage, "query", "--block-size", "many")
	f(exitUsage, "top", "--sort", "beauty")
	f(exitUsage, "token")
	f(exitUsage, "relay")
}

// TestCompletion makes the scripts of all shells, and completes in bash's where there is a bash.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		status, out, errs := runCLI("completion", shell)
		if status != exitFine || len(out) < 1000 || !strings.Contains(out, "conductor") {
			t.Errorf("%s: %d %s", shell, status, errs)
		}
		if shell != "bash" {
			continue
		}
		check := exec.Command("bash", "-c", `eval "$(cat)" && complete -p conductor`)
		check.Stdin = strings.NewReader(out)
		if said, err := check.CombinedOutput(); err != nil || !strings.Contains(string(said), "__start_conductor") {
			t.Errorf("bash: %v %s", err, said)
		}
	}
	if status, out, _ := runCLI("__complete", "to"); status != exitFine || !strings.Contains(out, "token\t") || !strings.Contains(out, "top\t") {
		t.Errorf("completion of \"to\": %d %s", status, out)
	}
}
