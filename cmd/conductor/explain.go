package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/spelling"
)

// explained is what the sentences need of an answer of /admin/explain.
type explained struct {
	Blocks, Tokens int
	BlockSize      int `json:"block_size"`
	Verdict        struct{ Kind, Text string }
	Instances      []struct {
		Instance string
		Serves   bool
		Longest  int `json:"longest_matched"`
		Ranks    []explainedHolder
	}
	Pools   []explainedHolder
	Reasons []explainedReason
}

// explainedHolder is one source as one rank.
type explainedHolder struct {
	Source, State string
	Rank          int    `json:"dp_rank"`
	StateReason   string `json:"state_reason"`
	Matched       int
	Media         []struct {
		Medium  string
		Matched int
		Runs    [][2]int
	}
	End *struct {
		Block   int
		Tokens  [2]int
		Reasons []explainedReason
	}
	Findings []struct{ Code, Message string }
}

type explainedReason struct {
	Reason, Text string
	Certain      bool
}

func explainCommand() *cobra.Command {
	var asks cli.ClientFlags
	var q question
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Ask a running server why a prompt matches no further",
		Long: `Asks a running server how far each instance holds a prompt, where the prefix ends and why.

The first line is the verdict. Then come the three ranks that hold most, each with the first
block that it lacks and the reason; --all shows every rank, by instance. A reason with
"(possible)" is one of several that would look the same. docs/reading-answers.md, which the
server serves under /docs/reading-answers, says what each reason means.

The exit status is 0 after an answer, whatever it says, and 1 without one.`,
		Example: "  conductor explain --model deepseek --block-size 16 --tokens 1,2,3,4\n" +
			"  tokenize prompt.txt | conductor explain --model deepseek --block-size 16 --tokens - --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.readPrompt(cmd.InOrStdin()); err != nil {
				return err
			}
			server, err := asks.Client()
			if err != nil {
				return err
			}
			request := q.requestBody()
			request["token_ids"] = q.list
			var raw json.RawMessage
			if err := server.Post(cmd.Context(), "/admin/explain", request, &raw); err != nil {
				return err
			}
			if asJSON {
				var b bytes.Buffer
				json.Indent(&b, raw, "", "  ") // valid: it was decoded
				b.WriteByte('\n')
				return cli.PrintRaw(cmd.OutOrStdout(), b.Bytes())
			}
			var answer explained
			if err := json.Unmarshal(raw, &answer); err != nil {
				return fmt.Errorf("the answer of %s cannot be read: %w", server.Base, err)
			}
			return printExplained(cmd.OutOrStdout(), &answer, all)
		},
	}
	asks.Add(cmd, true)
	q.addPromptFlags(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "show every rank and pool, not the three best ranks alone")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	for _, name := range []string{"model", "block-size", "tokens"} {
		cmd.MarkFlagRequired(name)
	}
	return cmd
}

// bestShown is how many ranks explain shows without --all.
const bestShown = 3

// tooShort is the verdict on a prompt without a whole block.
const tooShort = "too_short"

// printExplained writes an answer as sentences: the verdict, what it is about, and the best ranks or all of them.
func printExplained(out io.Writer, a *explained, all bool) error {
	w := new(strings.Builder)
	if a.Verdict.Text != "" { // older servers have none
		cli.Fprintf(w, "%s\n", a.Verdict.Text)
	}
	if a.Verdict.Kind != tooShort {
		cli.Fprintf(w, "The prompt has %s: %s of %s.\n", spelling.Count(a.Tokens, "token"), spelling.Count(a.Blocks, "whole block"),
			spelling.Count(a.BlockSize, "token"))
	}
	printReasons(w, "", slices.DeleteFunc(slices.Clone(a.Reasons), func(r explainedReason) bool { return r.Text == a.Verdict.Text }))
	if all {
		for _, in := range a.Instances {
			cli.Fprintf(w, "\n%s can serve %s, pools included.\n", in.Instance, spelling.Count(in.Longest, "block"))
			if !in.Serves {
				fmt.Fprintf(w, "  A query has no row of it: it is not registered for the adapter.\n")
			}
			for i := range in.Ranks {
				printHolder(w, "  ", "", &in.Ranks[i])
			}
		}
		for i := range a.Pools {
			cli.Fprintf(w, "\nPool %s:\n", a.Pools[i].Source)
			printHolder(w, "  ", "", &a.Pools[i])
		}
	} else if a.Verdict.Kind != tooShort {
		printBest(w, a)
	}
	_, err := io.WriteString(out, w.String())
	return err
}

