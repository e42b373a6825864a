package harness

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Allowed returns the processors that this process may use, as taskset lists them, with
// the first and the last of them. It returns empty strings where the system does not tell.
func Allowed() (list, first, last string) {
	text, _ := os.ReadFile("/proc/self/status")
	_, list, _ = strings.Cut(string(text), "Cpus_allowed_list:")
	list, _, _ = strings.Cut(list, "\n")
	list = strings.TrimSpace(list)
	numbers := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '-' })
	if len(numbers) == 0 {
		return "", "", ""
	}
	return list, numbers[0], numbers[len(numbers)-1]
}

// Pin keeps all threads of this process on the processors of a list, by taskset. Threads
// that they start later stay there too.
func Pin(list string) error {
	out, err := exec.Command("taskset", "-a", "-c", "-p", list, strconv.Itoa(os.Getpid())).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot choose a processor: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
