package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
)

// clusterAnswer is what commands need of /admin/cluster.
type clusterAnswer struct {
	Mode, Replica string
	Owners        int
	Known         bool
	Shards        []clusterShard
}

// clusterShard is all deployments of a tenant's model.
type clusterShard struct {
	Tenant   string `json:"tenant_id"`
	Model    string `json:"model_name"`
	Sources  int
	Queries  float64 `json:"queries_per_s"`
	Owners   []string
	Moving   bool
	Replicas []struct {
		ID, URL, Phase string
		Synced         int
	}
}

func clusterCommand() *cobra.Command {
	var asks cli.ClientFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "List the shards of a group and the replicas that serve them",
		Long: `Lists the shards of a group, whose replicas share a store and divide the models among them
(cluster.mode: shards): who owns each, and how far every replica has come with it. It needs
the role admin.`,
		Example: "  conductor cluster\n" +
			"  conductor cluster --server https://conductor.example:13333 --cacert ca.pem --token-file operator.token",
		Args: cobra.NoArgs,
	}
	asks.Add(cmd, true)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		server, err := asks.Client()
		if err != nil {
			return err
		}
		var text json.RawMessage
		if err := server.Get(cmd.Context(), "/admin/cluster", &text); err != nil {
			return err
		}
		if asJSON {
			return cli.PrintJSON(cmd.OutOrStdout(), text)
		}
		var answer clusterAnswer
		if err := json.Unmarshal(text, &answer); err != nil {
			return err
		}
		if answer.Mode != "shards" {
			cmd.Println("every replica follows every source: cluster.mode is replicas")
			return nil
		}
		urls := make(map[string]string) // of the replicas that have a part in any shard, by id
		for _, s := range answer.Shards {
			for _, r := range s.Replicas {
				urls[r.ID] = r.URL
			}
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "TENANT\tMODEL\tSOURCES\tQUERIES/S\tOWNERS\tREPLICAS")
		for _, s := range answer.Shards {
			var owners, replicas []string
			for _, id := range s.Owners {
				owners = append(owners, cmp.Or(urls[id], id))
			}
			for _, r := range s.Replicas {
				replicas = append(replicas, fmt.Sprintf("%s %s (%d/%d synced)", cmp.Or(r.URL, r.ID), r.Phase, r.Synced, s.Sources))
			}
			cli.Fprintf(w, "%s\t%s\t%d\t%.1f\t%s\t%s\n", s.Tenant, s.Model, s.Sources, s.Queries, strings.Join(owners, " "),
				strings.Join(replicas, ", "))
		}
		return w.Flush()
	}
	return cmd
}
