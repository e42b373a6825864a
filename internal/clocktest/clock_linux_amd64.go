package clocktest

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"example.com/conductor/internal/must"
)

// Works reports whether Start does, on this system.
const Works = true

// code takes the place of clock_gettime(clock edi, *timespec rsi). Its operand is the address of the
// seconds by which the wall clock, clock 0, is ahead.
var code = []byte{
	0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, 228 (clock_gettime)
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi
	0x75, 0x10, // jnz to the end
	0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, // mov rcx, operand
	0x48, 0x8b, 0x09, // mov rcx, [rcx]
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
}

// operand is where the address is in code.
const operand = 13

// Start starts a command, whose clock is the machine's until it is set.
func Start(t testing.TB, cmd *exec.Cmd) *Clock {
	t.Helper()
	runtime.LockOSThread() // the thread that starts a traced process lets it go
	defer runtime.UnlockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Ptrace = true // the process stops before its first instruction
	must.Succeed(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	pid := cmd.Process.Pid
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("%s does not stop at its start: %v, status %#x", cmd.Path, err, status)
	}
	clock, err := replace(t, pid)
	if err != nil {
		must.Succeed(t, fmt.Errorf("clock of %s: %w", cmd.Path, err))
	}
	must.Succeed(t, syscall.PtraceDetach(pid))
	return clock
}
