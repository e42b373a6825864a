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
	read  func(context.Context) (*servicesAnswer, error) // those that are to be shown
	table *sourceTable
	out   io.Writer
	errs  io.Writer

	known  map[string]client.Service
	silent bool // the server has not answered the last time
}

// follow prints a line for each source that comes, goes, or has another state, reason or finding than those in first.
func (w *sourceWatch) follow(ctx context.Context, first *servicesAnswer) {
	w.known = sourcesByKey(first)
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
	now := sourcesByKey(answer)
	var rows [][]string
	for i := range answer.Services {
		s := &answer.Services[i]
		old, known := w.known[sourceKey(s)]
		if !known || old.State != s.State || whyText(&old) != whyText(s) {
			rows = append(rows, sourceCells(s))
		}
	}
	for key, old := range w.known {
		if _, still := now[key]; !still {
			old.State = "gone"
			rows = append(rows, sourceCells(&old))
		}
	}
	w.table.print(w.out, rows...)
	w.known = now
}

func sourceKey(s *client.Service) string {
	return fmt.Sprintf("%s|%s|%d", s.InstanceID, s.TenantID, s.DPRank)
}

func sourcesByKey(answer *servicesAnswer) map[string]client.Service {
	all := make(map[string]client.Service, len(answer.Services))
	for _, s := range answer.Services {
		all[sourceKey(&s)] = s
	}
	return all
}
