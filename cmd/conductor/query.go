package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
)

// queryRow is one instance of an answer: its numbers by key, and the objects
// that are keyed by rank.
type queryRow map[string]json.RawMessage

func (r queryRow) number(key string) (n int) {
	json.Unmarshal(r[key], &n) // absent keys print as zero
	return n
}

// question is one prompt, as the flags of query and replay give it.
type question struct {
	tokens, hashes                  string
	tenant, model, lora, salt, inst string
	blockSize                       int
	list                            []uint64 // set by read
	expected                        bool     // ask how much instances are expected to have soon as well
	asJSON                          bool     // print the answer as it is
}

// flags defines the flags that are a question.
func (q *question) flags(cmd *cobra.Command) {
	q.promptFlags(cmd)
	cmd.Flags().StringVar(&q.hashes, "seq-hashes", "", "canonical seq hashes instead of tokens; - reads standard input")
	cmd.MarkFlagsMutuallyExclusive("tokens", "seq-hashes")
}

// promptFlags defines the flags that are a question about tokens.
func (q *question) promptFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&q.model, "model", "", "model `name`")
	f.IntVar(&q.blockSize, "block-size", 0, "`tokens` per block")
	f.StringVar(&q.tokens, "tokens", "", "token ids of the prompt, separated by commas or spaces; - reads standard input")
	f.StringVar(&q.tenant, "tenant", "", "tenant `name` (default \"default\")")
	f.StringVar(&q.lora, "lora", "", "adapter `name`")
	f.StringVar(&q.salt, "salt", "", "cache salt")
	f.StringVar(&q.inst, "instance", "", "answer for this instance only")
}

// read reads the prompt.
func (q *question) read(stdin io.Reader) (err error) {
	q.list, err = numbers(q.tokens+q.hashes, stdin)
	return err
}

// request returns the body of the question without the prompt.
func (q *question) request() map[string]any {
	request := map[string]any{"model": q.model, "block_size": q.blockSize, "tenant_id": q.tenant, "lora_name": q.lora, "cache_salt": q.salt}
	if q.inst != "" {
		request["instance_id"] = q.inst
	}
	if q.expected {
		request["expected"] = true
	}
	return request
}

// ask sends the question that was read and prints the answer as a table.
func (q *question) ask(cmd *cobra.Command, server *cli.Client) error {
	request := q.request()
	path, field := "/conductor/v1/query", "token_ids"
	if q.hashes != "" {
		path, field = "/conductor/v1/query_by_hash", "seq_hashes"
	}
	request[field] = q.list
	if q.asJSON {
		var answer json.RawMessage
		if err := server.Post(cmd.Context(), path+"?detail=1", request, &answer); err != nil {
			return err
		}
		return cli.PrintJSON(cmd.OutOrStdout(), answer)
	}
	var fields map[string]json.RawMessage
	if err := server.Post(cmd.Context(), path+"?detail=1", request, &fields); err != nil {
		return err
	}
	answer := make(map[string]map[string]queryRow)
	for name, raw := range fields {
		var rows map[string]queryRow
		if json.Unmarshal(raw, &rows) == nil {
			answer[name] = rows
		}
	}
	printNotes(cmd, fields)
	if len(answer) == 0 {
		cmd.PrintErrln("no instance is registered for this tenant, model, adapter and block size")
		return nil
	}
	return printAnswer(cmd.OutOrStdout(), answer, q.expected)
}

// printNotes prints what an answer says besides rows, which has the names of fields among those of tenants.
func printNotes(cmd *cobra.Command, fields map[string]json.RawMessage) {
	var warnings []string
	json.Unmarshal(fields["warnings"], &warnings) // of a tenant with this name there are none
	for _, w := range warnings {
		cmd.PrintErrln("warning:", w)
	}
	if string(fields["truncated"]) == "true" {
		cmd.PrintErrln("warning: the answer is truncated: some blocks had no room, so a match may be longer")
	}
}

