// Package memory keeps the server within the memory it may take, and says what it takes.
//
//	Account   resident memory by part: what the Conductor accounts for, the Go heap, the rest
//	Keep      limit of the Go runtime from the cgroup, headroom of its collector
//
// Resident memory is the sum of
//
//	heap objects    parts of the Conductor; heap_young since the last collection; heap_other
//	other spans     heap_free, stacks, runtime
//	outside         parts off the heap; binary, the file that is mapped
package memory

import (
	"os"
	"runtime/metrics"
	"strconv"
	"strings"

	"example.com/conductor/conductor/meter"
)

// Part is memory of one kind, in bytes.
type Part struct {
	Name  string
	Bytes int64
}

// Account returns the parts of resident memory. known is what the Conductor accounts for.
// The parts overlap nowhere. Their sum differs from the resident memory by pages that
// were never touched, or are shared by neighbours.
func Account(known []meter.MemoryPart) []Part {
	var parts []Part
	inHeap := int64(0)
	for _, p := range known {
		parts = append(parts, Part{p.Name, p.Bytes})
		inHeap += p.Bytes - p.OffHeap
	}
	r := readRuntime()
	rest := max(0, r.objects-inHeap)
	young := min(rest, max(0, r.objects-r.live))
	_, file := resident()
	return append(parts,
		Part{"heap_young", young},
		Part{"heap_other", rest - young},
		Part{"heap_free", r.free},
		Part{"stacks", r.stacks},
		Part{"runtime", r.metadata},
		Part{"binary", file},
	)
}

// Resident returns the resident memory of this process in bytes, 0 where the system does
// not tell.
func Resident() int64 {
	all, _ := resident()
	return all
}

// resident returns the resident memory of this process, and how much of it is of mapped
// files, in bytes; 0 where the system does not tell.
func resident() (all, files int64) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 3 {
		return 0, 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	shared, _ := strconv.ParseInt(fields[2], 10, 64)
	size := int64(os.Getpagesize())
	return pages * size, shared * size
}

// runtimeState is what the Go runtime says of its memory, in bytes.
type runtimeState struct {
	allocated int64  // since the start
	objects   int64  // in the heap, reachable or not
	live      int64  // of them, what the last collection found reachable
	free      int64  // spans and slots that hold no object, in memory
	stacks    int64  // of goroutines and threads
	metadata  int64  // of the runtime
	mapped    int64  // in memory at all
	cycles    uint64 // collections so far
}

var classes = []string{
	"/memory/classes/heap/objects:bytes", "/gc/heap/live:bytes", "/memory/classes/heap/free:bytes", "/memory/classes/heap/unused:bytes",
	"/memory/classes/heap/stacks:bytes", "/memory/classes/os-stacks:bytes", "/memory/classes/total:bytes",
	"/memory/classes/heap/released:bytes",
	"/gc/cycles/total:gc-cycles", "/gc/heap/allocs:bytes",
}

func readRuntime() runtimeState {
	samples := make([]metrics.Sample, len(classes))
	for i, name := range classes {
		samples[i].Name = name
	}
	metrics.Read(samples)
	v := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	r := runtimeState{objects: v(0), live: v(1), free: v(2) + v(3), stacks: v(4) + v(5), mapped: v(6) - v(7), cycles: uint64(v(8)),
		allocated: v(9)}
	r.metadata = r.mapped - r.objects - r.free - r.stacks
	return r
}
