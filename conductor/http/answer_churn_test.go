package http

import (
	"fmt"
	"sync"
	"testing"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

// TestAnswersWhileInstancesComeAndGo requires that an answer is of one moment while it is lent:
// its text, prepared bytes included, equals its rows, and instances that hold something are in
// it, whichever others come and go.
func TestAnswersWhileInstancesComeAndGo(t *testing.T) {
	f := newFleet(t)
	prompt := promptOf(5, 2)
	f.store(f.source("m", 0, registration.TypeVLLM), "gpu", prompt, 2)
	only := "m"
	queries := []match.Query{{}, {Top: 2}, {MinMatched: 1}, {Lora: "x"}, {Detail: true}, {Instance: &only}}
	var changing sync.WaitGroup
	changed := make(chan struct{})
	for k := range 2 {
		changing.Go(func() {
			for i := range 150 {
				name := fmt.Sprintf("%s-%d-%d", []string{"a", "z"}[i%2], k, i%5)
				var regs []registration.Registration
				for rank := range 1 + i%3 {
					reg := registration.Registration{
						Endpoint: fmt.Sprintf("ipc:///nowhere/%s-%d", name, rank), Type: registration.TypeVLLM, Model: "m",
						BlockSize: testBlock,
						Instance:  name, Rank: rank, Lora: []string{"", "x"}[i/3%2],
					}
					must.Report(t, f.c.Register(reg, ingest.RegisterOptions{}))
					regs = append(regs, reg)
				}
				for _, reg := range regs {
					if _, err := f.c.Unregister(reg.Key()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	go func() {
		changing.Wait()
		close(changed)
	}()
	for n := 0; ; n++ {
		select {
		case <-changed:
			return
		default:
		}
		q := queries[n%len(queries)]
		q.Model, q.BlockSize, q.Tokens = "m", testBlock, prompt
		f.c.Answer(&q, func(ans *match.Answer) {
			if got, want := string(appendAnswer(nil, ans)), plainAnswer(ans); got != want {
				t.Errorf("%s is written, want %s", got, want)
			}
			for i := range ans.Rows {
				if row := &ans.Rows[i]; (row.Instance == "m") != (row.Longest == 2) {
					t.Errorf("%+v", row)
				}
			}
			if q.Lora == "" && len(ans.Rows) == 0 {
				t.Errorf("no row for %+v", q)
			}
		})
	}
}
