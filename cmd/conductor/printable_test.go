package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// unprintable are names with characters that act on a terminal or an editor.
var unprintable = []string{"a\x1b[31mred", "b\nc", "d\x00", "e\r\t", "f\u009b31m", "g\u0085", "h\u202er", "i\u2028", "j\x7f", "k\u200b",
	"l\U000e0041", "m\ufffe"}

// unprintableIn returns the first character of a text that is not printable, but for the ends of lines.
func unprintableIn(text string) string {
	i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) })
	if i < 0 {
		return ""
	}
	return text[i:min(len(text), i+20)]
}

// TestLabelsArePrintable holds how names are in /metrics, the second time as the first.
func TestLabelsArePrintable(t *testing.T) {
	registry := prometheus.NewRegistry()
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "g", Help: "h"}, []string{"instance", "model"})
	registry.MustRegister(gauge)
	names := append(slices.Clone(unprintable), `back\slash "quoted" ü`, `a\x1b[31mred`)
	for i, name := range names {
		gauge.WithLabelValues(name, name).Set(float64(i))
	}
	for range 2 {
		all, err := printableLabels{registry}.Gather()
		must.Succeed(t, err)
		var text bytes.Buffer
		for _, family := range all {
			_, err := expfmt.MetricFamilyToText(&text, family)
			must.Succeed(t, err)
		}
		if c := unprintableIn(text.String()); c != "" {
			t.Errorf("%q is in the text", c)
		}
		series := slices.Sorted(strings.Lines(text.String()))
		for i := range series {
			name, _, _ := strings.Cut(series[i], "} ")
			series[i] = name
		}
		if n := len(slices.Compact(series)) - 2; n != len(names) { // two lines are about the metric
			t.Errorf("%d series of %d names", n, len(names))
		}
		for _, want := range []string{`instance="a\\x1b[31mred",model="a\\x1b[31mred"`, `instance="b\\nc"`, `instance="h\\u202er"`,
			`instance="back\\\\slash \"quoted\" ü"`} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("no %s in %s", want, text.String())
			}
		}
	}
	if all, err := registry.Gather(); err != nil || all[0].Metric[0].Label[0].GetValue() != unprintable[0] {
		t.Errorf("the metric itself has changed: %v %v", all, err)
	}
}

// TestLogLinesArePrintable holds that names are in the log in printable characters, and mean what they are.
func TestLogLinesArePrintable(t *testing.T) {
	for _, format := range []string{"json", "console"} {
		var out bytes.Buffer
		log, flush := newLogger(config.Log{Level: "info", Format: format}, &out)
		for _, name := range unprintable {
			log.Info().Str("name", name).Strs("names", []string{name}).Msg("about " + name)
		}
		flush()
		if c := unprintableIn(out.String()); c != "" {
			t.Errorf("%s: %q is in the log", format, c)
		}
		if format == "console" && !strings.Contains(out.String(), `about h\u202er name="h\u202er" names=["h\u202er"]`) {
			t.Errorf("the line of a name is not there: %s", out.String())
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != len(unprintable) {
			t.Fatalf("%s: %d lines: %s", format, len(lines), out.String())
		}
		for i, line := range lines {
			var told struct{ Name, Message string }
			if format == "json" && (json.Unmarshal([]byte(line), &told) != nil || told.Name != unprintable[i] ||
				told.Message != "about "+unprintable[i]) {
				t.Errorf("%q reads %+v", line, told)
			}
		}
	}
}
