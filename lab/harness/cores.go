package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// Allowed returns the processors that this process may use, as taskset lists them, with
// the first and the last of them. It returns empty strings where the system does not tell.
func Allowed() (list, first, last string) {
	list = status("self", "Cpus_allowed_list")
	numbers := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '-' })
	if len(numbers) == 0 {
		return "", "", ""
	}
	return list, numbers[0], numbers[len(numbers)-1]
}

// Cores returns the processors that this process may use, in ascending order, nil where the system does not tell.
func Cores() (cores []string) {
	all, _, _ := Allowed()
	for part := range strings.SplitSeq(all, ",") {
		from, to, isRange := strings.Cut(part, "-")
		low, err := strconv.Atoi(from)
		high := low
		if isRange && err == nil {
			high, err = strconv.Atoi(to)
		}
		if err != nil {
			return nil
		}
		for i := low; i <= high; i++ {
			cores = append(cores, strconv.Itoa(i))
		}
	}
	return cores
}

// SplitCores returns the first n processors that this process may use, as taskset lists them, and the others, "" for none.
// It returns an error if there are fewer, or if the system does not tell.
func SplitCores(n int) (first, rest string, err error) {
	cores := Cores()
	switch {
	case cores == nil:
		return "", "", fmt.Errorf("cannot choose %d cores: the system does not tell which this process may use", n)
	case len(cores) < n:
		return "", "", fmt.Errorf("cannot choose %d cores: this process may use %s", n, strings.Join(cores, ","))
	}
	return strings.Join(cores[:n], ","), strings.Join(cores[n:], ","), nil
}

// OnCores calls f while this process has n cores and as many processors of the runtime. Processes that f starts are
// kept on the same cores.
func OnCores(n int, f func() error) error {
	list, _, err := SplitCores(n)
	if err != nil {
		return err
	}
	all, _, _ := Allowed()
	if err := Pin(list); err != nil {
		return err
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
	return errors.Join(f(), Pin(all))
}

// status returns a field of /proc/PID/status, "" if it does not tell.
func status(pid, field string) string {
	text, _ := os.ReadFile("/proc/" + pid + "/status")
	_, value, _ := strings.Cut(string(text), "\n"+field+":")
	value, _, _ = strings.Cut(value, "\n")
	return strings.TrimSpace(value)
}

// Resident returns the resident memory of this process in bytes, and its peak since
// ResetPeak. It returns zeros where the system does not tell.
func Resident() (now, peak int64) {
	fmt.Sscan(status("self", "VmRSS"), &now)
	fmt.Sscan(status("self", "VmHWM"), &peak)
	return now << 10, peak << 10
}

// ResetPeak lets the peak of the resident memory begin again, where the system allows it.
func ResetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// Pin keeps all threads of this process on the processors of a list, by taskset. Threads
// that they start later stay there too.
func Pin(list string) error { return pin(os.Getpid(), list) }

func pin(pid int, list string) error {
	out, err := exec.Command("taskset", "-a", "-c", "-p", list, strconv.Itoa(pid)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot choose a processor: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
