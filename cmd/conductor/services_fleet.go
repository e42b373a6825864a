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

// printFleet asks a server for the sources of all replicas and prints one line each.
func (f *servicesFlags) printFleet(ctx context.Context, server *cli.Client, out io.Writer) error {
	var answer fleetAnswer
	if err := server.Get(ctx, fleetPath, &answer); err != nil {
		return err
	}
	rows := [][]string{slices.Clone(sourcesOfFleet.columns)}
	for _, s := range answer.Services {
		if f.filter.passes(&client.Service{InstanceID: s.InstanceID, TenantID: s.TenantID, ModelName: s.ModelName}) {
			rows = append(rows, s.cells())
		}
	}
	(&sourceTable{sourceLayout: sourcesOfFleet, on: screenOf(out)}).print(out, rows...)
	if len(answer.Services) == 0 {
		fmt.Fprintln(out, "\nno source is registered"+(&servicesAnswer{Tenants: answer.Tenants}).inView())
	}
	if !answer.Complete {
		fmt.Fprintln(out, "\nThe store does not answer: states of other replicas are not known, or old.")
	}
	return nil
}
