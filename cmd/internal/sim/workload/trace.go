package workload

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// segmentTokens is how many tokens one hash id of the Mooncake FAST'25 traces
// stands for.
const segmentTokens = 512

// outputs is where the identities of answers begin. A trace names only prompts,
// so an answer is never found again, and its identity must not be a hash id.
const outputs = 1 << 63

// Trace is a recorded workload: one JSON object a line with timestamp,
// input_length, output_length and hash_ids. Timestamps are not used.
type Trace struct {
	name string
	rows []row
	next int
}

type row struct {
	Input  *int     `json:"input_length"`
	Output *int     `json:"output_length"`
	IDs    []uint64 `json:"hash_ids"`
}

// maxLine bounds a line of a trace. The longest of the published ones has 250
// hash ids, a few kilobytes.
const maxLine = 16 << 20

// OpenTrace reads a trace file completely; the first bad line is the error.
func OpenTrace(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open the trace: %w", err)
	}
	defer f.Close()
	return ReadTrace(filepath.Base(path), f)
}

// ReadTrace reads a trace; name is used in errors and reports.
func ReadTrace(name string, r io.Reader) (*Trace, error) {
	t := &Trace{name: name}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	n := 0
	for lines.Scan() {
		n++
		if len(lines.Bytes()) == 0 {
			continue
		}
		var row row
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		if err := row.check(); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		t.rows = append(t.rows, row)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s, line %d: %w", name, n+1, err)
	}
	if len(t.rows) == 0 {
		return nil, fmt.Errorf("%s has no requests", name)
	}
	return t, nil
}

func (r row) check() error {
	switch {
	case r.Input == nil:
		return fmt.Errorf("input_length is missing")
	case r.Output == nil:
		return fmt.Errorf("output_length is missing")
	case *r.Input < 1:
		return fmt.Errorf("input_length %d is no length of a prompt", *r.Input)
	case *r.Output < 0:
		return fmt.Errorf("output_length %d is negative", *r.Output)
	}
	if want := (*r.Input + segmentTokens - 1) / segmentTokens; len(r.IDs) != want {
		return fmt.Errorf("input_length %d needs %d hash_ids of %d tokens and has %d",
			*r.Input, want, segmentTokens, len(r.IDs))
	}
	for _, id := range r.IDs {
		if id >= outputs {
			return fmt.Errorf("hash id %d is larger than %d", id, uint64(outputs)-1)
		}
	}
	return nil
}

// Next returns the request of the next line.
func (t *Trace) Next() (Request, bool) {
	if t.next == len(t.rows) {
		return Request{}, false
	}
	r := t.rows[t.next]
	req := Request{
		Prompt: make([]Segment, len(r.IDs)),
		Output: Segment{ID: outputs + uint64(t.next), Len: *r.Output},
	}
	t.next++
	left := *r.Input
	for i, id := range r.IDs {
		req.Prompt[i] = Segment{ID: id, Len: min(left, segmentTokens)}
		left -= segmentTokens
	}
	return req, true
}

// Len returns the number of requests.
func (t *Trace) Len() int { return len(t.rows) }

// String returns the name of the file.
func (t *Trace) String() string { return "trace " + t.name }
