package doctest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// TestAlike holds what may differ between a page and what its commands print.
func TestAlike(t *testing.T) {
	f := func(said, printed string, want bool) {
		t.Helper()
		if got := Alike(said, printed); got != want {
			t.Errorf("%q and %q are alike: %t", said, printed, got)
		}
	}
	f("a  2   b\nc 1\n", "a 17 b\nc 3", true)
	f(`"cached_tokens":0`, `"cached_tokens":320`, false)
	f(`"cached_tokens":320`, `"cached_tokens":0`, false)
	f("X-Routed-To: engine-1/0", "X-Routed-To: engine-2/0", false)
	f("a 0 0 0:0 b", "a 0 0 0:7 b", true)
	f("a 0", "b 0", false)
	f("a 0", "a", false)
	f("took 0.048 s at 10:02:03", "took 1 s at 11:02:04", true)
	f("{\"tokens\":[1,2,3…]}", "{\"tokens\":[1,2,3,4,5]}", true)
	f("first\n…\nlast", "first\nx\ny\nlast", true)
	f("first (x|y) [z] …", "first (x|y) [z] and so on", true)
	f("GPU 0-5.", "GPU 0-12.", true)
	f("state synced", "state stale", false)
}

// TestSession holds that blocks of a page run in order in one shell, and which of them fail the test: the test
// runs itself, with a page that is wrong.
func TestSession(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		must.Skip(t, "no bash")
	}
	if text := os.Getenv("DOCTEST_PAGE"); text != "" {
		page := Page{Name: "page.md", Blocks: blocks(text)}
		s := &Session{Dir: t.TempDir(), Env: os.Environ(), Ports: map[string]string{"13333": "77"}, Timeout: 10 * time.Minute}
		if ran := s.Run(t, page); ran != strings.Count(text, "```sh\n")+strings.Count(text, "```sh fails\n") {
			t.Errorf("%d blocks ran", ran)
		}
		return
	}
	f := func(page, want string) {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run=^TestSession$")
		cmd.Env = append(os.Environ(), "DOCTEST_PAGE="+strings.ReplaceAll(page, "~~~", "```"))
		output, err := cmd.CombinedOutput()
		if (err == nil) != (want == "") || !strings.Contains(string(output), want) {
			t.Errorf("%s\n%v: %s", page, err, output)
		}
	}
	f("~~~sh\nx=1\n~~~\n~~~sh\necho port 13333, x $x\n~~~\n~~~text output\nport 77, x 5\n~~~\n", "")
	f("   ~~~sh\n   echo a\n   ~~~\n   ~~~text output\n   a\n   ~~~\n", "")
	f("~~~sh\necho a\n~~~\n~~~text output\nb\n~~~\n", "and the page says")
	f("~~~sh\nfalse\necho a\n~~~\n", "failed 1: false")
	f("~~~sh fails\nfalse\n~~~\n~~~text\na picture\n~~~\n", "")
	f("~~~sh fails\ntrue\n~~~\n", "no command fails")
	f("~~~sh\nexit 0\n~~~\n~~~sh\ntrue\n~~~\n", "bash began 1 of 2 blocks")
	f("~~~sh\nkubectl delete namespace default\n~~~\n", "mark the block")
	f("~~~sh example\nfalse\n~~~\n~~~sh\nsleep 1000 &\n~~~\n", "")
}
