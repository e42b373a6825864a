package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
)

// explained is what the sentences need of an answer of /admin/explain.
type explained struct {
	Blocks, Tokens int
	BlockSize      int `json:"block_size"`
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
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Ask a running server why a prompt matches no further",
		Long: "Ask a running server how far each instance holds a prompt, where the prefix ends and why.\n" +
			"The exit status is 0 after an answer, whatever it says, and 1 without one.",
		Example: "  conductor explain --model deepseek --block-size 16 --tokens 1,2,3,4\n" +
			"  tokenize prompt.txt | conductor explain --model deepseek --block-size 16 --tokens - --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.read(cmd.InOrStdin()); err != nil {
				return err
			}
			server, err := asks.Client()
			if err != nil {
				return err
			}
			request := q.request()
			request["token_ids"] = q.list
			var raw json.RawMessage
			if err := server.Post(cmd.Context(), "/admin/explain", request, &raw); err != nil {
				return err
			}
			if asJSON {
				var b bytes.Buffer
				json.Indent(&b, raw, "", "  ") // valid: it was decoded
				fmt.Fprintln(cmd.OutOrStdout(), b.String())
				return nil
			}
			var answer explained
			if err := json.Unmarshal(raw, &answer); err != nil {
				return fmt.Errorf("the answer of %s cannot be read: %w", server.Base, err)
			}
			return printExplained(cmd.OutOrStdout(), &answer)
		},
	}
	asks.Add(cmd, true)
	q.promptFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	for _, name := range []string{"model", "block-size", "tokens"} {
		cmd.MarkFlagRequired(name)
	}
	return cmd
}

// printExplained writes an answer as sentences.
func printExplained(out io.Writer, a *explained) error {
	w := new(strings.Builder)
	fmt.Fprintf(w, "The prompt has %d tokens, which are %d whole blocks of %d tokens.\n", a.Tokens, a.Blocks, a.BlockSize)
	printReasons(w, "", a.Reasons)
	for _, in := range a.Instances {
		fmt.Fprintf(w, "\n%s can serve %d blocks, pools included.\n", in.Instance, in.Longest)
		if !in.Serves {
			fmt.Fprintf(w, "  A query has no row of it: it is not registered for the adapter.\n")
		}
		for i := range in.Ranks {
			printHolder(w, &in.Ranks[i])
		}
	}
	for i := range a.Pools {
		fmt.Fprintf(w, "\nPool %s:\n", a.Pools[i].Source)
		printHolder(w, &a.Pools[i])
	}
	_, err := io.WriteString(out, w.String())
	return err
}

// printHolder writes what one source holds as one rank, where that ends and why.
func printHolder(w *strings.Builder, h *explainedHolder) {
	fmt.Fprintf(w, "  Rank %d (%s, %s) holds %d blocks", h.Rank, h.Source, h.State, h.Matched)
	for i, m := range h.Media {
		fmt.Fprintf(w, "%s %s %s", map[bool]string{true: ":", false: ","}[i == 0], m.Medium, runs(m.Runs))
	}
	w.WriteString(".\n")
	if h.End != nil {
		fmt.Fprintf(w, "  It lacks block %d, tokens %d to %d:\n", h.End.Block, h.End.Tokens[0], h.End.Tokens[1]-1)
		printReasons(w, "    ", h.End.Reasons)
	}
	for _, f := range h.Findings {
		fmt.Fprintf(w, "    Finding %s: %s\n", f.Code, f.Message)
	}
}

func printReasons(w *strings.Builder, indent string, all []explainedReason) {
	for _, r := range all {
		sure := ""
		if !r.Certain {
			sure = " (possible)"
		}
		fmt.Fprintf(w, "%s%s%s: %s\n", indent, r.Reason, sure, r.Text)
	}
}

// runs prints runs of blocks, both ends included.
func runs(all [][2]int) string {
	parts := make([]string, len(all))
	for i, r := range all {
		if parts[i] = fmt.Sprintf("%d-%d", r[0], r[1]-1); r[1]-r[0] == 1 {
			parts[i] = fmt.Sprint(r[0])
		}
	}
	return strings.Join(parts, "+")
}
