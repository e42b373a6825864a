package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/events/stream"
	"example.com/conductor/spelling"
)

// expectationsText says how good the expectations of an instance were.
func expectationsText(x *client.ServiceExpectations) string {
	text := fmt.Sprintf("prompts reported: %d, tokens expected now: %d", x.Prompts, x.Pending)
	if x.ConfirmedShare != nil {
		text += fmt.Sprintf(", confirmed: %.1f %%, tokens wasted: %d", 100**x.ConfirmedShare, x.Expired)
	}
	if x.DelayP50Seconds != nil && x.DelayP99Seconds != nil {
		text += fmt.Sprintf(", delay: p50 %.3g s, p99 %.3g s", *x.DelayP50Seconds, *x.DelayP99Seconds)
	}
	if x.Evicted > 0 {
		text += fmt.Sprintf(", tokens evicted: %d", x.Evicted)
	}
	if x.TTLSeconds != nil {
		text += fmt.Sprintf(", ttl: %.3g s", *x.TTLSeconds)
	}
	return text
}

// servicesAnswer is what commands need of /services.
type servicesAnswer struct {
	Services  []client.Service
	Discovery []askedRow
	LMCache   []reporterRow
	Unclaimed []topicRow
}

// topicRow is a topic on a bound socket that no source claims.
type topicRow struct {
	Endpoint, Topic, From, Advice string
	DPRank                        *int
	Messages                      uint64
}

// text says what comes, from where, and what to do about it.
func (t *topicRow) text() string {
	text := fmt.Sprintf(`%s came under the topic "%s"`, spelling.Count(t.Messages, "message"), t.Topic) // which has its escapes
	if t.DPRank != nil {
		text += fmt.Sprintf(" with dp_rank %d", *t.DPRank)
	}
	if t.From != "" {
		text += " from " + t.From + " to " + t.Endpoint
	}
	return text + ", and no source claims " + spelling.Agree(t.Messages, "it", "them") + ": " + t.Advice
}

// reporterRow is an instance of LMCache that reports.
type reporterRow struct {
	InstanceID string
	Unclaimed  []struct {
		InstanceID, ModelName string
		Entries               uint64
	}
}

// unclaimed says what no source takes, and what to register.
func (r *reporterRow) unclaimed() (all []string) {
	for _, u := range r.Unclaimed {
		all = append(all, fmt.Sprintf("LMCache reports %s of the model %q as %q, and no source takes %s: register it with type LMCache, "+
			"endpoint push:, instance_id %q, modelname %q",
			spelling.Count(u.Entries, "entry"), u.ModelName, u.InstanceID, spelling.Agree(u.Entries, "it", "them"), u.InstanceID,
			u.ModelName))
	}
	return all
}

// askedRow is an engine, or a fleet of them, that is asked where it publishes.
type askedRow struct {
	InstanceID, TenantID, URL, LastError string
	DPRank                               *int // nil if it tells its ranks
	Sources                              int
}

func servicesCommand() *cobra.Command {
	var asks cli.ClientFlags
	var asJSON, ofFleet bool
	cmd := &cobra.Command{
		Use:        "services",
		SuggestFor: []string{"status", "list", "ls", "sources", "instances", "get"},
		Short:      "List the registered sources of a running server and how they are",
		Long: `Lists the sources of a running server, one rank of an engine or a pool in a line, with their
state and why it is that. Below the table are their findings, engines that have not told
where they publish, and events that no source claims. "conductor doctor" says what to do.`,
		Example: "  conductor services\n" +
			"  conductor services --server conductor.example:13333 --token-file operator.token\n" +
			"  conductor services --fleet",
		Args: cobra.NoArgs,
	}
	asks.Add(cmd, true)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	cmd.Flags().BoolVar(&ofFleet, "fleet", false, "list the sources of all replicas that share the store, and which of them follow each")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		server, err := asks.Client()
		if err != nil {
			return err
		}
		if asJSON {
			var answer json.RawMessage
			path := "/conductor/v1/services"
			if ofFleet {
				path = fleetPath
			}
			if err := server.Get(cmd.Context(), path, &answer); err != nil {
				return err
			}
			return cli.PrintJSON(cmd.OutOrStdout(), answer)
		}
		if ofFleet {
			return printFleet(cmd.Context(), server, cmd.OutOrStdout())
		}
		return printServices(cmd.Context(), server, cmd.OutOrStdout())
	}
	return cmd
}

