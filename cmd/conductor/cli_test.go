package main

import (
	"os/exec"
	"strings"
	"testing"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/cmd/internal/clitest"
	"example.com/conductor/config"
)

// withoutJSON are the commands that print nothing for people, with the reason.
var withoutJSON = map[string]string{
	"conductor serve": "it logs, in JSON",
	"conductor relay": "it logs, in JSON",
}

// runCLI runs a command line in this process, and returns the exit status and what it printed.
func runCLI(args ...string) (status int, out, errs string) {
	return clitest.Run(rootCommand(), args...)
}

// TestCommandsAreAlike holds what every command has.
func TestCommandsAreAlike(t *testing.T) {
	if n := len(clitest.Commands(rootCommand())); n < 15 {
		t.Fatalf("only %d commands", n)
	}
	clitest.Alike(t, rootCommand, withoutJSON)
	if _, out, _ := runCLI("--help"); !strings.Contains(out, "NO_COLOR") || !strings.Contains(out, "completion") {
		t.Errorf("--help: %s", out)
	}
}

// TestExitStatus holds the statuses of single lines.
func TestExitStatus(t *testing.T) {
	t.Setenv(config.EnvServer, "http://127.0.0.1:1") // where none listens
	f := func(want int, args ...string) {
		t.Helper()
		if status, out, errs := runCLI(args...); status != want {
			t.Errorf("%v: %d, want %d: %s%s", args, status, want, out, errs)
		}
	}
	f(cli.ExitFine, "version")
	f(cli.ExitFine, "version", "--json")
	f(cli.ExitFine, "config", "defaults", "--json")
	f(cli.ExitFine, "config", "check", "--json", "../../deploy/conductor.yaml")
	f(cli.ExitError, "config", "check", "no-such-file.yaml")
	f(cli.ExitError, "config", "check", "--json", "no-such-file.yaml")
	f(cli.ExitError, "health")
	f(cli.ExitError, "doctor", "--json")
	f(cli.ExitError, "diff", "no-such-file", "no-such-file")
	f(cli.ExitUsage, "no-such-command")
	f(cli.ExitUsage, "diff", "one")
	f(cli.ExitUsage, "query", "--model", "m")
	f(cli.ExitUsage, "query", "--model", "m", "--block-size", "16", "--tokens", "1", "--seq-hashes", "2")
	f(cli.ExitUsage, "query", "--block-size", "many")
	f(cli.ExitUsage, "query", "--model", "m", "--block-size", "16", "--tokens", "1,2,a")
	f(cli.ExitUsage, "explain", "--model", "m", "--block-size", "16", "--tokens", "1,2,a")
	f(cli.ExitUsage, "replay", "no-such-folder", "--model", "m", "--block-size", "16", "--tokens", "1,2,a")
	f(cli.ExitUsage, "replay", "no-such-folder", "--until", "nonsense")
	f(cli.ExitError, "replay", "no-such-folder")
	f(cli.ExitUsage, "services", "--cert", "a.pem")
	f(cli.ExitError, "services", "--token-file", "no-such-file")
	f(cli.ExitError, "serve", "--max-sources", "many", "--config", "no-such-file.yaml") // settings, wherever they stand
	f(cli.ExitError, "config", "show", "--log-level", "loud")
	f(cli.ExitUsage, "top", "--sort", "beauty")
	f(cli.ExitUsage, "token")
	f(cli.ExitUsage, "relay")
	f(cli.ExitUsage, "config", "no-such-command")
	f(cli.ExitUsage, "completion", "no-such-shell")
	f(cli.ExitFine)
	f(cli.ExitFine, "config")
	f(cli.ExitFine, "help", "query")
}

