package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/events/reach"
	"example.com/conductor/events/stream"
)

// advice is one thing that an operator should look at.
type advice struct {
	Source   string          `json:"source,omitempty"` // "" for the server
	Code     string          `json:"code"`
	Severity doctor.Severity `json:"severity"`
	Text     string          `json:"text"`
	Runbook  string          `json:"runbook"` // URL of a page that the server has
}

// guide is the severity of advice that no finding gives, and the page about it.
type guide struct {
	severity doctor.Severity
	page     string
}

// guides has the advice of this command by code: about the server, targets of discovery, and states of sources.
var guides = map[string]guide{
	"not_ready":       {doctor.Error, "findings#not_ready"},
	"no_sources":      {doctor.Error, "findings#no_sources"},
	"memory_bound":    {doctor.Error, "findings#memory_bound"},
	"discovery":       {doctor.Error, "findings#discovery"},
	"unclaimed":       {doctor.Error, "findings#unclaimed"},
	"unclaimed_topic": {doctor.Warning, "findings#unclaimed_topic"},
	"failed":          {doctor.Error, "alerts#conductorsourcesfailed"},
	"stale":           {doctor.Error, "findings#stale"},
	"partial":         {doctor.Warning, "states#reasons-of-partial"},
	"connecting":      {doctor.Warning, "alerts#conductorsourcesconnecting"},
	"paused":          {doctor.Warning, "states"},
	"replaying":       {doctor.Info, "states"},
}

// newAdvice returns advice that guides has, or that a finding gives.
func newAdvice(base, source, code, text string) advice {
	g, known := guides[code]
	if !known {
		g = guide{doctor.SeverityOf(code), "findings#" + code}
	}
	return advice{source, code, g.severity, text, base + "/docs/" + g.page}
}

// adviceOfState says what to do about sources in a state.
var adviceOfState = map[string]string{
	"connecting": "there is no connection to the engine: check the endpoint, the network and the engine",
	"replaying":  "the source catches up; if this lasts, its engine publishes faster than it replays",
	"stale":      "no connection for stream.stale_after: check that the engine runs, and the endpoint and the network",
	"partial": "blocks from before are not known, so answers are too short: register a replay_endpoint, follow a relay, or wait until " +
		"the engine has cleared its cache",
	"failed": "the registration can never work: register it again with what the error names",
	"paused": "the source was paused by /test/pause_listener: resume it",
}

// adviceOnBound says what to do about a source whose engine connects to the server, in the states in which
// it is not heard; "" in others.
func adviceOnBound(s *client.Service, unclaimed []topicRow) string {
	text := ""
	switch s.State {
	case "connecting":
		text = "nothing has come from the engine yet"
	case "stale":
		text = "nothing has come from the engine for stream.stale_after; one without work sends nothing"
	default:
		return ""
	}
	at := strings.TrimPrefix(s.Endpoint, "bind:tcp://")
	if host, port, err := net.SplitHostPort(at); err == nil && reach.IsWildcard(host) {
		at = "port " + port + " of this server"
	}
	text += fmt.Sprintf(": it has to connect to %s and publish under the topic %q with dp_rank %d", at, "kv@"+s.InstanceID+"@"+s.ModelName,
		s.DPRank)
	var came []string
	for _, t := range unclaimed {
		if strings.Replace(s.Endpoint, "//0.0.0.0:", "//*:", 1) == t.Endpoint && len(came) < 3 {
			came = append(came, `"`+t.Topic+`"`)
		}
	}
	if len(came) > 0 {
		text += "; what came there and no source claims is " + strings.Join(came, ", ")
	}
	return text
}

// adviceOfReason says more about partial sources where the reason is not that history is missing.
var adviceOfReason = map[string]string{
	stream.ReasonStorm: "several publishers send over one connection, so answers have nothing of them: the finding restart_storm says " +
		"what to do",
	stream.ReasonForeign: "blocks from before are not known, so answers are too short: the finding foreign_replay says whose replay " +
		"service was asked",
	stream.ReasonUnusable: "most messages of the publisher cannot be used, so answers have nothing of them: the finding " +
		"unusable_messages says what they look like",
}

