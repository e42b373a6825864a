// Package doctest reads the documents of the repository for tests that hold them to the programs.
package doctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

var codeBlock = regexp.MustCompile("(?ms)^( *)```([a-z]*)(?: ([a-z]+))?\n(.*?)^ *```$")

// reads finds the files of the folder that a block reads by <file.
var reads = regexp.MustCompile(`(?:^|[^<])<([a-z][a-z0-9.-]*)`)

// Page is one document.
type Page struct {
	Name   string // of the file
	Path   string // of the file in the repository
	Text   string
	Blocks []Block
}

// Block is one code block.
type Block struct {
	Language string
	Kind     string // the word after the language, such as Example
	Text     string
}

// Pages returns the documents for users and contributors below the root of the repository.
func Pages(t *testing.T, root string) (all []Page) {
	t.Helper()
	names, err := filepath.Glob(root + "/docs/*.md")
	must.Succeed(t, err)
	for _, name := range append(names, root+"/README.md", root+"/ARCHITECTURE.md", root+"/BENCHMARKS.md") {
		data, err := os.ReadFile(name)
		must.Succeed(t, err)
		page := Page{Name: filepath.Base(name), Path: strings.TrimPrefix(name, root+"/"), Text: string(data)}
		page.Blocks = blocks(page.Text)
		all = append(all, page)
	}
	return all
}

// blocks returns the code blocks of a page, those of lists without their indentation.
func blocks(text string) (all []Block) {
	for _, m := range codeBlock.FindAllStringSubmatch(text, -1) {
		all = append(all, Block{m[2], m[3], strings.TrimPrefix(strings.ReplaceAll("\n"+m[4], "\n"+m[1], "\n"), "\n")})
	}
	return all
}

// Calls lets bash read a block in sh of a page, and returns the arguments of every command in it, its name
// the first. No command runs: functions of the same names write their arguments down.
func Calls(t *testing.T, page string, block string) (out [][]string) {
	t.Helper()
	const script = `set -e; PATH=/nowhere
note() { printf '%s\0' "$@" $'\1' >>"$CALLS"; } # at once: both ends of a pipe write
for name in make curl conductor bin/conductor conductor-lab bin/conductor-lab bin/router bin/conductor-picker bin/envoy/bin/{envoy,python} \
  examples/vllm/{install,start,stop}.sh kill wait
do eval "function $name { note $name \"\$@\"; }"; done
command_not_found_handle() { note "$@"; }
`
	dir := t.TempDir()
	for _, m := range reads.FindAllStringSubmatch(block, -1) {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, m[1]), nil, 0o600))
	}
	cmd := exec.Command("bash", "-c", script+block+"\nbuiltin wait")
	cmd.Dir = dir
	cmd.Env = []string{"CALLS=" + filepath.Join(dir, "calls")}
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", page, err, output)
		return nil
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Errorf("%s: a block without a command: %s", page, block)
	}
	for call := range strings.SplitSeq(strings.TrimSuffix(string(calls), "\x01\x00"), "\x01\x00") {
		out = append(out, strings.Split(strings.TrimSuffix(call, "\x00"), "\x00"))
	}
	return out
}
