package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/spelling"
)

func unregisterCommand() *cobra.Command {
	var asks cli.ClientFlags
	var tenant string
	var rank int
	var asJSON *bool
	cmd := &cobra.Command{
		Use:        "unregister INSTANCE",
		SuggestFor: []string{"remove", "rm", "delete", "deregister"},
		Short:      "Let a running server forget an instance, with all its ranks",
		Long: `Asks a running server which ranks an instance has, and unregisters all of them or the one
of --rank. The server forgets what they held at once. An instance that the server found
by asking an engine is not asked any more.

A source of the settings file, or of a file in discovery.sources_dir, comes back at the
next start unless you remove it there too. The exit status is 1 if there is no such
instance, or if the server refused for one of its ranks.`,
		Example: "  conductor unregister prefill-1\n  conductor unregister prefill-1 --tenant acme --rank 3",
		Args:    cobra.ExactArgs(1),
	}
	asks.Add(cmd, true)
	cmd.Flags().StringVar(&tenant, "tenant", "", "tenant `name`; needed only if instances of several tenants have the name")
	cmd.Flags().IntVar(&rank, "rank", -1, "unregister this rank alone")
	asJSON = cli.JSONFlag(cmd, "print what became of each rank as a JSON array")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		server, err := asks.Client()
		if err != nil {
			return err
		}
		var known servicesAnswer
		list := func() error {
			known = servicesAnswer{} // a field that the answer leaves out would keep its value
			return server.Get(cmd.Context(), "/conductor/v1/services", &known)
		}
		if err := list(); err != nil {
			return err
		}
		of, err := tenantOf(&known, name, tenant)
		if err != nil {
			return err
		}
		remove := func(rank int) error {
			var said any
			return server.Post(cmd.Context(), "/conductor/v1/unregister",
				map[string]any{"instance_id": name, "tenant_id": of, "dp_rank": rank}, &said)
		}
		var all []changedRank
		mine := func(s client.Service, fleet bool) bool {
			return s.TenantID == of && (s.InstanceID == name || fleet && s.Registered != registration.ByClient &&
				registration.IsInstanceOf(s.InstanceID, name)) && (rank < 0 || s.DPRank == rank)
		}
		asked := false // over HTTP
		for _, d := range known.Discovery {
			if d.InstanceID == name && d.TenantID == of {
				asked = asked || d.DPRank == nil
			}
		}
		for _, s := range known.Services {
			if mine(s, asked) {
				all = append(all, changedRank{Instance: s.InstanceID, Tenant: s.TenantID, Rank: s.DPRank, Endpoint: s.Endpoint,
					Result: resultNotAsked})
			}
		}
		for _, d := range known.Discovery { // those whose first events have not come, and who have no source yet
			if d.InstanceID == name && d.TenantID == of && d.DPRank != nil && (rank < 0 || *d.DPRank == rank) &&
				!slices.ContainsFunc(all, func(r changedRank) bool { return r.Instance == name && r.Rank == *d.DPRank }) {
				all = append(all, changedRank{Instance: name, Tenant: of, Rank: *d.DPRank, Result: resultNotAsked})
			}
		}
		slices.SortFunc(all, func(a, b changedRank) int { return cmp.Or(cmp.Compare(a.Instance, b.Instance), a.Rank-b.Rank) })
		if len(all) == 0 && rank >= 0 && !asked {
			return fmt.Errorf("%s has no rank %d; conductor services lists those that it has", name, rank)
		}
		var failed error
		if asked { // one request, of any rank, is for all that the engine told
			if rank >= 0 {
				return fmt.Errorf("the server asks %s which ranks it has, so one alone cannot be unregistered: leave --rank out", name)
			}
			if failed = remove(0); failed == nil {
				failed = list()
			}
		}
		var bad []string
		for i := range all {
			r := &all[i]
			still := func(s client.Service) bool {
				return s.InstanceID == r.Instance && s.TenantID == of && s.DPRank == r.Rank
			}
			switch why := (*cli.RefusedError)(nil); {
			case failed != nil:
				continue
			case asked && !slices.ContainsFunc(known.Services, still):
				r.Result = resultUnregistered
				continue
			default:
				err := remove(r.Rank)
				switch {
				case err == nil || errors.As(err, &why) && why.Status == http.StatusNotFound && why.Said() != "": // gone meanwhile
					r.Result = resultUnregistered
				case errors.As(err, &why) && why.Status != http.StatusUnauthorized && why.Status != http.StatusForbidden:
					r.Result, r.Reason = resultRefused, why.Said()
					bad = append(bad, strconv.Itoa(r.Rank))
				default:
					failed = err
				}
			}
		}
		if err := printRanks(cmd.OutOrStdout(), all, *asJSON, false); err != nil {
			return err
		}
		if asked && failed == nil && len(all) == 0 && !*asJSON {
			cli.Fprintf(cmd.OutOrStdout(), "%s is not asked any more; it had told no rank\n", name)
		}
		if failed == nil && len(bad) > 0 {
			failed = rankError(all, bad, resultRefused)
		}
		return failed
	}
	return cmd
}

// tenantOf returns the tenant of the instance that a user means.
func tenantOf(known *servicesAnswer, name, tenant string) (string, error) {
	var tenants, others []string
	add := func(instance, of string) {
		switch {
		case tenant != "" && of != tenant:
		case instance != name:
			others = append(others, instance)
		case !slices.Contains(tenants, of):
			tenants = append(tenants, of)
		}
	}
	for _, s := range known.Services {
		add(s.InstanceID, s.TenantID)
	}
	for _, d := range known.Discovery {
		add(d.InstanceID, d.TenantID)
	}
	switch len(tenants) {
	case 1:
		return tenants[0], nil
	case 0:
		text := fmt.Sprintf("no instance %q is registered", name)
		if tenant != "" && known.Tenants.Has(tenant) {
			text += fmt.Sprintf(" for tenant %q", tenant)
		} else {
			text += known.inView()
		}
		if meant := spelling.Closest(name, others); meant != "" {
			text += fmt.Sprintf("; did you mean %q?", meant)
		} else {
			text += "; conductor services lists those that are"
		}
		return "", errors.New(text)
	}
	slices.Sort(tenants)
	return "", fmt.Errorf("instances of the tenants %s are called %q: name one with --tenant", strings.Join(tenants, ", "), name)
}
