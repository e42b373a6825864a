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

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/events/reach"
	"example.com/conductor/events/stream"
)

// advice is one thing that an operator should look at.
type advice struct {
	Source string `json:"source,omitempty"` // "" for the server
	Code   string `json:"code"`
	Text   string `json:"text"`
}

// adviceOfState says what to do about sources in a state.
var adviceOfState = map[string]string{
	"connecting": "there is no connection to the engine: check the endpoint, the network and the engine",
	"replaying":  "the source catches up; if this lasts, its engine publishes faster than it replays",
	"stale":      "no connection for stream.stale_after: check that the engine runs, and the endpoint and the network",
	"partial":    "blocks from before are not known, so answers are too short: register a replay_endpoint, follow a relay, or wait until the engine has cleared its cache",
	"failed":     "the registration can never work: register it again with what the error names",
	"paused":     "the source was paused by /test/pause_listener: resume it",
}

// adviceOnBound says what to do about a source whose engine connects to the server, in the states in which
// it is not heard; "" in others.
func adviceOnBound(s *serviceRow, unclaimed []topicRow) string {
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
	text += fmt.Sprintf(": it has to connect to %s and publish under the topic %q with dp_rank %d", at, "kv@"+s.InstanceID+"@"+s.ModelName, s.DPRank)
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
	stream.ReasonStorm:    "several publishers send over one connection, so answers have nothing of them: the finding restart_storm says what to do",
	stream.ReasonUnusable: "most messages of the publisher cannot be used, so answers have nothing of them: the finding unusable_messages says what they look like",
}

func doctorCommand() *cobra.Command {
	var asks cli.ClientFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:        "doctor",
		SuggestFor: []string{"check", "diagnose", "lint"},
		Short:      "Ask a running server what an operator should do",
		Long: `Asks a server for its sources, their findings and its readiness, and prints what an
operator should do about each, and, for instances that routers report prompts for, how
many of the expected tokens the engine confirmed. The exit status is 0 if there is
nothing to do, else 1.

With --json it prints the advice alone. What became of expected tokens is the field
Expected of "conductor services --json" and of GET /services.`,
		Example: "  conductor doctor\n" +
			"  conductor doctor --server conductor.example:13333 --json",
		Args: cobra.NoArgs,
	}
	asks.Add(cmd, true)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the advice as one JSON array")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		server, err := asks.Client()
		if err != nil {
			return err
		}
		all, expected, err := examine(cmd.Context(), server)
		if err != nil {
			return err
		}
		if err := printAdvice(cmd.OutOrStdout(), all, asJSON); err != nil {
			return err
		}
		if !asJSON {
			fmt.Fprint(cmd.OutOrStdout(), expected)
		}
		if len(all) > 0 {
			return cli.ErrReported
		}
		return nil
	}
	return cmd
}

// examine asks a server how it is. expected has a line for each instance that routers report prompts for.
func examine(ctx context.Context, server *cli.Client) (_ []advice, expected string, _ error) {
	all := []advice{}
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
			all = append(all, advice{d.InstanceID + "|" + d.TenantID, "discovery", text})
		}
	}
	for _, r := range services.LMCache {
		for _, text := range r.unclaimed() {
			all = append(all, advice{r.InstanceID, "unclaimed", text})
		}
	}
	for _, t := range services.Unclaimed {
		all = append(all, advice{Code: "unclaimed_topic", Text: t.text()})
	}
	if len(services.Services) == 0 && len(services.Discovery) == 0 {
		all = append(all, advice{Code: "no_sources", Text: "no source is registered: every answer is empty"})
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
			all = append(all, advice{key, s.State, text})
		}
		for _, f := range s.Findings {
			if f.Code != doctor.FindingLearned && f.Code != s.State { // the state has its advice
				all = append(all, advice{key, f.Code, f.Message})
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
		all = append(all, advice{Code: "memory_bound", Text: "index.max_bytes_total is reached and new blocks are refused: raise it, or add a replica"})
	}
	if status != http.StatusOK {
		all = append(all, advice{Code: "not_ready", Text: "routers should not rely on the answers yet: see conductor health --ready"})
	}
	told := make(map[string]bool)
	for _, s := range services.Services {
		if name := s.InstanceID + "|" + s.TenantID; s.Expected != nil && !told[name] {
			told[name] = true
			expected += name + ": expectations\n  " + s.Expected.text() + "\n"
		}
	}
	return all, expected, nil
}

// printAdvice prints advice, that about the server first.
func printAdvice(out io.Writer, all []advice, asJSON bool) error {
	slices.SortStableFunc(all, func(a, b advice) int { return cmp.Compare(a.Source, b.Source) })
	if asJSON {
		return cli.PrintJSON(out, all)
	}
	if len(all) == 0 {
		fmt.Fprintln(out, "nothing to do")
	}
	for _, a := range all {
		fmt.Fprintf(out, "%s: %s\n  %s\n", cmp.Or(a.Source, "server"), a.Code, a.Text)
	}
	return nil
}
