package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/scope"
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
	Tenants   scope.Tenants `json:",omitempty"` // whose sources the token sees; nil is all
	// Unregistered is what queries ask for and no engine is registered for.
	Unregistered []unregisteredRow
}

// inView names the tenants that the token can see, to end the sentence "no source is registered"; "" if it sees all of them.
func (a *servicesAnswer) inView() string {
	if a.Tenants.All() {
		return ""
	}
	return fmt.Sprintf(" for %s, and the token sees those of no other tenant", a.Tenants.Text())
}

// unregisteredRow is a tenant, model and block size that no engine is registered for.
type unregisteredRow struct {
	TenantID, ModelName string
	BlockSize           int
	Queries             uint64
	Advice              string
}

// text names the model, tenant and block size of the queries, and those that are registered.
func (u *unregisteredRow) text() string {
	return fmt.Sprintf("%s asked for model %q of tenant %q in blocks of %s, and got nothing: %s", spelling.Count(u.Queries, "query"),
		u.ModelName, u.TenantID, spelling.Count(u.BlockSize, "token"), u.Advice)
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
	State                                string // found, learning or waiting; "" from an older server
	DPRank                               *int   // nil if it tells its ranks
	Sources                              int
}

// servicesPath has the sources of one server.
const servicesPath = "/conductor/v1/services"

// readServices asks a server for its sources and the rest of what commands need of /services.
func readServices(ctx context.Context, server *cli.Client) (*servicesAnswer, error) {
	answer := new(servicesAnswer)
	return answer, server.Get(ctx, servicesPath, answer)
}

// servicesFlags are the flags of services.
type servicesFlags struct {
	asks                            cli.ClientFlags
	filter                          sourceFilter
	asJSON, fleet, watch, inDetails bool
}

func servicesCommand() *cobra.Command {
	var f servicesFlags
	cmd := &cobra.Command{
		Use:        "services",
		SuggestFor: []string{"status", "list", "ls", "sources", "instances", "get"},
		Short:      "List the registered sources of a running server and how they are",
		Long: `Lists the sources of a running server, one rank of an engine or a pool in a line, with their
state, why it is that, and the codes of their errors and warnings. Below the table are all
findings in full, engines that have not told where they publish, and events that no source
claims; if they are many, one line for all of a kind. "conductor doctor" says what to do.

With --watch it goes on, and prints the line of a source again whenever its state or WHY
changes, and once when it has no more what the flags ask for, until Ctrl-C.`,
		Example: "  conductor services\n" +
			"  conductor services --instance 'prefill-*' --state stale,partial\n" +
			"  conductor services --model deepseek --watch\n" +
			"  conductor services --server conductor.example:13333 --token-file operator.token\n" +
			"  conductor services --fleet",
		Args: cobra.NoArgs,
	}
	f.asks.Add(cmd, true)
	f.filter.addFlags(cmd)
	cmd.Flags().BoolVar(&f.inDetails, "details", false, "print each finding in full, however many there are")
	cmd.Flags().BoolVar(&f.watch, "watch", false, "go on, and print the sources that change")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the answer as JSON")
	cmd.Flags().BoolVar(&f.fleet, "fleet", false, "list the sources of all replicas that share the store, and which of them follow each")
	for _, other := range []string{"state", "finding", "details", "watch"} {
		cmd.MarkFlagsMutuallyExclusive("fleet", other)
	}
	cmd.MarkFlagsMutuallyExclusive("json", "watch")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd) }
	return cmd
}

// run lists what the flags ask for.
func (f *servicesFlags) run(cmd *cobra.Command) error {
	if err := f.filter.check(); err != nil {
		return err
	}
	server, err := f.asks.Client()
	switch {
	case err != nil:
		return err
	case f.asJSON:
		return f.printJSON(cmd.Context(), server, cmd.OutOrStdout())
	case f.fleet:
		return f.printFleet(cmd.Context(), server, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	ctx, stop := cli.UntilSignal(cmd)
	defer stop()
	answer, err := readServices(ctx, server)
	if err != nil {
		return err
	}
	all, asked := slices.Clone(answer.Services), len(answer.Discovery)
	f.filter.apply(answer)
	table := &sourceTable{sourceLayout: sourcesOfServer, on: screenOf(cmd.OutOrStdout())}
	printServices(cmd.OutOrStdout(), answer, table, f.inDetails)
	switch {
	case len(all) == 0 && asked > 0:
		cmd.PrintErrln(cli.Printable(fmt.Sprintf("no source yet: %s not told where %s", spelling.Count(asked, "engine")+
			spelling.Agree(asked, " has", " have"), spelling.Agree(asked, "it publishes", "they publish"))))
	case len(all) == 0:
		cmd.PrintErrln(cli.Printable("no source is registered" + answer.inView() + ": conductor register adds one"))
	case len(answer.Services) == 0:
		cmd.PrintErrln(cli.Printable(f.filter.whyNone(all)))
	}
	if f.watch {
		w := &sourceWatch{table: table, out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), shown: f.filter.passes,
			read: func(ctx context.Context) (*servicesAnswer, error) { return readServices(ctx, server) }}
		w.follow(ctx, answer)
	}
	return nil
}

// printJSON prints the answer of the server, without what the flags leave out.
func (f *servicesFlags) printJSON(ctx context.Context, server *cli.Client, out io.Writer) error {
	path := servicesPath
	if f.fleet {
		path = fleetPath
	}
	var answer json.RawMessage
	if err := server.Get(ctx, path, &answer); err != nil {
		return err
	}
	if !f.filter.given() {
		return cli.PrintJSON(out, answer)
	}
	chosen, err := f.filter.applyJSON(answer)
	if err != nil {
		return err
	}
	return cli.PrintJSON(out, chosen)
}

// fleetPath has the sources of all replicas.
const fleetPath = "/conductor/v1/services?fleet=1"