func doctorCommand() *cobra.Command {
	var asks cli.ClientFlags
	var asJSON, each bool
	cmd := &cobra.Command{
		Use:        "doctor",
		SuggestFor: []string{"check", "diagnose", "lint"},
		Short:      "Ask a running server what an operator should do",
		Long: `Asks a server for its sources, their findings and its readiness, and prints what an
operator should do about each, the most urgent first. For instances that routers report
prompts for, it also says how many of the expected tokens the engine confirmed. Sources
with the same finding are one entry, with the message of the first; --all lists each.

The exit status is 1 if something is of severity error, so that an operator must act,
and 0 if there are warnings alone, or nothing.

With --json it prints the advice alone, that for each source. What became of expected
tokens is the field Expected of "conductor services --json" and of GET /services.`,
		Example: "  conductor doctor\n" +
			"  conductor doctor --server conductor.example:13333 --json",
		Args: cobra.NoArgs,
	}
	asks.Add(cmd, true)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the advice as one JSON array")
	cmd.Flags().BoolVar(&each, "all", false, "list each source, instead of one entry for all sources with the same finding")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		server, err := asks.Client()
		if err != nil {
			return err
		}
		all, expected, err := examine(cmd.Context(), server)
		if err != nil {
			return err
		}
		slices.SortStableFunc(all, func(a, b advice) int {
			return cmp.Or(doctor.CompareSeverity(a.Severity, b.Severity), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Source, b.Source))
		})
		if asJSON {
			err = cli.PrintJSON(cmd.OutOrStdout(), all)
		} else {
			printAdvice(cmd.OutOrStdout(), all, each)
			fmt.Fprint(cmd.OutOrStdout(), expected)
		}
		if err == nil && slices.ContainsFunc(all, func(a advice) bool { return a.Severity == doctor.Error }) {
			err = cli.ErrReported
		}
		return err
	}
	return cmd
}

// examine asks a server how it is. expected has a line for each instance that routers report prompts for.
func examine(ctx context.Context, server *cli.Client) (_ []advice, expected string, _ error) {
	all := []advice{}
	advise := func(source, code, text string) advice { return newAdvice(server.Base, source, code, text) }
	var services servicesAnswer
	if err := server.Get(ctx, "/conductor/v1/services", &services); err != nil {
		return nil, "", err
	}
	for _, d := range services.Discovery {
		if d.LastError != "" || d.Sources == 0 {
			text := "the engine has not told where it publishes: check its HTTP server and discover"
			if d.LastError != "" {
				text += " (" + d.LastError + ")"
			}
			all = append(all, advise(d.InstanceID+"|"+d.TenantID, "discovery", text))
		}
	}
	for _, r := range services.LMCache {
		for _, text := range r.unclaimed() {
			all = append(all, advise(r.InstanceID, "unclaimed", text))
		}
	}
	for _, t := range services.Unclaimed {
		all = append(all, advise("", "unclaimed_topic", t.text()))
	}
	if len(services.Services) == 0 && len(services.Discovery) == 0 {
		all = append(all, advise("", "no_sources", "no source is registered: every answer is empty"))
	}
	for _, s := range services.Services {
		key := fmt.Sprintf("%s|%s|%d", s.InstanceID, s.TenantID, s.DPRank)
		if !stream.State(s.State).Ready() {
			text := cmp.Or(adviceOfReason[s.Reason], adviceOfState[s.State], "the source is not synced")
			if strings.HasPrefix(s.Endpoint, "bind:") {
				text = cmp.Or(adviceOnBound(&s, services.Unclaimed), text)
			}
			if why := cmp.Or(s.LastError, s.Reason); why != "" {
				text += " (" + why + ")"
			}
			all = append(all, advise(key, s.State, text))
		}
		for _, f := range s.Findings {
			if f.Code != s.State && f.Code != doctor.FindingLearned { // the state has its advice
				all = append(all, advise(key, f.Code, f.Message))
			}
		}
	}
	status, body, err := server.Ask(ctx, http.MethodGet, "/ready", nil)
	if err != nil {
		return nil, "", err
	}
	var ready struct {
		Index struct{ Full bool } `json:"index"`
	}
	if json.Unmarshal(body, &ready) == nil && ready.Index.Full {
		all = append(all, advise("", "memory_bound",
			"index.max_bytes_total is reached and new blocks are refused: raise it, or add a replica"))
	}
	if status != http.StatusOK {
		all = append(all, advise("", "not_ready", "routers should not rely on the answers yet: see conductor health --ready"))
	}
	told := make(map[string]bool)
	for _, s := range services.Services {
		if name := s.InstanceID + "|" + s.TenantID; s.Expected != nil && !told[name] {
			told[name] = true
			expected += cli.Sprintf("%s: expectations\n  %s\n", name, expectationsText(s.Expected))
		}
	}
	return all, expected, nil
}

// shownSources is how many sources of an entry are named.
const shownSources = 3

// printAdvice prints advice that is sorted by code. Sources with the same code are one entry, unless each is set.
// What no source takes is always listed, because its text says what to register.
func printAdvice(out io.Writer, all []advice, each bool) {
	if len(all) == 0 {
		fmt.Fprintln(out, "nothing to do")
	}
	for len(all) > 0 {
		n := 1
		for !each && all[0].Source != "" && all[0].Code != "unclaimed" && n < len(all) && all[n].Code == all[0].Code {
			n++
		}
		var who []string
		for _, a := range all[:n] {
			who = append(who, cmp.Or(a.Source, "server"))
		}
		names := strings.Join(who[:min(n, shownSources)], ", ")
		if n > shownSources {
			names += fmt.Sprintf(" and %d more", n-shownSources)
		}
		if n > 1 {
			names = fmt.Sprintf("%d sources, %s", n, names)
		}
		cli.Fprintf(out, "%s %s: %s\n  %s\n  %s\n", all[0].Severity, all[0].Code, names, all[0].Text, all[0].Runbook)
		all = all[n:]
	}
}
