package harness

import (
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the processor time of this process. Unlike getrusage, the clock has what has passed since the last tick.
func CPU() time.Duration { return clockOf(unix.CLOCK_PROCESS_CPUTIME_ID) }

// ThreadCPU returns the processor time of the calling thread.
func ThreadCPU() time.Duration { return clockOf(unix.CLOCK_THREAD_CPUTIME_ID) }

func clockOf(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("BUG: the processor time of this process cannot be read: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// cpuOf returns the processor time of a process so far in nanoseconds, 0 for one that is gone.
// /proc/PID/stat tells it in steps of 10 ms, which is more than a short measurement takes.
func cpuOf(pid int) time.Duration {
	const ofProcess = 2 // CPUCLOCK_SCHED of the kernel: time that the scheduler has counted
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|ofProcess), &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
