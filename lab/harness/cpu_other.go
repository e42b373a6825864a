//go:build !linux

package harness

import (
	"syscall"
	"time"
)

// CPU returns the processor time of this process.
func CPU() time.Duration {
	cpu, _ := usage(syscall.RUSAGE_SELF)
	return cpu
}

// ThreadCPU returns the processor time of this process: this system does not tell that of a thread.
func ThreadCPU() time.Duration { return CPU() }

// cpuOf returns 0: this system does not tell the processor time of other processes.
func cpuOf(int) time.Duration { return 0 }