// printServices asks a server for its sources and prints one line each.
func printServices(ctx context.Context, server *cli.Client, out io.Writer) error {
	var answer servicesAnswer
	if err := server.Get(ctx, "/conductor/v1/services", &answer); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "INSTANCE\tTENANT\tRANK\tTYPE\tMODEL\tBLOCK\tSTATE\tEPOCH\tLAST SEQ\tBLOCKS\tGAPS\tREPLAYED\tDROPPED\tWHY")
	for _, s := range answer.Services {
		model := s.ModelName
		if s.LoraName != "" {
			model += "+" + s.LoraName
		}
		seq := "-"
		if s.LastSeq != nil {
			seq = fmt.Sprint(*s.LastSeq)
		}
		why := cmp.Or(s.Reason, s.LastError)
		if stream.State(s.State) == stream.Synced {
			why = "" // the last error stays after it is over
		}
		cli.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%d\t%s\t%d\t%s\t%d\t%d\t%d\t%s\t%s\n", s.InstanceID, s.TenantID, s.DPRank, s.Type, model,
			s.BlockSize, s.State, s.Epoch, seq, s.Blocks, s.Gaps, s.Replayed, counts(s.DroppedBy), why)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range answer.Services {
		for _, f := range s.Findings {
			if f.Code == s.State {
				continue // the table has it
			}
			cli.Fprintf(out, "\n%s|%s|%d %s: %s\n", s.InstanceID, s.TenantID, s.DPRank, f.Code, f.Message)
		}
	}
	for _, d := range answer.Discovery {
		if d.LastError != "" {
			cli.Fprintf(out, "\n%s|%s discover: %s\n", d.InstanceID, d.TenantID, d.LastError)
		}
	}
	for _, r := range answer.LMCache {
		for _, text := range r.unclaimed() {
			cli.Fprintf(out, "\n%s unclaimed: %s\n", r.InstanceID, text)
		}
	}
	for _, t := range answer.Unclaimed {
		cli.Fprintf(out, "\nunclaimed topic: %s\n", t.text())
	}
	return nil
}

// fleetPath has the sources of all replicas.
const fleetPath = "/conductor/v1/services?fleet=1"

// fleetAnswer is what the table of a fleet needs.
type fleetAnswer struct {
	Complete bool
	Services []struct {
		InstanceID, TenantID, Type, ModelName, Registered string
		DPRank, BlockSize                                 int
		Replicas                                          []struct{ ID, URL, State string }
	}
}

// printFleet asks a server for the sources of all replicas and prints one line each.
func printFleet(ctx context.Context, server *cli.Client, out io.Writer) error {
	var answer fleetAnswer
	if err := server.Get(ctx, fleetPath, &answer); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "INSTANCE\tTENANT\tRANK\tTYPE\tMODEL\tBLOCK\tREGISTERED BY\tREPLICAS")
	for _, s := range answer.Services {
		rank := fmt.Sprint(s.DPRank)
		if s.DPRank < 0 {
			rank = "all"
		}
		var follow []string
		for _, r := range s.Replicas {
			follow = append(follow, cmp.Or(r.URL, r.ID)+" "+r.State)
		}
		cli.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", s.InstanceID, s.TenantID, rank, s.Type, s.ModelName, s.BlockSize,
			cmp.Or(s.Registered, "engine"), cmp.Or(strings.Join(follow, ", "), "none"))
	}
	if err := w.Flush(); err != nil || answer.Complete {
		return err
	}
	_, err := fmt.Fprintln(out, "\nThe store does not answer: states of other replicas are not known, or old.")
	return err
}

// counts prints reason=n pairs, or - for none.
func counts(m map[string]uint64) string {
	if len(m) == 0 {
		return "-"
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s=%d", reason, m[reason]))
	}
	return strings.Join(parts, ",")
}
