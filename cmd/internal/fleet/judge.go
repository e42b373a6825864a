package fleet

import (
	"fmt"
	"strconv"
	"strings"

	"kvconductor/cmd/internal/fleet/truth"
)

// verdict is the comparison of one instance's row with the truth.
type verdict uint8

const (
	same    verdict = iota
	behind          // differs, and an event was still in flight
	partial         // differs, and the answer says itself that history is missing
	wrong           // differs, and has no excuse
)

// difference is one field of a row that is not what it should be.
type difference struct {
	field     string
	want, got int
	missing   bool // the server left the field out
	extra     bool // the field is about a rank the instance does not have
}

func (d difference) String() string {
	switch {
	case d.missing:
		return fmt.Sprintf("%s: want %d, missing", d.field, d.want)
	case d.extra:
		return fmt.Sprintf("%s: want none, got %d", d.field, d.got)
	}
	return fmt.Sprintf("%s: want %d, got %d", d.field, d.want, d.got)
}

// finding is one row that differs.
type finding struct {
	verdict     verdict
	request     int // number of the request, from 0
	prompt      int // its tokens
	instance    string
	family      string
	differences []difference
	note        string // what the server says of its own state
}

func (f finding) String() string {
	parts := make([]string, len(f.differences))
	for i, d := range f.differences {
		parts[i] = d.String()
	}
	request := fmt.Sprintf("request %d", f.request)
	if f.request == audited {
		request = "an earlier request"
	}
	return fmt.Sprintf("%s (%d tokens), %s (%s): %s [%s]",
		request, f.prompt, f.instance, f.family, strings.Join(parts, "; "), f.note)
}

// over reports whether some field is larger than the truth.
func (f finding) over() bool {
	for _, d := range f.differences {
		if d.extra || !d.missing && d.got > d.want {
			return true
		}
	}
	return false
}

// under reports whether some field is smaller than the truth or missing.
func (f finding) under() bool {
	for _, d := range f.differences {
		if d.missing || !d.extra && d.got < d.want {
			return true
		}
	}
	return false
}

// compare returns every field in which a row differs from the truth. A missing
// row is reported as one difference.
func compare(want truth.Row, got *row) []difference {
	if got == nil {
		return []difference{{field: "row", want: want.Longest, missing: true}}
	}
	var diffs []difference
	field := func(name string, want int, got *int) {
		if got == nil {
			diffs = append(diffs, difference{field: name, want: want, missing: true})
		} else if *got != want {
			diffs = append(diffs, difference{field: name, want: want, got: *got})
		}
	}
	field("longest_matched", want.Longest, got.Longest)
	field("GPU", want.GPU, got.GPU)
	field("CPU", want.CPU, got.CPU)
	field("DISK", want.Disk, got.Disk)
	for n, r := range want.Ranks {
		key := strconv.Itoa(n)
		if v, ok := got.DP[key]; ok {
			field("DP["+key+"]", r.Held, &v)
		} else {
			field("DP["+key+"]", r.Held, nil)
		}
		c := got.Ranks[key]
		if c == nil {
			c = &cascade{}
		}
		field("rank_matches["+key+"].gpu", r.GPU, c.GPU)
		field("rank_matches["+key+"].cpu", r.CPU, c.CPU)
		field("rank_matches["+key+"].disk", r.Disk, c.Disk)
	}
	for key, v := range got.DP {
		if !rankOf(key, len(want.Ranks)) {
			diffs = append(diffs, difference{field: "DP[" + key + "]", got: v, extra: true})
		}
	}
	for key, c := range got.Ranks {
		if !rankOf(key, len(want.Ranks)) {
			d := difference{field: "rank_matches[" + key + "]", extra: true}
			if c != nil && c.Disk != nil {
				d.got = *c.Disk
			}
			diffs = append(diffs, d)
		}
	}
	return diffs
}

func rankOf(key string, ranks int) bool {
	n, err := strconv.Atoi(key)
	return err == nil && n >= 0 && n < ranks && key == strconv.Itoa(n)
}

// settled reports whether the row describes the state after the newest batch of
// every rank of the instance, and whether some rank's history is incomplete.
// Fleet.mu is held.
func (in *instance) settled(got *row) (settled, incomplete bool, note string) {
	if got == nil {
		// A registered instance has a row before its first batch.
		return true, false, "no row"
	}
	settled = true
	notes := make([]string, 0, len(in.ranks))
	for _, r := range in.ranks {
		d, ok := got.Detail[strconv.Itoa(r.n)]
		newest := r.pub.LastSeq()
		at := int64(-1)
		if d.Watermark != nil {
			at = *d.Watermark
		}
		if lives := r.lives(d.State); !ok || at != newest || !lives {
			settled = false
		}
		if d.State == "partial" {
			incomplete = true
		}
		text := fmt.Sprintf("rank %d %s at %d of %d", r.n, orNone(d.State), at, newest)
		if d.Reason != "" {
			text += " (" + d.Reason + ")"
		}
		notes = append(notes, text)
	}
	return settled, incomplete, strings.Join(notes, ", ")
}

func orNone(s string) string {
	if s == "" {
		return "without detail"
	}
	return s
}
