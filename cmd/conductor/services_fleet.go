package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/scope"
)

// fleetAnswer is what the table of a fleet needs.
type fleetAnswer struct {
	Complete bool
	Tenants  scope.Tenants
	Services []fleetSource
}

// fleetSource is a source of several replicas.
type fleetSource struct {
	InstanceID, TenantID, Type, ModelName, Registered string
	DPRank, BlockSize                                 int
	Replicas                                          []struct{ ID, URL, State string }
}

// sourcesOfFleet is the layout of the sources of all replicas. The last column has room for one replica at least.
var sourcesOfFleet = &sourceLayout{
	columns:     []string{"INSTANCE", "TENANT", "RANK", "TYPE", "MODEL", "BLOCK", "REGISTERED BY", "REPLICAS"},
	dispensable: []string{"BLOCK", "TYPE", "REGISTERED BY", "TENANT", "RANK", "MODEL"},
	least:       36,
}

// cells returns the cells of a source in sourcesOfFleet.
func (s *fleetSource) cells() []string {
	rank := fmt.Sprint(s.DPRank)
	if s.DPRank < 0 {
		rank = "all"
	}
	var follow []string
	for _, r := range s.Replicas {
		follow = append(follow, cmp.Or(r.URL, r.ID)+" "+r.State)
	}
	return []string{s.InstanceID, s.TenantID, rank, s.Type, s.ModelName, fmt.Sprint(s.BlockSize), cmp.Or(s.Registered, "engine"),
		cmp.Or(strings.Join(follow, ", "), "none")}
}

// printFleet asks a server for the sources of all replicas. It prints a line for each on out, and remarks on errs.
func (f *servicesFlags) printFleet(ctx context.Context, server *cli.Client, out, errs io.Writer) error {
	var answer fleetAnswer
	if err := server.Get(ctx, fleetPath, &answer); err != nil {
		return err
	}
	rows := [][]string{slices.Clone(sourcesOfFleet.columns)}
	var all []client.Service
	for _, s := range answer.Services {
		all = append(all, client.Service{InstanceID: s.InstanceID, TenantID: s.TenantID, ModelName: s.ModelName})
		if f.filter.passes(&all[len(all)-1]) {
			rows = append(rows, s.cells())
		}
	}
	(&sourceTable{sourceLayout: sourcesOfFleet, on: screenOf(out)}).print(out, rows...)
	switch {
	case len(all) == 0:
		cli.Fprintf(errs, "no source is registered%s: conductor register adds one\n", (&servicesAnswer{Tenants: answer.Tenants}).inView())
	case len(rows) == 1:
		cli.Fprintf(errs, "%s\n", f.filter.whyNone(all))
	}
	if !answer.Complete {
		fmt.Fprintln(errs, "the store does not answer: states of other replicas are not known, or old")
	}
	return nil
}
