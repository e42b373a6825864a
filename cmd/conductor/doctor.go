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
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/events/reach"
	"example.com/conductor/events/stream"
	"example.com/conductor/spelling"
)

// advice is one thing that an operator should look at.
type advice struct {
	Source   string          `json:"source,omitempty"` // "" for the server
	Code     string          `json:"code"`
	Severity doctor.Severity `json:"severity"`
	Text     string          `json:"text"`
	Runbook  string          `json:"runbook"` // URL of a page that the server has

	cause string // that Text ends with, in brackets; sources that differ in it alone are one entry
}

// pages maps the states of sources to the pages that explain them. Every other code has its section in docs/findings.md.
var pages = map[string]string{
	"failed":     "alerts#conductorsourcesfailed",
	"partial":    "states#reasons-of-partial",
	"connecting": "alerts#conductorsourcesconnecting",
	"paused":     "states",
	"replaying":  "states",
}

// newAdvice returns advice about a finding, a state of a source, or what belongs to no source.
func newAdvice(base, source, code, text string) advice {
	return advice{Source: source, Code: code, Severity: doctor.SeverityOf(code), Text: text,
		Runbook: base + "/docs/" + cmp.Or(pages[code], "findings#"+code)}
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

// adviceOfReason says more about partial sources where the reason is not that the engine has no replay service.
var adviceOfReason = map[string]string{
	stream.ReasonTimeout: "blocks from before are not known, because the engine's replay service gives no whole answer: check " +
		"replay_endpoint, which is another port than that of the events; the server keeps asking, ever more rarely",
	stream.ReasonOverrun: "blocks from before are not known, because the engine no longer had the batches that were missing: raise its " +
		"buffer_steps, or wait until it has cleared its cache",
	stream.ReasonGap: "batches are lost for good, so some blocks are missing, and others are still in the answers: register the engine's " +
		"replay_endpoint, raise its buffer_steps, or follow a relay",
	stream.ReasonUndecodable: "a batch could not be decoded, so what it stored is missing, and what it removed is still in the answers: " +
		"check that the endpoint is where the engine publishes its events, and that this server is new enough for the engine",
	stream.ReasonTooLarge: "a batch is larger than this server reads: raise limits.max_payload and restart the server",
	stream.ReasonUnverified: "the blocks came from a peer that did not know whether the engine had been restarted: a clear or restart of " +
		"the engine settles it",
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
with the same advice are one entry; of many with different sentences under one code it
shows the first few. --all lists each.

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
			return cmp.Or(a.Severity.Compare(b.Severity), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Source, b.Source))
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

// adviceOn says what to do about a source because of its state, and in brackets what was observed last.
func adviceOn(s *client.Service, unclaimed []topicRow) (text, cause string) {
	text = cmp.Or(adviceOfReason[s.Reason], adviceOfState[s.State], "the source is not synced")
	for _, f := range s.Findings {
		if f.Code == s.State {
			text = f.Message
		}
	}
	if strings.HasPrefix(s.Endpoint, "bind:") {
		text = cmp.Or(adviceOnBound(s, unclaimed), text)
	}
	if why := cmp.Or(s.LastError, s.Reason); why != "" {
		cause = " (" + why + ")"
	}
	return text, cause
}

// advice says what to do about an engine that is asked where it publishes, or whose first events have to tell its block size.
func (d *askedRow) advice(base string) advice {
	text := "the engine has not told where it publishes: check its HTTP server and discover"
	if d.DPRank != nil {
		text = "its first events, which tell its block size, have not come: check its endpoint, or register it with block_size"
	}
	learns := d.State == "learning"
	if learns {
		text = d.LastError
	} else if d.LastError != "" {
		text += " (" + d.LastError + ")"
	}
	a := newAdvice(base, d.InstanceID+"|"+d.TenantID, "discovery", text)
	if learns { // nothing is wrong before the first request
		a.Severity = doctor.Info
	}
	return a
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
			all = append(all, d.advice(server.Base))
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
	for _, u := range services.Unregistered {
		all = append(all, advise("", "not_registered", u.text()))
	}
	if len(services.Services) == 0 && len(services.Discovery) == 0 {
		all = append(all, advise("", "no_sources", noSources(&services)))
	}
	for _, s := range services.Services {
		key := fmt.Sprintf("%s|%s|%d", s.InstanceID, s.TenantID, s.DPRank)
		if !stream.State(s.State).Ready() {
			text, cause := adviceOn(&s, services.Unclaimed)
			a := advise(key, s.State, text+cause)
			a.cause = cause
			all = append(all, a)
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
		Summary  string
		Severity doctor.Severity `json:"summary_severity"`
		Index    struct{ Full bool }
	}
	if json.Unmarshal(body, &ready) == nil && ready.Index.Full {
		all = append(all, advise("", "memory_bound",
			"index.max_bytes_total is reached and new blocks are refused: raise it, or add a replica"))
	}
	if status != http.StatusOK {
		a := advise("", "not_ready", "routers should not rely on the answers yet: "+
			cmp.Or(ready.Summary, "/ready answers "+strconv.Itoa(status))+"; conductor health --ready says what it waits for")
		if ready.Severity == doctor.Error {
			a.Severity = doctor.Error
		}
		all = append(all, a)
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

const (
	// shownSources is how many sources of an entry are named.
	shownSources = 3
	// shownTexts is how many different sentences are shown under one code.
	shownTexts = 3
)

// noSources is the advice where there is nothing to examine.
func noSources(a *servicesAnswer) string {
	if a.Tenants.All() {
		return "no source is registered: every answer is empty"
	}
	return "no source is registered" + a.inView() + ": every answer to it is empty"
}

// printAdvice prints advice that is sorted by code. Sources with the same advice are one entry; of sources with
// different sentences under one code the first few are shown, unless each is set. What belongs to no source is always listed,
// because its text says what to register.
func printAdvice(out io.Writer, all []advice, each bool) {
	if len(all) == 0 {
		fmt.Fprintln(out, "nothing to do")
	}
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Code == all[0].Code {
			n++
		}
		ofCode := all[:n]
		all = all[n:]
		if each || ofCode[0].Source == "" || ofCode[0].Code == "unclaimed" {
			for i := range ofCode {
				printEntry(out, ofCode[i:i+1])
			}
			continue
		}
		entries := sameText(ofCode)
		for _, entry := range entries[:min(len(entries), shownTexts)] {
			printEntry(out, entry)
			n -= len(entry)
		}
		if n > 0 {
			cli.Fprintf(out, "%s %s: %d more %s, with other sentences: conductor doctor --all lists them\n", ofCode[0].Severity,
				ofCode[0].Code, n, spelling.Agree(n, "source", "sources"))
		}
	}
}

// sameText splits advice of one code by its text without the cause, the largest part first.
func sameText(all []advice) (parts [][]advice) {
	at := make(map[string]int)
	for _, a := range all {
		text := strings.TrimSuffix(a.Text, a.cause)
		i, known := at[text]
		if !known {
			i = len(parts)
			at[text], parts = i, append(parts, nil)
		}
		parts[i] = append(parts[i], a)
	}
	slices.SortStableFunc(parts, func(a, b []advice) int { return len(b) - len(a) })
	return parts
}

// printEntry prints the advice that some sources have in common.
func printEntry(out io.Writer, all []advice) {
	var who []string
	for _, a := range all[:min(len(all), shownSources)] {
		who = append(who, cmp.Or(a.Source, "server"))
	}
	names := strings.Join(who, ", ")
	if n := len(all); n > shownSources {
		names += fmt.Sprintf(" and %d more", n-shownSources)
	}
	if len(all) > 1 {
		names = fmt.Sprintf("%d sources, %s", len(all), names)
	}
	text := all[0].Text
	if slices.ContainsFunc(all, func(a advice) bool { return a.Text != text }) {
		text = strings.TrimSuffix(text, all[0].cause) + strings.Replace(all[0].cause, " (", " (such as: ", 1)
	}
	cli.Fprintf(out, "%s %s: %s\n  %s\n  %s\n", all[0].Severity, all[0].Code, names, text, all[0].Runbook)
}
