package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"example.com/conductor/cmd/internal/clitest"
	"example.com/conductor/config"
	"example.com/conductor/internal/doctest"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

const repository = "../.."

var makeTarget = regexp.MustCompile("`make ([a-z][a-z0-9-]*)[^`]*`")

// documentedEngine is what the server follows whose answers the documents show.
const documentedEngine = `{instance_id: prefill-1, dp_rank: 0, type: vLLM, modelname: deepseek, block_size: 16, endpoint: ` +
	`"tcp://127.0.0.1:1"}`

// documentedPatience ends a page whose commands hang.
const documentedPatience = 5 * time.Minute

// TestDocumentedCommands runs the code blocks of the documents against a real server. Of blocks that need
// something else, such as a cluster, the command lines are parsed as the shell and conductor do.
func TestDocumentedCommands(t *testing.T) {
	programs := documentedPrograms(t)
	targets := makeTargets(t)
	ran, commands, read := 0, 0, 0
	pages := doctest.Pages(t, repository)
	for _, page := range pages {
		t.Run(page.Path, func(t *testing.T) {
			read++
			d := &documented{t: t, page: page, targets: targets}
			for _, m := range makeTarget.FindAllStringSubmatch(page.Text, -1) {
				d.make(m[1:2])
			}
			for _, block := range page.Blocks {
				d.read(block)
			}
			ran += d.session(programs)
			commands += d.commands
		})
	}
	if read == len(pages) && (ran < 10 || commands < 15) { // else -run names some
		t.Errorf("only %d blocks ran, and %d commands were parsed", ran, commands)
	}
}

// documentedPrograms returns a folder with the programs of the repository. The server is this test, which
// TestMain lets be the program.
func documentedPrograms(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"conductor", indexerName} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nexec '"+os.Args[0]+"' \"$@\"\n"), 0o700))
	}
	output, err := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/conductor-lab", repository+"/cmd/conductor-lab").
		CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v: %s", err, output)
	}
	return dir
}

// documented is a page whose code blocks are read, and run.
type documented struct {
	t        *testing.T
	page     doctest.Page
	targets  []string
	commands int
}

// session runs the blocks of the page that run, and returns how many.
func (d *documented) session(programs string) int {
	d.t.Helper()
	s := &doctest.Session{Timeout: documentedPatience, Ports: portsOfPages(d.t)}
	serves := false // the page starts a server of its own
	var python []string
	settings := "{sources: [" + documentedEngine + "]}"
	for _, b := range d.page.Blocks {
		serves = serves || s.Serves(b)
		if b.Language == "python" {
			python = append(python, b.Text)
		}
	}
	if i := slices.IndexFunc(d.page.Blocks, func(b doctest.Block) bool { return b.Language == "yaml" }); i >= 0 {
		settings = d.page.Blocks[i].Text
	}
	if !slices.ContainsFunc(d.page.Blocks, s.Runnable) && len(python) == 0 {
		return 0
	}
	if !serves {
		s.Ports["13334"] = s.Ports["13333"] // of a server next to the one that a page replaces
		serveProcess(d.t, "{sources: ["+documentedEngine+"]}", "127.0.0.1:"+s.Ports["13333"]+"=conductor")
	}
	s.Dir = doctest.Checkout(d.t, repository)
	for _, name := range []string{"conductor", "conductor-lab", indexerName} {
		must.Succeed(d.t, os.Symlink(filepath.Join(programs, name), filepath.Join(s.Dir, "bin", name)))
	}
	must.Succeed(d.t, os.WriteFile(filepath.Join(s.Dir, "prompt.txt"), []byte("101 15 100 55\n"), 0o600))
	must.Succeed(d.t, os.WriteFile(filepath.Join(s.Dir, "conductor.yaml"), []byte(s.With(settings)), 0o600))
	s.Env = append(command().Env, "HOME="+s.Dir, "STATE="+s.Scratch(), config.EnvServer+"=http://127.0.0.1:"+s.Ports["13333"],
		config.EnvWait+"=1m", // the machine may be slow
		"GOFLAGS=-buildvcs=false", "NO_COLOR=1", "PATH="+filepath.Join(s.Dir, "bin")+":"+os.Getenv("PATH"))
	for _, name := range []string{"GOCACHE", "GOMODCACHE"} { // they would be below HOME
		folder, err := exec.Command("go", "env", name).Output()
		must.Succeed(d.t, err)
		s.Env = append(s.Env, name+"="+strings.TrimSpace(string(folder)))
	}
	ran := s.Run(d.t, d.page)
	checks := pythonChecks[d.page.Name]
	if len(checks) != len(python) {
		d.t.Errorf("it has %d blocks in Python, and what has to hold after them is known of %d", len(python), len(checks))
	}
	for i := range min(len(python), len(checks)) {
		d.python(s.With(python[i]), checks[i])
	}
	return ran
}

