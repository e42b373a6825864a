package bench

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// threadTime returns the CPU time of this thread, 0 where the system does not tell.
func threadTime() time.Duration {
	const rusageThread = 1
	var u syscall.Rusage
	if syscall.Getrusage(rusageThread, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resetPeakRSS lets the peak of the resident memory begin again.
func resetPeakRSS() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) } // else it is the peak of the process

// residentBytes returns the resident memory of the process and its peak, zeros where the
// system does not tell.
func residentBytes() (now, peak int64) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var kb int64
		key, value, _ := strings.Cut(lines.Text(), ":")
		if _, err := fmt.Sscan(value, &kb); err != nil {
			continue
		}
		switch key {
		case "VmRSS":
			now = kb << 10
		case "VmHWM":
			peak = kb << 10
		}
	}
	return now, peak
}
