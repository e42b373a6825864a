package pick

import (
	"context"
	"fmt"
	"testing"

	"example.com/conductor/client"
)

// BenchmarkPick measures what a choice costs besides the answers of others: reading a prompt of 8,192 token ids, and weighing
// engines.
func BenchmarkPick(b *testing.B) {
	for _, engines := range []int{4, 64} {
		b.Run(fmt.Sprint(engines), func(b *testing.B) {
			var names []string
			answer := client.Candidates{ID: "x", Model: "m", BlockSize: block}
			for i := range engines {
				names = append(names, fmt.Sprint(i))
				row := client.Rank{GPU: 64 * i, CPU: 64 * i, Disk: 64 * i}
				answer.Rows = append(answer.Rows, client.Candidate{Row: client.Row{Instance: names[i], Ranks: []client.Rank{row}}})
			}
			g := newRig(b, Options{}, names...)
			g.conductor.failing = func(context.Context) (*client.Candidates, error) { return &answer, nil }
			r := request("r", tokensOf(1, 8192))
			r.Explain = false
			b.ReportAllocs()
			for b.Loop() {
				f, err := g.Pick(context.Background(), r)
				if err != nil {
					b.Fatal(err)
				}
				f.FirstToken()
				f.End()
				g.reporter.queue, g.reporter.tokens = nil, 0
			}
		})
	}
}