// portsOfPages returns a free port for each port that the documents use.
func portsOfPages(t *testing.T) map[string]string {
	t.Helper()
	ports := map[string]string{}
	for _, port := range []string{"13333", "13334", "8090", "8080", "8001", "8002", "5557", "5567", "6557", "6567"} {
		address, err := freeport.Address()
		must.Succeed(t, err)
		_, ports[port], err = net.SplitHostPort(address)
		must.Succeed(t, err)
	}
	return ports
}

// read checks a block that does not have to run: its mark, its commands' flags, its syntax.
func (d *documented) read(b doctest.Block) {
	d.t.Helper()
	switch b.Language {
	case "sh":
		if !slices.Contains([]string{"", doctest.Fails, doctest.Example, doctest.Cluster, doctest.Engine}, b.Kind) {
			d.t.Errorf("a block in sh is marked %q, which means nothing; internal/doctest has the words that do", b.Kind)
		}
		for _, args := range doctest.Calls(d.t, d.page.Name, b.Text) {
			d.commands++
			if err := d.command(args); err != nil {
				d.t.Errorf("%s: %v", strings.Join(args, " "), err)
			}
		}
	case "yaml":
		file := filepath.Join(d.t.TempDir(), "settings.yaml")
		must.Succeed(d.t, os.WriteFile(file, []byte(b.Text), 0o600))
		if _, err := config.Load(config.Options{File: file}); err != nil {
			d.t.Error(err)
		}
	case "json":
		if b.Kind != doctest.Output && !json.Valid([]byte(b.Text)) {
			d.t.Errorf("no JSON: %s", b.Text)
		}
	case "python", "text": // session runs the one; the other are drawings, and output
	default:
		d.t.Errorf("a code block has the language %q: %.60s", b.Language, b.Text)
	}
}

// command holds that a command line of ours can be understood.
func (d *documented) command(args []string) error {
	switch name, args := args[0], args[1:]; name {
	case "make":
		d.make(args)
	case "conductor", "bin/conductor":
		return clitest.Understands(rootCommand(), args)
	case indexerName:
		cmd := indexerCommand()
		if err := cmd.ParseFlags(args); err != nil {
			return err
		}
		return cmd.ValidateArgs(cmd.Flags().Args())
	case "helm", "kubectl", "docker":
		return withoutCluster(name, args)
	}
	return nil
}

// clusterVerbs are the subcommands that a page may use of programs that need a cluster.
var clusterVerbs = map[string][]string{
	"helm": {"get", "history", "install", "lint", "list", "package", "rollback", "show", "status", "template", "test", "uninstall",
		"upgrade"},
	"kubectl": {"apply", "create", "delete", "describe", "exec", "get", "label", "logs", "port-forward", "rollout", "run", "scale", "wait"},
	"docker": {"build", "compose", "exec", "images", "inspect", "load", "login", "logs", "ps", "pull", "push", "rm", "run", "save", "stop",
		"tag"},
}

// withoutCluster holds what can be known of a command line without its cluster: the subcommand, and for helm
// the chart and the names of the values that it sets.
func withoutCluster(program string, args []string) error {
	verb := slices.IndexFunc(args, func(arg string) bool { return slices.Contains(clusterVerbs[program], arg) })
	if verb < 0 {
		return fmt.Errorf("no subcommand of %s that the test knows", program)
	}
	if program != "helm" || !slices.Contains([]string{"install", "upgrade", "template"}, args[verb]) {
		return nil
	}
	data, err := os.ReadFile(repository + "/deploy/helm/conductor/values.yaml")
	if err != nil {
		return err
	}
	var values map[string]any
	if err := yaml.Unmarshal(data, &values); err != nil {
		return err
	}
	chart := false
	for i, arg := range args {
		chart = chart || filepath.Clean(arg) == "deploy/helm/conductor" || strings.HasPrefix(arg, "oci://")
		if (arg == "--set" || arg == "--set-string") && i+1 < len(args) {
			for pair := range strings.SplitSeq(args[i+1], ",") {
				if name, _, _ := strings.Cut(pair, "="); !hasValue(values, strings.Split(name, ".")) {
					return fmt.Errorf("the chart has no value %s", name)
				}
			}
		}
	}
	if !chart {
		return errors.New("the chart is not deploy/helm/conductor")
	}
	return nil
}

