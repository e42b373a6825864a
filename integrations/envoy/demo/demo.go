// Package demo compares the picker with what Envoy does without it: the same requests go through a simulated fleet for each policy,
// over real sockets to a real Conductor, and only the time of the engines is simulated. The pickers are those that serve Envoy, called
// where the external processor calls them.
package demo

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"

	"example.com/conductor/client"
	"example.com/conductor/integrations/envoy/pick"
	"example.com/conductor/lab/demo"
	"example.com/conductor/lab/sim"
)

// Options say what Run compares.
type Options struct {
	demo.Router
	NoBursts bool
	// Only, if it is set, matches the names of the policies that are compared with the oracle.
	Only *regexp.Regexp
}

// Run compares all policies on the requests of a trace or a generator, and on bursts of equal prompts, against the server at a URL, and
// prints a table of each. If weights are given, it compares pickers with those in place of the others.
func Run(ctx context.Context, o Options, weights []SharedBy, server string, out, progress io.Writer) error {
	requests, bursts, err := o.Fleets(server)
	if err != nil {
		return err
	}
	conductor, err := client.New(server, client.WithMsgpack(), client.WithRetries(0))
	if err != nil {
		return err
	}
	fleets := []sim.Config{bursts, requests}
	if o.NoBursts {
		fleets = fleets[1:]
	}
	for _, c := range fleets {
		shared, others := weights, []sim.Policy(nil)
		if len(weights) == 0 {
			shared = []SharedBy{{Pickers: 1}, {Pickers: 3}, {Pickers: 3, Blind: true}}
			others = append(Baselines(c), demo.Sharing(c, 1, conductor), demo.Sharing(c, 3, conductor))
		}
		report, err := compare(ctx, c, conductor, shared, others, o.Only, progress)
		if err != nil {
			return err
		}
		report.Table(out)
	}
	return nil
}

// Baselines returns what Envoy does without a picker.
func Baselines(c sim.Config) []sim.Policy {
	ranks := c.Instances * c.Ranks
	return []sim.Policy{sim.RoundRobin(ranks), leastRequest(ranks, c.Seed), leastOfAll(ranks, c.Seed), prefixHash(ranks, false),
		prefixHash(ranks, true)}
}

// compare compares pickers and other policies with the oracle. Without a server the pickers ask the fleet itself.
func compare(ctx context.Context, c sim.Config, server *client.Client, shared []SharedBy, policies []sim.Policy, only *regexp.Regexp,
	progress io.Writer) (*sim.Comparison, error) {
	c.Address = address
	var all []*pickers
	for _, s := range shared {
		itself := &fleetItself{fleet: c}
		asked := conductor(itself)
		if server != nil {
			asked = newServer(server, c)
		}
		p, err := newPickers(c, s, asked)
		if err != nil {
			return nil, err
		}
		policy := p.policy(s.String())
		if server == nil {
			policy.Asks, policy.Begin = false, func(look func([]uint32) []sim.Cached) { itself.look = look }
		}
		all, policies = append(all, p), append(policies, policy)
	}
	if only != nil {
		policies = slices.DeleteFunc(policies, func(p sim.Policy) bool { return !only.MatchString(p.Name) })
	}
	report, err := sim.Compare(ctx, c, append(policies, demo.Oracle(c)), func(text string) { fmt.Fprintln(progress, text) })
	for _, p := range all {
		if p.err != nil {
			return nil, fmt.Errorf("a picker: %w", p.err)
		}
	}
	return report, err
}

// Weights returns pickers with all pairs of weights for the wait and the load; that of computing is 1.
func Weights(pickers []int, wait, load []float64) (all []SharedBy) {
	for _, n := range pickers {
		for _, w := range wait {
			for _, l := range load {
				all = append(all, SharedBy{Pickers: n, Weights: pick.Weights{Compute: 1, Wait: w, Load: l}})
			}
		}
	}
	return all
}
