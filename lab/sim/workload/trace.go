package workload

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// segmentTokens is how many tokens one hash id of the Mooncake FAST'25 traces
// stands for.
const segmentTokens = 512

// outputs is where the identities of answers begin. A trace names only prompts,
// so an answer is never found again, and its identity must not be a hash id.
const outputs = 1 << 63

// Trace is a recorded workload: one JSON object a line with timestamp in milliseconds,
// input_length, output_length and hash_ids. Without a timestamp a request comes with the one
// before. The published traces have a timestamp every three seconds: requests of one timestamp
// are spread evenly until the next.
type Trace struct {
	name string
	rows []row
	at   []time.Duration // of each row, from the first on
	next int
}

type row struct {
	Stamp  float64  `json:"timestamp"` // ms
	Input  *int     `json:"input_length"`
	Output *int     `json:"output_length"`
	IDs    []uint64 `json:"hash_ids"`
}

// maxLine bounds a line of a trace. The longest of the published ones has 250
// hash ids, a few kilobytes.
const maxLine = 16 << 20

// maxStamp is the latest timestamp, a year in milliseconds.
const maxStamp = 366 * 24 * 3600 * 1e3

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
		if len(t.rows) > 0 {
			row.Stamp = max(row.Stamp, t.rows[len(t.rows)-1].Stamp)
		}
		t.rows = append(t.rows, row)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s, line %d: %w", name, n+1, err)
	}
	if len(t.rows) == 0 {
		return nil, fmt.Errorf("%s has no requests", name)
	}
	t.spread()
	return t, nil
}

// spread sets when each request comes.
func (t *Trace) spread() {
	t.at = make([]time.Duration, len(t.rows))
	for begin := 0; begin < len(t.rows); {
		end := begin + 1
		for end < len(t.rows) && t.rows[end].Stamp == t.rows[begin].Stamp {
			end++
		}
		until := t.rows[begin].Stamp
		if end < len(t.rows) {
			until = t.rows[end].Stamp
		}
		first, gap := t.rows[begin].Stamp-t.rows[0].Stamp, (until-t.rows[begin].Stamp)/float64(end-begin)
		for i := begin; i < end; i++ {
			t.at[i] = time.Duration((first + float64(i-begin)*gap) * float64(time.Millisecond))
		}
		begin = end
	}
}

func (r row) check() error {
	switch {
	case r.Input == nil:
		return fmt.Errorf("input_length is missing")
	case r.Output == nil:
		return fmt.Errorf("output_length is missing")
	case *r.Input < 1:
		return fmt.Errorf("input_length %d is no length of a prompt", *r.Input)
	case r.Stamp < 0 || r.Stamp > maxStamp:
		return fmt.Errorf("timestamp %g is not between 0 and %g", r.Stamp, maxStamp)
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
		At:     t.at[t.next],
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
