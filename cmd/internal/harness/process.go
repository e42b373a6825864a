package harness

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is another process of a run. It takes orders on standard input until that
// ends, and answers in lines. Its standard error is this process's.
type Process struct {
	io.Writer // its standard input
	what      string
	cmd       *exec.Cmd
	input     io.Closer
	lines     *bufio.Reader
}

// Start starts a process; what names it in errors.
func Start(what string, cmd *exec.Cmd) (*Process, error) {
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the %s process: %w", what, err)
	}
	return &Process{in, what, cmd, in, bufio.NewReader(out)}, nil
}

// Line returns the next line that the process writes.
func (p *Process) Line() ([]byte, error) {
	line, err := p.lines.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("the %s process is gone: %w", p.what, err)
	}
	return line, nil
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Stop ends the orders and waits for the process.
func (p *Process) Stop() {
	p.input.Close()
	p.cmd.Wait()
}

// Usage returns the processor time of this process, and its peak of resident memory in
// bytes.
func Usage() (cpu time.Duration, peak int64) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic("BUG: the use of this process cannot be read: " + err.Error())
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), int64(u.Maxrss) << 10
}
