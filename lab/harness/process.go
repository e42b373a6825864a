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

// Start starts a process. Errors name it by what.
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

// Stop ends the orders and waits for the process.
func (p *Process) Stop() {
	p.input.Close()
	p.cmd.Wait()
}

// CPU returns the processor time of the process so far, 0 where the system does not tell.
func (p *Process) CPU() time.Duration { return cpuOf(p.cmd.Process.Pid) }

// Peak returns the peak of this process's resident memory in bytes.
func Peak() int64 {
	_, peak := usage(syscall.RUSAGE_SELF)
	return peak
}

func usage(who int) (cpu time.Duration, peak int64) {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		panic("BUG: the use of this process cannot be read: " + err.Error())
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), int64(u.Maxrss) << 10
}