// TestMistakes names what was probably meant.
func TestMistakes(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		if status, out, errs := runCLI(args...); status != cli.ExitUsage || out != "" || errs != "conductor: "+want+"\n" {
			t.Errorf("%v: %d %q %q", args, status, out, errs)
		}
	}
	f(`unknown command "doctr"; did you mean "doctor"?`, "doctr")
	f(`unknown command "status"; did you mean "services"?`, "status", "--jsn")
	f(`unknown command "foo"; conductor --help lists the commands`, "foo")
	f(`unknown command "chekc"; did you mean "config check"?`, "config", "chekc", "file.yaml")
	f(`unknown command "foo"; conductor config --help lists the commands`, "config", "foo")
	f(`unknown flag --modle; did you mean --model?`, "query", "--modle", "m")
	f(`unknown flag --replay; did you mean --replay-endpoint or --replay-port?`, "register", "tcp://e:1", "--replay", "m")
	f(`unknown flag -server; did you mean --server?`, "query", "-server", "m")
	f(`unknown flag --config; the file is an argument: conductor config check FILE`, "config", "check", "--config", "c.yaml")
	f(`unknown flag --colour; conductor query --help lists the flags`, "query", "--colour")
	f(`--block-size: "many" is not a whole number`, "query", "--block-size", "many")
	f(`--interval: "often" is not a duration, such as 30s or 5m`, "top", "--interval", "often")
	f(`conductor diff takes SERVER SERVER, and got "one"`, "diff", "one")
	f(`conductor config check takes FILE, and got nothing`, "config", "check")
	f(`conductor version takes no arguments, and got "surplus"`, "version", "surplus")
	f(`conductor explain needs --block-size, --model, --tokens`, "explain")
	f(`conductor token needs --name, --role`, "token")
	f(`conductor query needs --block-size, --tokens or --seq-hashes`, "query", "--model", "m")
	f(`--tokens and --seq-hashes exclude each other`, "query", "--model", "m", "--block-size", "16", "--tokens", "1", "--seq-hashes", "2")
	prompt := func(want string, args ...string) {
		t.Helper()
		f(want, append([]string{"query", "--model", "m", "--block-size", "16"}, args...)...)
	}
	prompt(`--tokens[2]: "a" is no token id, which is a whole number from 0 to 4294967295`, "--tokens", "1,2,a")
	prompt(`--tokens[0]: "1.5" is no token id, which is a whole number from 0 to 4294967295`, "--tokens", "1.5")
	prompt(`--tokens[1]: "4294967296" is no token id, which is a whole number from 0 to 4294967295`, "--tokens", "[1, 4294967296]")
	prompt(`--seq-hashes[1]: "-2" is no hash, which is a whole number from 0 to 18446744073709551615`, "--seq-hashes", "1 -2")
	prompt(`--tokens: the prompt is empty`, "--tokens", "")
	prompt(`--tokens: the prompt is empty`, "--tokens", "[]")
	prompt(`--tokens: standard input is empty`, "--tokens", "-")
	f(`--block-size: 0 is not a number of tokens, which is 1 or more`, "query", "--model", "m", "--block-size", "0", "--tokens", "1")
	f(`--block-size: -1 is not a number of tokens, which is 1 or more`, "explain", "--model", "m", "--block-size", "-1", "--tokens", "1")
	f(`--model: the name is empty`, "query", "--model", "", "--block-size", "16", "--tokens", "1")
	f(`--cert and --key belong together`, "services", "--cert", "a.pem")
	f(`unknown command "qery"; did you mean "query"?`, "help", "qery")
	f(`unknown command "chekc"; did you mean "config check"?`, "help", "config", "chekc")
}

// TestCompletion makes the scripts of all shells, and completes in bash's where there is a bash.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		status, out, errs := runCLI("completion", shell)
		if status != cli.ExitFine || len(out) < 1000 || !strings.Contains(out, "conductor") {
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
	if status, out, _ := runCLI("__complete", "to"); status != cli.ExitFine || !strings.Contains(out, "token\t") ||
		!strings.Contains(out, "top\t") {
		t.Errorf("completion of \"to\": %d %s", status, out)
	}
}
