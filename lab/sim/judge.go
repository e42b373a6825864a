package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"example.com/conductor/lab/sim/truth"
)

// verdict is the comparison of one instance's row with the truth.
type verdict uint8

const (
	same    verdict = iota
	behind          // differs, and an event was still in flight
	partial         // differs, and the answer says itself that history is missing
	wrong           // differs, and has no excuse
)

// difference is one wrong field of a row. The server left the field out if got is nil. The
// instance lacks the rank of the field if want is nil.
type difference struct {
	field     string
	want, got *int
}

func (d difference) String() string {
	text := func(v *int, absent string) string {
		if v == nil {
			return absent
		}
		return strconv.Itoa(*v)
	}
	if d.got == nil {
		return fmt.Sprintf("%s: want %s, missing", d.field, text(d.want, "none"))
	}
	return fmt.Sprintf("%s: want %s, got %d", d.field, text(d.want, "none"), *d.got)
}

// finding is one row that differs.
type finding struct {
	verdict     verdict
	request     int // number of the request, from 0
	prompt      int // its tokens
	instance    string
	family      string
	differences []difference
	note        string // the server's statement about its own state
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
	return slices.ContainsFunc(f.differences, func(d difference) bool {
		return d.got != nil && (d.want == nil || *d.got > *d.want)
	})
}

// under reports whether some field is smaller than the truth or missing.
func (f finding) under() bool {
	return slices.ContainsFunc(f.differences, func(d difference) bool {
		return d.want != nil && (d.got == nil || *d.got < *d.want)
	})
}

// compare returns every field in which a row differs from the truth. A missing
// row is reported as one difference.
func compare(want truth.Row, got *row) []difference {
	if got == nil {
		return []difference{{"row", &want.Longest, nil}}
	}
	var diffs []difference
	field := func(name string, want int, got *int) {
		if got == nil || *got != want {
			diffs = append(diffs, difference{name, &want, got})
		}
	}
	field("longest_matched", want.Longest, got.Longest)
	field("GPU", want.GPU, got.GPU)
	field("CPU", want.CPU, got.CPU)
	field("DISK", want.Disk, got.Disk)
	for n, r := range want.Ranks {
		key := strconv.Itoa(n)
		field("DP["+key+"]", r.Held, got.DP[key])
		c := cmp.Or(got.Ranks[key], &cascade{})
		field("rank_matches["+key+"].gpu", r.GPU, c.GPU)
		field("rank_matches["+key+"].cpu", r.CPU, c.CPU)
		field("rank_matches["+key+"].disk", r.Disk, c.Disk)
	}
	for key, v := range got.DP {
		if !rankOf(key, len(want.Ranks)) {
			diffs = append(diffs, difference{"DP[" + key + "]", nil, cmp.Or(v, new(int))})
		}
	}
	for key, c := range got.Ranks {
		if !rankOf(key, len(want.Ranks)) {
			diffs = append(diffs, difference{"rank_matches[" + key + "]", nil, cmp.Or(cmp.Or(c, &cascade{}).Disk, new(int))})
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
		at := seqOf(d.Watermark)
		if lives := r.lives(d.State); !ok || at != newest || !lives {
			settled = false
		}
		if d.State == "partial" {
			incomplete = true
		}
		notes = append(notes, fmt.Sprintf("rank %d %s at %d of %d%s", r.n, cmp.Or(d.State, "without detail"), at, newest,
			because(d.Reason)))
	}
	return settled, incomplete, strings.Join(notes, ", ")
}
