package clocktest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// within is set in the process of Within.
const within = "CLOCKTEST_WITHIN"

// Within runs check in a process of its own, whose wall clock check can set: to be ahead of the machine's, or behind it. Call it
// once, at the top of a test. It skips the test on systems where clocks cannot be moved.
func Within(t *testing.T, check func(set func(ahead time.Duration))) {
	t.Helper()
	if !Works {
		t.Skip("clocks of processes cannot be moved on this system")
	}
	if os.Getenv(within) == t.Name() {
		answers := bufio.NewReader(os.Stdin)
		check(func(ahead time.Duration) {
			t.Helper()
			fmt.Printf("\n%s %d\n", within, ahead)
			_, err := answers.ReadString('\n')
			must.Succeed(t, err)
		})
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v=true", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), within+"="+t.Name())
	answers, err := cmd.StdinPipe()
	must.Succeed(t, err)
	says, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	clock := Start(t, cmd)
	var all strings.Builder
	for lines := bufio.NewScanner(says); lines.Scan(); {
		ahead, asks := strings.CutPrefix(lines.Text(), within+" ")
		if !asks {
			fmt.Fprintln(&all, lines.Text())
			continue
		}
		var d time.Duration
		_, err := fmt.Sscan(ahead, (*int64)(&d))
		must.Succeed(t, err)
		clock.Set(d)
		_, err = fmt.Fprintln(answers)
		must.Succeed(t, err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(all.String(), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, all.String())
	}
}