// hasValue reports whether a path names one of the values of a chart. Below an empty value there may be anything.
func hasValue(values any, path []string) bool {
	m, ok := values.(map[string]any)
	if len(path) == 0 || values == nil || ok && len(m) == 0 {
		return true
	}
	if !ok {
		return false
	}
	name, _, indexed := strings.Cut(path[0], "[")
	below, known := m[name]
	return known && (indexed || hasValue(below, path[1:]))
}

// TestClusterCommands holds which mistakes in the commands of a page are found without a cluster.
func TestClusterCommands(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		words := strings.Fields(line)
		if err := withoutCluster(words[0], words[1:]); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	f("helm install conductor ./deploy/helm/conductor --set replicas=2", "")
	f("helm install conductor deploy/helm/conductor --set replicaCuont=2", "no value replicaCuont")
	f("helm install conductor deploy/helm/conductro", "the chart is not")
	f("helm instal conductor deploy/helm/conductor", "no subcommand")
	f("kubectl -n models get pods", "")
	f("kubectl aply -f x.yaml", "no subcommand")
	f("docker build -t conductor .", "")
}

func (d *documented) make(args []string) {
	for _, arg := range args {
		name, _, variable := strings.Cut(arg, "=")
		if !slices.Contains(d.targets, name) {
			d.t.Errorf("make %s: the Makefile has no such target or variable (variable: %t)", name, variable)
		}
	}
}

// makeTargets returns the targets and variables of the Makefile.
func makeTargets(t *testing.T) (names []string) {
	data, err := os.ReadFile(repository + "/Makefile")
	must.Succeed(t, err)
	for _, m := range regexp.MustCompile(`(?m)^([A-Za-z][A-Za-z0-9_-]*)(:| \??=)`).FindAllStringSubmatch(string(data), -1) {
		names = append(names, m[1])
	}
	return names
}

// pythonChecks are what has to hold after each of a page's blocks in Python.
var pythonChecks = map[string][]string{
	"routers.md": {
		"assert choose([101, 15] * 160, {'prefill-1': 12, 'prefill-2': 3}) == 'prefill-2'",
		"assert next(keys([([0] * 4, [number(b'\\x12' * 32)])])) == 4731370360480141969", // as in HASH-4
	},
	// The server, compared with itself.
	"migrate-mooncake.md": {"assert compare([{'model': 'deepseek', 'block_size': 16, 'token_ids': [1] * 32}], old=NEW) == []; assert " +
		"lengths(NEW, {'model': 'deepseek', 'block_size': 16, 'token_ids': [1] * 32})['prefill-1'] == 0"},
	"migrate-dynamo.md": {"assert compare([{'model_name': m, 'token_ids': [1] * 32} for m in ('deepseek', 'unknown')], old=NEW) == []"},
}

// python runs a block, where there is a Python with the modules that the block imports.
func (d *documented) python(text, check string) {
	python, err := exec.LookPath("python3")
	if err != nil {
		d.t.Log("no python3 to run the block with")
		return
	}
	switch output, err := exec.Command(python, "-c", text+"\n"+check+"\n").CombinedOutput(); {
	case err != nil && strings.Contains(string(output), "ModuleNotFoundError"):
		d.t.Logf("%s", output)
	case err != nil:
		d.t.Errorf("%v: %s", err, output)
	}
}

// TestHelpTexts requires that each HELP text of /metrics is a sentence of its own, without
// the words that have two meanings here.
func TestHelpTexts(t *testing.T) {
	_, metrics := get(serveProcess(t, "{}").url + "/metrics")
	seen := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# HELP (conductor_\S+) (.*)$`).FindAllStringSubmatch(metrics, -1) {
		name, help := m[1], m[2]
		if other := seen[help]; other != "" {
			t.Errorf("%s and %s have the same HELP text", name, other)
		}
		seen[help] = name
		if !regexp.MustCompile(`^[A-Z0-9].*\.$`).MatchString(help) || regexp.MustCompile(`\b(behind|nobody)\b`).MatchString(help) {
			t.Errorf("%s: HELP text %q", name, help)
		}
	}
	if len(seen) < 20 {
		t.Errorf("only %d HELP texts were found", len(seen))
	}
}
