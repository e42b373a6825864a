package clocktest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// TestMain is also the process whose clock is moved: for each line it prints the time, and how much
// has passed since the line before.
func TestMain(m *testing.M) {
	if os.Getenv("TELL_THE_TIME") != "1" {
		os.Exit(m.Run())
	}
	began := time.Now()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		now := time.Now()
		fmt.Println(now.UnixNano(), int64(now.Sub(began)))
	}
}

func TestSetMovesWallClockAlone(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{"TELL_THE_TIME=1"}
	in, err := cmd.StdinPipe()
	must.Succeed(t, err)
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	began := time.Now()
	clock := Start(t, cmd)
	var passed time.Duration // until the answer before, by the process
	for _, ahead := range []time.Duration{0, 10 * time.Second, -10 * time.Second, 24 * time.Hour, 0} {
		clock.Set(ahead)
		before := time.Now()
		fmt.Fprintln(in)
		var wall, since int64
		if _, err := fmt.Fscanln(out, &wall, &since); err != nil {
			t.Fatal(err)
		}
		after := time.Now()
		if at := time.Unix(0, wall).Add(-ahead); at.Before(before.Round(0)) || at.After(after.Round(0)) {
			t.Errorf("ahead by %v: the process says %v, it was between %v and %v", ahead, at, before, after)
		}
		if d := time.Duration(since); d < passed || d > after.Sub(began) {
			t.Errorf("ahead by %v: the process says that %v have passed, and said %v before", ahead, d, passed)
		}
		passed = time.Duration(since)
	}
}
