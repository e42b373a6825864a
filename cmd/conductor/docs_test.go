package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/cmd/internal/clitest"
	"example.com/conductor/config"
	"example.com/conductor/internal/doctest"
	"example.com/conductor/internal/must"
)

const repository = "../.."

var (
	makeTarget = regexp.MustCompile("`make ([a-z][a-z0-9-]*)[^`]*`")
	endpoint   = regexp.MustCompile(`tcp://[^"*:]+:[0-9]+`)
)

// TestDocumentedCommands runs the code blocks of the documents: requests to the local
// ports go to a real server, other commands are parsed as the shell and conductor do.
func TestDocumentedCommands(t *testing.T) {
	// Reports need the engine that they are about.
	const engine = `{instance_id: prefill-1, dp_rank: 0, type: vLLM, modelname: deepseek, block_size: 16, endpoint: "tcp://127.0.0.1:1"}`
	d := &documented{t: t, server: serveProcess(t, "{sources: ["+engine+"]}"), targets: makeTargets(t), ports: 1}
	for _, page := range doctest.Pages(t, repository) {
		d.page = page.Name
		for _, m := range makeTarget.FindAllStringSubmatch(page.Text, -1) {
			d.make(m[1:2])
		}
		for _, block := range page.Blocks {
			d.run(block.Language, block.Text)
		}
	}
	if d.requests < 4 || d.commands < 15 {
		t.Errorf("only %d requests and %d commands were found", d.requests, d.commands)
	}
}

// documented runs the code blocks of one page after another.
type documented struct {
	t        *testing.T
	page     string
	server   *process
	targets  []string
	requests int // sent to the server
	commands int
	ports    int // endpoints made up so far
}

func (d *documented) run(language, text string) {
	d.t.Helper()
	switch language {
	case "sh":
		for _, args := range doctest.Calls(d.t, d.page, text) {
			d.commands++
			if err := d.command(args); err != nil {
				d.t.Errorf("%s: %s: %v", d.page, strings.Join(args, " "), err)
			}
		}
	case "yaml":
		file := filepath.Join(d.t.TempDir(), "settings.yaml")
		must.Succeed(d.t, os.WriteFile(file, []byte(text), 0o600))
		if _, err := loadConfig(config.Options{File: file}); err != nil {
			d.t.Errorf("%s: %v", d.page, err)
		}
	case "json":
		if !json.Valid([]byte(text)) {
			d.t.Errorf("%s: no JSON: %s", d.page, text)
		}
	case "python":
		d.python(text)
	case "text": // drawings, and output that is cut short
	default:
		d.t.Errorf("%s: a code block has the language %q: %.60s", d.page, language, text)
	}
}

func (d *documented) command(args []string) error {
	switch name, args := args[0], args[1:]; name {
	case "make":
		d.make(args)
	case "curl":
		return d.curl(args)
	case "conductor", "bin/conductor":
		return clitest.Understands(rootCommand(), args)
	case indexerName:
		cmd := indexerCommand()
		if err := cmd.ParseFlags(args); err != nil {
			return err
		}
		return cmd.ValidateArgs(cmd.Flags().Args())
	}
	return nil
}

func (d *documented) make(args []string) {
	for _, arg := range args {
		name, _, variable := strings.Cut(arg, "=")
		if !slices.Contains(d.targets, name) {
			d.t.Errorf("%s: make %s: the Makefile has no such target or variable (variable: %t)", d.page, name, variable)
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

// curl sends the request of a command line to the server, if it is for a port of ours.
func (d *documented) curl(args []string) error {
	method, body, target := http.MethodGet, "", ""
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-s":
		case arg == "--json" && i+1 < len(args):
			i++
			method, body = http.MethodPost, args[i]
		case arg == "-X" && i+1 < len(args):
			i++
			method = args[i]
		case !strings.HasPrefix(arg, "-") && target == "":
			target = arg
		default:
			return fmt.Errorf("the test does not know %q", arg)
		}
	}
	path, ours := strings.CutPrefix(target, "localhost:13333")
	if !ours {
		return nil
	}
	d.requests++
	body = endpoint.ReplaceAllStringFunc(body, func(string) string { d.ports++; return fmt.Sprintf("tcp://127.0.0.1:%d", d.ports) })
	request, err := http.NewRequest(method, d.server.url+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if answer, _ := io.ReadAll(response.Body); response.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", response.Status, answer)
	}
	return nil
}

// pythonChecks are what has to hold after a page's block in Python.
var pythonChecks = map[string]string{
	"README.md":  "assert choose([101, 15] * 160, {'prefill-1': 12, 'prefill-2': 3}) == 'prefill-2'",
	"routers.md": "assert next(keys([([0] * 4, [number(b'\\x12' * 32)])])) == 4731370360480141969", // as in HASH-4
	// The server, compared with itself.
	"migrate-mooncake.md": "assert compare([{'model': 'deepseek', 'block_size': 16, 'token_ids': [1] * 32}], old=NEW) == []; assert lengths(NEW, {'model': 'deepseek', 'block_size': 16, 'token_ids': [1] * 32})['prefill-1'] == 0",
	"migrate-dynamo.md":   "assert compare([{'model_name': m, 'token_ids': [1] * 32} for m in ('deepseek', 'unknown')], old=NEW) == []",
}

// python runs a block against the server, where there is a Python with the modules that the block imports.
func (d *documented) python(text string) {
	python, err := exec.LookPath("python3")
	if err != nil {
		d.t.Logf("%s: no python3 to run the block with", d.page)
		return
	}
	d.commands++
	text = strings.ReplaceAll(text, "http://localhost:13333", d.server.url)
	check := pythonChecks[d.page]
	if check == "" {
		d.t.Errorf("%s: nothing is known to hold after its block in Python", d.page)
	}
	switch output, err := exec.Command(python, "-c", text+"\n"+check+"\n").CombinedOutput(); {
	case err != nil && strings.Contains(string(output), "ModuleNotFoundError"):
		d.t.Logf("%s: %s", d.page, output)
	case err != nil:
		d.t.Errorf("%s: %v: %s", d.page, err, output)
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
