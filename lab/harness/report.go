package harness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// Report is the result of a run: fields for JSON, and a table for people.
type Report interface {
	Table(io.Writer)
}

// Print writes a report as one JSON object, or as its table.
func Print(w io.Writer, r Report, asJSON bool) error {
	if !asJSON {
		out := bufio.NewWriter(w) // keeps the first error
		r.Table(out)
		return out.Flush()
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Progress takes the next step of a run. A nil Progress shows nothing.
type Progress func(string)

// Say formats the next step.
func (p Progress) Say(format string, args ...any) {
	if p != nil {
		p(fmt.Sprintf(format, args...))
	}
}

// Machine is where a run took place.
type Machine struct {
	CPU   string    `json:"cpu"`
	Cores int       `json:"cores"`
	Go    string    `json:"go"`
	OS    string    `json:"os"`
	Load  []float64 `json:"load_average,omitempty"` // over 1, 5 and 15 minutes, before the run
}

// ThisMachine describes this one, as far as the system tells.
func ThisMachine() Machine {
	m := Machine{CPU: runtime.GOARCH, Cores: runtime.GOMAXPROCS(0), Go: runtime.Version(), OS: runtime.GOOS}
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	text, _ = os.ReadFile("/proc/loadavg")
	var l [3]float64
	if n, _ := fmt.Sscan(string(text), &l[0], &l[1], &l[2]); n == len(l) {
		m.Load = l[:]
	}
	return m
}
