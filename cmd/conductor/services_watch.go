package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
)

// watchEvery is the pause between two looks of --watch.
const watchEvery = 2 * time.Second

// sourceWatch prints sources again when they change, until its context ends.
type sourceWatch struct {
	read  func(context.Context) (*servicesAnswer, error)
	shown func(*client.Service) bool // which of them are to be shown
	table *sourceTable
	out   io.Writer
	errs  io.Writer

	known  map[string]client.Service // those that were shown at the last look
	silent bool                      // the server has not answered the last time
}

// follow prints a line for each source that comes, goes, or has another state or reason than those in first. A source that is to
// be shown no more has a last line.
func (w *sourceWatch) follow(ctx context.Context, first *servicesAnswer) {
	w.known = w.choose(first)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchEvery):
			w.look(ctx)
		}
	}
}

// look asks once.
func (w *sourceWatch) look(ctx context.Context) {
	answer, err := w.read(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		if !w.silent {
			cli.Fprintf(w.errs, "%s; still watching\n", err)
		}
		w.silent = true
		return
	case w.silent:
		fmt.Fprintln(w.errs, "the server answers again")
	}
	w.silent = false
	all := make(map[string]bool, len(answer.Services))
	var rows [][]string
	for i := range answer.Services {
		s := &answer.Services[i]
		old, known := w.known[sourceKey(s)]
		changed := old.State != s.State || whyText(&old) != whyText(s)
		if known && (changed || !w.shown(s)) || !known && w.shown(s) {
			rows = append(rows, sourceCells(s))
		}
		all[sourceKey(s)] = true
	}
	for key, old := range w.known {
		if !all[key] {
			old.State = "gone"
			rows = append(rows, sourceCells(&old))
		}
	}
	w.table.print(w.out, rows...)
	w.known = w.choose(answer)
}

// choose returns the sources of an answer that are to be shown.
func (w *sourceWatch) choose(answer *servicesAnswer) map[string]client.Service {
	chosen := make(map[string]client.Service)
	for i := range answer.Services {
		if s := &answer.Services[i]; w.shown(s) {
			chosen[sourceKey(s)] = *s
		}
	}
	return chosen
}

func sourceKey(s *client.Service) string {
	return fmt.Sprintf("%s|%s|%d", s.InstanceID, s.TenantID, s.DPRank)
}
