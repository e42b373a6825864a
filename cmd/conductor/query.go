package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
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

// numberOf returns the number of a key, 0 if the row lacks it.
func (r queryRow) numberOf(key string) (n int) {
	json.Unmarshal(r[key], &n)
	return n
}

// question is one prompt, as the flags of query and replay give it.
type question struct {
	tokens, hashes                  string
	tenant, model, lora, salt, inst string
	blockSize                       int
	list                            []uint64 // set by readPrompt
	expected                        bool     // ask how much instances are expected to have soon as well
	asJSON                          bool     // print the answer as it is
}

// addFlags defines all flags of a question.
func (q *question) addFlags(cmd *cobra.Command) {
	q.addPromptFlags(cmd)
	cmd.Flags().StringVar(&q.hashes, "seq-hashes", "", "canonical seq hashes instead of tokens; - reads standard input")
	cmd.MarkFlagsMutuallyExclusive("tokens", "seq-hashes")
}

// addPromptFlags defines the flags of a question about tokens.
func (q *question) addPromptFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&q.model, "model", "", "model `name`")
	f.IntVar(&q.blockSize, "block-size", 0, "`tokens` per block")
	f.StringVar(&q.tokens, "tokens", "", "token ids of the prompt, separated by commas or spaces; - reads standard input")
	f.StringVar(&q.tenant, "tenant", "", "tenant `name` (default \"default\")")
	f.StringVar(&q.lora, "lora", "", "adapter `name`")
	f.StringVar(&q.salt, "salt", "", "cache salt")
	f.StringVar(&q.inst, "instance", "", "answer for this instance only")
}

// readPrompt checks what every question needs, and reads the tokens or hashes of the prompt into list, from the flags or from
// standard input.
func (q *question) readPrompt(stdin io.Reader) (err error) {
	if q.model == "" {
		return cli.Usagef("--model: the name is empty")
	}
	if q.blockSize < 1 {
		return cli.Usagef("--block-size: %d is not a number of tokens, which is 1 or more", q.blockSize)
	}
	if q.hashes != "" {
		q.list, err = parseNumbers(numberKind{"--seq-hashes", "hash", math.MaxUint64}, q.hashes, stdin)
	} else {
		q.list, err = parseNumbers(numberKind{"--tokens", "token id", math.MaxUint32}, q.tokens, stdin)
	}
	return err
}

// requestBody returns the body of the request, in which sendAndPrint sets the prompt.
func (q *question) requestBody() map[string]any {
	request := map[string]any{"model": q.model, "block_size": q.blockSize, "tenant_id": q.tenant, "lora_name": q.lora, "cache_salt": q.salt}
	if q.inst != "" {
		request["instance_id"] = q.inst
	}
	if q.expected {
		request["expected"] = true
	}
	return request
}

// sendAndPrint sends the question, whose prompt readPrompt has read, and prints the answer as a table or as JSON.
func (q *question) sendAndPrint(cmd *cobra.Command, server *cli.Client) error {
	request := q.requestBody()
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
		cmd.PrintErrln("warning:", cli.Printable(w))
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
			if err := q.readPrompt(cmd.InOrStdin()); err != nil {
				return err
			}
			server, err := asks.Client()
			if err != nil {
				return err
			}
			return q.sendAndPrint(cmd, server)
		},
	}
	asks.Add(cmd, true)
	q.addFlags(cmd)
	cmd.Flags().BoolVar(&q.expected, "expected", false,
		"show how much each instance has or is expected to have soon, by what routers have reported")
	cmd.Flags().BoolVar(&q.asJSON, "json", false, "print the answer as JSON")
	cmd.MarkFlagRequired("model")
	cmd.MarkFlagRequired("block-size")
	cmd.MarkFlagsOneRequired("tokens", "seq-hashes")
	return cmd
}

// numberKind is what the numbers of a flag are.
type numberKind struct {
	flag, name string
	most       uint64
}

// parseNumbers returns the numbers of a text, separated by commas, spaces or brackets. The text "-" stands for standard input.
func parseNumbers(of numberKind, text string, stdin io.Reader) ([]uint64, error) {
	where := "the prompt"
	if text == "-" {
		raw, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("cannot read standard input: %w", err)
		}
		text, where = string(raw), "standard input"
	}
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n[]", r) })
	if len(words) == 0 {
		return nil, cli.Usagef("%s: %s is empty", of.flag, where)
	}
	list := make([]uint64, len(words))
	for i, w := range words {
		n, err := strconv.ParseUint(w, 10, 64)
		if err != nil || n > of.most {
			return nil, cli.Usagef("%s[%d]: %q is no %s, which is a whole number from 0 to %d", of.flag, i, w, of.name, of.most)
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
			if n := rows[b].numberOf("longest_matched") - rows[a].numberOf("longest_matched"); n != 0 {
				return n
			}
			return strings.Compare(a, b)
		})
		for _, name := range names {
			r := rows[name]
			if expected {
				column = fmt.Sprintf("%d\t", r.numberOf("expected"))
			}
			cli.Fprintf(w, "%s\t%s\t%d\t"+column+"%d\t%d\t%d\t%s\t%s\n", tenant, name, r.numberOf("longest_matched"),
				r.numberOf("GPU"), r.numberOf("CPU"), r.numberOf("DISK"), formatRanks(r["DP"]), formatStates(r["detail"]))
		}
	}
	return w.Flush()
}

// formatRanks returns rank:tokens pairs, ordered by rank.
func formatRanks(raw json.RawMessage) string {
	var ranks map[int]int
	json.Unmarshal(raw, &ranks) // an absent object prints as nothing
	var parts []string
	for _, r := range slices.Sorted(maps.Keys(ranks)) {
		parts = append(parts, fmt.Sprintf("%d:%d", r, ranks[r]))
	}
	return strings.Join(parts, " ")
}

// formatStates returns the states of a row's sources, each once.
func formatStates(raw json.RawMessage) string {
	var detail map[int]struct{ State string }
	json.Unmarshal(raw, &detail) // an absent object prints as nothing
	seen := make(map[string]bool)
	for _, d := range detail {
		seen[d.State] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), ",")
}
