package query

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// cores returns one processor for the server and one for the client; ok is false
// where there are no two that this process may use.
func cores() (server, client int, ok bool) {
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil {
		return 0, 0, false
	}
	var found []int
	for i := 0; len(found) < 2 && i < 1024; i++ {
		if allowed.IsSet(i) {
			found = append(found, i)
		}
	}
	if len(found) < 2 {
		return 0, 0, false
	}
	return found[0], found[1], true
}

// pin keeps all threads of this process, and those they will start, on one processor.
func pin(core int) error {
	var set unix.CPUSet
	set.Set(core)
	return setAffinity(&set)
}

// setAffinity is of a thread, so it is repeated until no thread is new.
func setAffinity(set *unix.CPUSet) error {
	done := make(map[string]bool)
	for fresh := true; fresh; {
		fresh = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("cannot list threads: %w", err)
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || done[t.Name()] {
				continue
			}
			done[t.Name()], fresh = true, true
			if err := unix.SchedSetaffinity(id, set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("cannot choose a processor: %w", err)
			}
		}
	}
	return nil
}

// pinned is pin until release is called.
func pinned(core int) (release func(), err error) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, fmt.Errorf("cannot ask for the processors: %w", err)
	}
	return func() { setAffinity(&before) }, pin(core)
}
