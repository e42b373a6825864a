package index

import (
	"bytes"
	"encoding/csv"
	"strconv"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// TestPlotsOfARun holds that each plot has its lines, and each line a point a run.
func TestPlotsOfARun(t *testing.T) {
	c := small()
	c.Scale, c.Duration = oneAndTwoCores(), 5*time.Millisecond
	r, err := Run(c)
	must.Succeed(t, err)
	plots, err := Plots(c, r, []int{2, 5}, []int{1000, 4000})
	must.Succeed(t, err)
	want := map[string]int{"throughput-workers": 1, "latency-workers": 1, "bytes-blocks": 1, "scaling": 4}
	for i := range plots {
		name := plots[i].Name
		text := plots[i].CSV()
		rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
		if err != nil || len(rows) == 0 || rows[0][0] != "line" {
			t.Fatalf("%s: %q, %v", name, text, err)
		}
		points := map[string]int{}
		for _, row := range rows[1:] {
			points[row[0]]++
			for _, cell := range row[1:] {
				if v, err := strconv.ParseFloat(cell, 64); err != nil || v <= 0 {
					t.Errorf("%s has the point %q, which has no logarithm", name, row)
				}
			}
		}
		if len(points) != want[name] || len(points) == 0 {
			t.Errorf("%s has the lines %v, want %d", name, points, want[name])
		}
		for line, n := range points {
			if n != 2 && (name != "scaling" || n != len(c.Scale)) {
				t.Errorf("%s, %s has %d points", name, line, n)
			}
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not written: %v", want)
	}
}
