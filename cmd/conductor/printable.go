package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"example.com/conductor/cmd/internal/cli"
)

// Names of engines, models and media may have any character. People look at metrics and the log in terminals and editors, where
// some of them would move the cursor or turn the text around.

// printableLabels is a Gatherer whose values of labels are cli.Printable. Backslashes are doubled, so that two names never become
// one: a scrape that has a series twice is lost.
type printableLabels struct{ prometheus.Gatherer }

// Gather implements prometheus.Gatherer.
func (p printableLabels) Gather() ([]*dto.MetricFamily, error) {
	all, err := p.Gatherer.Gather()
	for _, family := range all {
		for _, m := range family.Metric {
			for i := 0; i < len(m.Label); i++ {
				value := m.Label[i].GetValue()
				shown := cli.Printable(strings.ReplaceAll(value, `\`, `\\`))
				if shown == value {
					continue
				}
				m.Label = slices.Clone(m.Label) // the metric keeps its own
				m.Label[i] = &dto.LabelPair{Name: m.Label[i].Name, Value: &shown}
			}
		}
	}
	return all, err
}

// printableLines writes lines of JSON in which every character that is not printable is an escape of JSON, which means the same.
type printableLines struct{ io.Writer }

// Write takes a line.
func (p printableLines) Write(line []byte) (int, error) {
	if !slices.ContainsFunc(line, func(c byte) bool { return c >= 0x7f }) {
		return p.Writer.Write(line)
	}
	return len(line), cli.PrintRaw(p.Writer, line)
}

// printMessage and printField let a zerolog.ConsoleWriter print what it does not quote: messages, and lists.
func printMessage(line map[string]any) error {
	if text, ok := line[zerolog.MessageFieldName].(string); ok {
		line[zerolog.MessageFieldName] = cli.Printable(text)
	}
	return nil
}

func printField(value any) string { return cli.Printable(fmt.Sprintf("%s", value)) }
