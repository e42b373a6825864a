package bench

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

func TestPlotsOfARun(t *testing.T) {
	c := small()
	c.Scale, c.Duration = []int{1, 2}, 5*time.Millisecond
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	plots, err := Plots(c, r, []int{2, 5}, []int{1000, 4000})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"throughput-workers": 1, "latency-workers": 1, "bytes-blocks": 1, "scaling": 4}
	for i := range plots {
		var text strings.Builder
		if err := plots[i].SVG(&text); err != nil {
			t.Fatal(err)
		}
		if n := elements(t, text.String())["path"]; n != want[plots[i].Name] || n == 0 {
			t.Errorf("%s has %d lines, want %d", plots[i].Name, n, want[plots[i].Name])
		}
		for _, s := range plots[i].Series {
			if len(s.Points) != 2 {
				t.Errorf("%s, %s has the points %v", plots[i].Name, s.Name, s.Points)
			}
		}
		delete(want, plots[i].Name)
	}
	if len(want) > 0 {
		t.Errorf("not drawn: %v", want)
	}
}

func elements(t *testing.T, text string) map[string]int {
	t.Helper()
	n := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		if s, ok := token.(xml.StartElement); ok {
			n[s.Name.Local]++
		}
	}
}

func TestPlotRefuses(t *testing.T) {
	f := func(p Plot, want string) {
		t.Helper()
		if err := p.SVG(io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	f(Plot{Name: "a"}, "no points")
	f(Plot{Name: "a", Series: []Series{{"b", []Point{{1, 0}}}}}, "logarithm")
	f(Plot{Name: "a", Series: []Series{{"b", []Point{{math.NaN(), 1}}}}}, "logarithm")
}

func TestAxis(t *testing.T) {
	f := func(lo, hi float64, ticks ...float64) {
		t.Helper()
		a := newAxis([]float64{lo, hi}, 0, 100)
		got := a.ticks()
		if len(got) != len(ticks) {
			t.Fatalf("%g to %g: ticks %v, want %v", lo, hi, got, ticks)
		}
		for i := range got {
			if math.Abs(got[i]/ticks[i]-1) > 1e-9 {
				t.Errorf("%g to %g: ticks %v, want %v", lo, hi, got, ticks)
			}
		}
		if a.at(a.lo) != 0 || math.Abs(a.at(a.hi)-100) > 1e-9 || a.at(lo) < 0 || a.at(hi) > 100.001 {
			t.Errorf("%g to %g: ends at %g and %g", lo, hi, a.at(lo), a.at(hi))
		}
	}
	f(1, 10, 1, 2, 5, 10)
	f(16, 1000, 10, 20, 50, 100, 200, 500, 1000)
	f(3, 3, 2, 5)
	f(5, 5, 2, 5, 10)
	f(10_000, 10_000_000_000, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10)
}

func TestLabel(t *testing.T) {
	f := func(v float64, want string) {
		t.Helper()
		if got := label(v); got != want {
			t.Errorf("label(%g) = %q, want %q", v, got, want)
		}
	}
	f(0.5, "0.5")
	f(500, "500")
	f(1000, "1k")
	f(20_000_000, "20M")
	f(5e9, "5G")
}
