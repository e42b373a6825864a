package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/internal/must"
)

// terminal opens a terminal of its own.
func terminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		must.Skip(t, "no terminals: "+err.Error())
	}
	t.Cleanup(func() { master.Close() })
	must.Succeed(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must.Succeed(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must.Succeed(t, err)
	t.Cleanup(func() { slave.Close() })
	return slave
}

// TestColours holds that a terminal alone has colours, and none with NO_COLOR.
func TestColours(t *testing.T) {
	tty := terminal(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	must.Succeed(t, err)
	defer file.Close()
	f := func(w io.Writer, noColour, kind string, want bool) {
		t.Helper()
		t.Setenv("NO_COLOR", noColour)
		t.Setenv("TERM", kind)
		if got := cli.Coloured(w); got != want {
			t.Errorf("%T with NO_COLOR=%q, TERM=%s: %t", w, noColour, kind, got)
		}
	}
	f(tty, "", "xterm", true)
	f(tty, "1", "xterm", false)
	f(tty, "", "dumb", false)
	f(file, "", "xterm", false)
	f(new(bytes.Buffer), "", "xterm", false)
}
