// Package clocktest starts processes whose wall clock a test moves.
//
// Go programs and libc read the clock in the vDSO, the code that the kernel puts into each process.
// Start writes other code there before the process runs its first instruction:
//
//	process -- read the clock --> vDSO -- system call --> kernel
//	                               + seconds <-- Clock.Set -- test
//
// Within does the same for a part of a test, in a process of its own.
//
// All reads of the wall clock of the process are moved, of whatever library. Its monotonic clock is
// not, as on a machine whose clock is set. Other processes are not disturbed.
package clocktest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// Clock is the wall clock of a process.
type Clock struct {
	t      testing.TB
	memory *os.File
	ahead  int64 // address of the seconds in the process
}

// Set moves the clock ahead of the machine's, or behind it, by whole seconds.
func (c *Clock) Set(ahead time.Duration) {
	c.t.Helper()
	_, err := c.memory.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead/time.Second)), c.ahead)
	must.Succeed(c.t, err)
}

// replace writes the code of a Clock into a process that is stopped.
func replace(t testing.TB, pid int) (*Clock, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var from, to int64
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "[vdso]") {
			fmt.Sscanf(line, "%x-%x", &from, &to)
		}
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { memory.Close() })
	image := make([]byte, to-from)
	if _, err := memory.ReadAt(image, from); err != nil {
		return nil, err
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	for _, s := range symbols {
		if s.Name != "__vdso_clock_gettime" {
			continue
		}
		at := from + int64(s.Value)
		ahead := (at + int64(len(code)) + 7) &^ 7 // one aligned word, which a write changes at once
		if ahead+8 > at+int64(s.Size) {
			return nil, fmt.Errorf("the clock of the vDSO has %d bytes, its replacement has more", s.Size)
		}
		text := bytes.Clone(code)
		binary.LittleEndian.PutUint64(text[operand:], uint64(ahead))
		_, err := memory.WriteAt(append(text, make([]byte, ahead+8-at-int64(len(code)))...), at)
		return &Clock{t: t, memory: memory, ahead: ahead}, err
	}
	return nil, errors.New("the vDSO has no clock")
}