func queryCommand() *cobra.Command {
	var asks cli.ClientFlags
	var q question
	cmd := &cobra.Command{
		Use:        "query",
		SuggestFor: []string{"ask", "match"},
		Short:      "Ask a running server which instance holds how long a prefix",
		Long: `Asks a running server how long a prefix of a prompt each instance holds, as routers do, and
prints one line an instance, the longest first. LONGEST, GPU, CPU and DISK are tokens; PER RANK
has rank:tokens. A prompt is token ids, because the server has no tokenizer: engines answer
POST /tokenize with them. "conductor explain" says why a match ends where it does.`,
		Example: "  conductor query --model deepseek --block-size 16 --tokens 1,2,3,4\n" +
			"  tokenize prompt.txt | conductor query --model deepseek --block-size 16 --tokens -",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.read(cmd.InOrStdin()); err != nil {
				return err
			}
			server, err := asks.Client()
			if err != nil {
				return err
			}
			return q.ask(cmd, server)
		},
	}
	asks.Add(cmd, true)
	q.flags(cmd)
	cmd.Flags().BoolVar(&q.expected, "expected", false,
		"show how much each instance has or is expected to have soon, by what routers have reported")
	cmd.Flags().BoolVar(&q.asJSON, "json", false, "print the answer as JSON")
	cmd.MarkFlagRequired("model")
	cmd.MarkFlagRequired("block-size")
	cmd.MarkFlagsOneRequired("tokens", "seq-hashes")
	return cmd
}

// numbers reads unsigned integers separated by commas, spaces or brackets.
func numbers(text string, stdin io.Reader) ([]uint64, error) {
	if text == "-" {
		raw, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("cannot read standard input: %w", err)
		}
		text = string(raw)
	}
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n[]", r) })
	list := make([]uint64, len(words))
	for i, w := range words {
		n, err := strconv.ParseUint(w, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("number %d of the prompt: %q is no unsigned integer", i, w)
		}
		list[i] = n
	}
	return list, nil
}

// printAnswer writes one line per instance, longest match first, with a column for expected tokens or without.
func printAnswer(out io.Writer, answer map[string]map[string]queryRow, expected bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	column := ""
	if expected {
		column = "EXPECTED\t"
	}
	fmt.Fprintln(w, "TENANT\tINSTANCE\tLONGEST\t"+column+"GPU\tCPU\tDISK\tPER RANK\tSTATE")
	for _, tenant := range slices.Sorted(maps.Keys(answer)) {
		rows := answer[tenant]
		names := slices.SortedFunc(maps.Keys(rows), func(a, b string) int {
			if n := rows[b].number("longest_matched") - rows[a].number("longest_matched"); n != 0 {
				return n
			}
			return strings.Compare(a, b)
		})
		for _, name := range names {
			r := rows[name]
			if expected {
				column = fmt.Sprintf("%d\t", r.number("expected"))
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s%d\t%d\t%d\t%s\t%s\n", tenant, name, r.number("longest_matched"), column,
				r.number("GPU"), r.number("CPU"), r.number("DISK"), perRank(r["DP"]), states(r["detail"]))
		}
	}
	return w.Flush()
}

// perRank prints rank:tokens pairs by rank.
func perRank(raw json.RawMessage) string {
	var ranks map[int]int
	json.Unmarshal(raw, &ranks) // an absent object prints as nothing
	var parts []string
	for _, r := range slices.Sorted(maps.Keys(ranks)) {
		parts = append(parts, fmt.Sprintf("%d:%d", r, ranks[r]))
	}
	return strings.Join(parts, " ")
}

// states prints the states of a row's sources, each once.
func states(raw json.RawMessage) string {
	var detail map[int]struct{ State string }
	json.Unmarshal(raw, &detail) // an absent object prints as nothing
	seen := make(map[string]bool)
	for _, d := range detail {
		seen[d.State] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), ",")
}
