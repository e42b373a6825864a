package doctest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// What the word after the language of a block says about it.
const (
	Fails   = "fails"   // it runs, and some command ends with a status other than 0
	Example = "example" // it names hosts, folders or files that do not exist, or runs for ever
	Cluster = "cluster" // it needs Kubernetes, Docker or a service manager
	Engine  = "engine"  // it needs an inference engine
	Output  = "output"  // it is what the block in sh before it prints
)

// A Session runs the blocks of one page, one after another, in one bash.
type Session struct {
	Dir     string            // where the page's commands run: a folder like a checkout, see Checkout
	Env     []string          // of bash
	Ports   map[string]string // port in the page: port to use
	Runs    []string          // kinds of blocks in sh that run besides those of no kind
	Timeout time.Duration
}

// Checkout makes a folder that looks like a checkout of the repository at root, with an empty bin.
func Checkout(t *testing.T, root string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	root, err := filepath.Abs(root)
	must.Succeed(t, err)
	entries, err := os.ReadDir(root)
	must.Succeed(t, err)
	for _, e := range entries {
		if name := e.Name(); name != "bin" && name != ".git" {
			must.Succeed(t, os.Symlink(filepath.Join(root, name), filepath.Join(dir, name)))
		}
	}
	must.Succeed(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	return dir
}

// prelude replaces make by a dry run, and lets go build from the checkout itself, because go does not follow
// links, and keeps programs from running that change a cluster or this machine. Every command that ends with another
// status than 0, and is no condition, is written down.
const prelude = `set -u -o pipefail -o errtrace; exec 3>&1
make() { command make -n "$@" >/dev/null; }
go() { (out=$PWD && cd "$(readlink -f go.mod | xargs dirname)" && command go "${@/#bin\//$out/bin/}"); }
for name in helm kubectl docker kind crane systemctl sudo apt apt-get pip; do
  eval "function $name { echo '$name changes things outside the folder of the page: mark the block with cluster or example'; return 1; }"
done
trap 'printf "\n@@@ failed %d: %s\n" "$?" "$BASH_COMMAND" >&3' ERR
`

var (
	word    = regexp.MustCompile(`\b[0-9]+\b`)
	serves  = regexp.MustCompile(`(?m)^[^#\n]*conductor serve(?:[^\n]*\\\n)*[^\n]*[^&\n]&[ \t]*(?:#.*)?$`)
	begins  = regexp.MustCompile(`(?m)^@@@ block ([0-9]+)\n`)
	failure = regexp.MustCompile(`(?m)^@@@ failed .*\n`)
)

// Runnable reports whether a block runs in the session.
func (s *Session) Runnable(b Block) bool {
	return b.Language == "sh" && (b.Kind == "" || b.Kind == Fails || slices.Contains(s.Runs, b.Kind))
}

// Serves reports whether a block that runs starts a server.
func (s *Session) Serves(b Block) bool { return s.Runnable(b) && serves.MatchString(b.Text) }

// scratch is the folder for files that pages name. A session has Scratch() in its place.
const scratch = "/tmp/conductor-tutorial"

// Scratch returns the session's folder for files.
func (s *Session) Scratch() string { return filepath.Join(s.Dir, "scratch") }

// With returns a text with the ports and the folder of the session.
func (s *Session) With(text string) string {
	text = strings.ReplaceAll(text, scratch, s.Scratch())
	return word.ReplaceAllStringFunc(text, func(n string) string {
		if port := s.Ports[n]; port != "" {
			return port
		}
		return n
	})
}

// Run runs the blocks of a page that are runnable, and compares what they print with the outputs in the page.
// It returns how many ran.
func (s *Session) Run(t *testing.T, page Page) (ran int) {
	t.Helper()
	script := prelude
	for i, b := range page.Blocks {
		if s.Runnable(b) {
			ran++
			script += fmt.Sprintf("printf '\\n@@@ block %d\\n'\n%s", i, s.With(b.Text))
		}
	}
	if ran == 0 {
		return 0
	}
	printed := s.bash(t, page.Name, script)
	at := begins.FindAllStringSubmatchIndex(printed, -1)
	if len(at) != ran {
		t.Errorf("%s: bash began %d of %d blocks: %s", page.Name, len(at), ran, printed)
	}
	for i, m := range at {
		end := len(printed)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		n, err := strconv.Atoi(printed[m[2]:m[3]])
		must.Succeed(t, err)
		s.judge(t, page, n, printed[m[1]:end])
	}
	return ran
}

// judge compares what block n of a page printed with what the page says.
func (s *Session) judge(t *testing.T, page Page, n int, printed string) {
	t.Helper()
	b := page.Blocks[n]
	failed := failure.FindAllString(printed, -1)
	printed = strings.TrimSpace(strings.ReplaceAll(failure.ReplaceAllString(printed, ""), "\n\n\n", "\n\n"))
	switch {
	case b.Kind == Fails && len(failed) == 0:
		t.Errorf("%s: no command fails in a block that is marked so: %s%s", page.Name, b.Text, printed)
	case b.Kind != Fails && len(failed) > 0:
		t.Errorf("%s: %s%s\nin the block %s", page.Name, printed, strings.Join(failed, ""), b.Text)
	}
	if n+1 < len(page.Blocks) && page.Blocks[n+1].Kind == Output {
		want := s.With(page.Blocks[n+1].Text)
		t.Logf("%s: %s%s", page.Name, b.Text, printed)
		if !Alike(want, printed) {
			t.Errorf("%s: the block\n%sprints\n%s\nand the page says\n%s", page.Name, b.Text, printed, want)
		}
	}
}

// bash runs a script and what it starts in the background, and returns what they print.
func (s *Session) bash(t *testing.T, page, script string) string {
	t.Helper()
	output := filepath.Join(t.TempDir(), "output") // no pipe: what runs in the background would hold it open
	file, err := os.Create(output)
	must.Succeed(t, err)
	defer file.Close()
	ctx, cancel := context.WithTimeout(t.Context(), s.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.Dir, s.Env, file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left in the background
	text, readErr := os.ReadFile(output)
	must.Succeed(t, readErr)
	if ctx.Err() != nil {
		t.Errorf("%s: the commands did not end within %s: %s", page, s.Timeout, text)
	} else if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Errorf("%s: %v", page, err)
	}
	return string(text)
}

var (
	number = regexp.MustCompile(`(^|[^A-Za-z0-9_-])([0-9]+(?:[.:,-][0-9]+)*)`) // not those of names, such as engine-1
	space  = regexp.MustCompile(`\s+`)
)

// anyNumber matches every number but 0 alone.
const anyNumber = `(?:[1-9][0-9]*|0[0-9]+|[0-9]+[.:,-][0-9]+)(?:[.:,-][0-9]+)*`

// Alike reports whether a command printed what a page says, but for white space, numbers other than 0, and what
// stands for … in the page.
func Alike(said, printed string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(said)), `\.`, ".")
	pattern = number.ReplaceAllStringFunc(pattern, func(m string) string {
		if part := number.FindStringSubmatch(m); part[2] != "0" {
			return part[1] + "\x01"
		}
		return m
	})
	pattern = space.ReplaceAllString(strings.ReplaceAll(pattern, "…", "\x02"), "\x03")
	pattern = strings.NewReplacer("\x01", anyNumber, "\x02", `(?s:.*)`, "\x03", `\s+`).Replace(pattern)
	return regexp.MustCompile("^" + pattern + "$").MatchString(strings.TrimSpace(printed))
}