// printBest writes the ranks that hold most, and the pools that hold something.
func printBest(w *strings.Builder, a *explained) {
	type rank struct {
		instance string
		longest  int
		*explainedHolder
	}
	var ranks []rank
	for i := range a.Instances {
		in := &a.Instances[i]
		for j := range in.Ranks {
			ranks = append(ranks, rank{in.Instance, in.Longest, &in.Ranks[j]})
		}
	}
	slices.SortStableFunc(ranks, func(a, b rank) int { return b.Matched - a.Matched })
	shown := min(len(ranks), bestShown)
	for _, r := range ranks[:shown] {
		fmt.Fprintln(w)
		printHolder(w, "", r.instance+", rank ", r.explainedHolder)
		if r.longest > r.Matched {
			cli.Fprintf(w, "  With what pools and its other ranks hold, %s can serve %s.\n", r.instance, spelling.Count(r.longest, "block"))
		}
	}
	left := len(a.Pools)
	for i := range a.Pools {
		if p := &a.Pools[i]; len(p.Media) > 0 {
			left--
			fmt.Fprintln(w)
			printHolder(w, "", "Pool, rank ", p)
		}
	}
	var rest []string
	if n := len(ranks) - shown; n > 0 {
		rest = append(rest, spelling.Count(n, "more rank"))
	}
	if left > 0 {
		rest = append(rest, spelling.Count(left, "pool")+" without a block of the prompt")
	}
	if len(rest) > 0 {
		cli.Fprintf(w, "\nNot shown: %s (--all).\n", strings.Join(rest, ", "))
	}
}

// printHolder writes what one source holds as one rank, where that ends and why.
func printHolder(w *strings.Builder, indent, name string, h *explainedHolder) {
	if name == "" {
		name = "Rank "
	}
	cli.Fprintf(w, "%s%s%d (%s, %s) holds %s", indent, name, h.Rank, h.Source, h.State, spelling.Count(h.Matched, "block"))
	for i, m := range h.Media {
		cli.Fprintf(w, "%s %s %s", map[bool]string{true: ":", false: ","}[i == 0], m.Medium, formatRuns(m.Runs))
	}
	w.WriteString(".\n")
	if h.End != nil {
		cli.Fprintf(w, "%s  It lacks block %d, tokens %d to %d:\n", indent, h.End.Block, h.End.Tokens[0], h.End.Tokens[1]-1)
		printReasons(w, indent+"    ", h.End.Reasons)
	}
	for _, f := range h.Findings {
		cli.Fprintf(w, "%s    Finding %s: %s\n", indent, f.Code, f.Message)
	}
}

func printReasons(w *strings.Builder, indent string, all []explainedReason) {
	for _, r := range all {
		sure := ""
		if !r.Certain {
			sure = " (possible)"
		}
		cli.Fprintf(w, "%s%s%s: %s\n", indent, r.Reason, sure, r.Text)
	}
}

// formatRuns returns runs of blocks as text, both ends included.
func formatRuns(all [][2]int) string {
	parts := make([]string, len(all))
	for i, r := range all {
		if parts[i] = fmt.Sprintf("%d-%d", r[0], r[1]-1); r[1]-r[0] == 1 {
			parts[i] = fmt.Sprint(r[0])
		}
	}
	return strings.Join(parts, "+")
}
