package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/history"
	"example.com/conductor/history/diff"
	"example.com/conductor/history/peer"
	"example.com/conductor/redact"
)

// errDiffers is the end of a comparison that found a difference.
var errDiffers = errors.New("the two differ")

func diffCommand() *cobra.Command {
	var (
		keyFile, source string
		limit           int
		asks            cli.ClientFlags
		all, asJSON     bool
	)
	cmd := &cobra.Command{
		Use:   "diff SERVER SERVER",
		Short: "Compare what two servers hold, block by block",
		Long: `Takes a snapshot of each server and lists the blocks that one holds and the other
does not, with the reason for each source. SERVER is the address of a listener,
host:port or a URL, or the name of a snapshot file.

Two snapshots are of two moments. A source that was one batch further on one side
differs by that batch, and the reason says so. A difference at equal batches is one
that no later event mends. The exit status is 1 if there is any difference.`,
		Example: "  conductor diff conductor-0:13333 conductor-1:13333\n" +
			"  conductor diff conductor-0:13333 conductor-1:13333 --source 'prefill-1|default|0' --limit 0",
		Args: cobra.ExactArgs(2),
	}
	f := cmd.Flags()
	asks.Add(cmd, false)
	f.StringVar(&source, "source", "", "compare one source alone, by its `KEY`: instance|tenant|rank")
	f.IntVar(&limit, "limit", 20, "blocks to list; 0 lists all")
	f.BoolVar(&all, "all", false, "show sources without a difference too")
	f.StringVar(&keyFile, "key-file", "", "key that opens the salts of snapshot files, as snapshot.key_file")
	f.BoolVar(&asJSON, "json", false, "print JSON lines instead of tables")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cmd.SilenceUsage = true
		ctx, stop := cli.UntilSignal(cmd)
		defer stop()
		key := history.NoKey
		if keyFile != "" {
			var err error
			if key, err = history.ReadSealingKey(keyFile); err != nil {
				return err
			}
		}
		var both [2]*diff.Loaded
		for i, name := range args {
			l, err := loadSnapshot(ctx, &asks, name, key)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			defer l.Close()
			both[i] = l
		}
		p := &diffPrinter{out: cmd.OutOrStdout(), source: source, limit: limit, asJSON: asJSON,
			names: []string{redact.Word(args[0]), redact.Word(args[1])}}
		sources, err := diff.Compare(both[0], both[1], all, p.block)
		if err != nil {
			return err
		}
		return p.sources(sources)
	}
	return cmd
}

// loadSnapshot takes a snapshot of a server, or reads a file.
func loadSnapshot(ctx context.Context, asks *cli.ClientFlags, name string, key *history.SealingKey) (*diff.Loaded, error) {
	if !strings.Contains(name, "://") {
		file, err := os.Open(name)
		if err == nil {
			defer file.Close()
			return diff.Load(file, key.Open)
		}
		switch {
		case !errors.Is(err, os.ErrNotExist):
			return nil, err
		case !strings.Contains(name, ":"):
			return nil, errors.New("there is no such file, and host:port would name a server")
		}
	}
	base, err := asks.BaseOf(name)
	if err != nil {
		return nil, cli.Usagef("%w", err)
	}
	server, err := asks.ClientOf(base, 0)
	if err != nil {
		return nil, err
	}
	image, err := server.Stream(ctx, peer.SnapshotPath, "")
	if err != nil {
		return nil, err
	}
	defer image.Close()
	return diff.Load(image, key.Open)
}

// diffPrinter prints differences.
type diffPrinter struct {
	out    io.Writer
	source string
	limit  int
	asJSON bool
	names  []string
	listed []diff.Block
	more   int
}

// meant reports whether a source is asked for.
func (p *diffPrinter) meant(key fmt.Stringer) bool { return p.source == "" || p.source == key.String() }

// block takes a block that one side lacks.
func (p *diffPrinter) block(b diff.Block) {
	switch {
	case !p.meant(b.Source):
	case p.limit > 0 && len(p.listed) == p.limit:
		p.more++
	default:
		p.listed = append(p.listed, b)
	}
}

// blockRow is a block in JSON.
type blockRow struct {
	Source    string `json:"source"`
	Model     string `json:"model"`
	BlockSize int    `json:"block_size"`
	Lora      string `json:"lora_name"`
	Rank      int32  `json:"dp_rank"`
	Medium    string `json:"medium"`
	Engine    uint64 `json:"engine_hash"`
	Key       uint64 `json:"seq_hash"`
	Only      string `json:"only"`
}

// sourceRow is a source in JSON.
type sourceRow struct {
	Source string `json:"source"`
	Blocks [2]int `json:"blocks"`
	Only   [2]int `json:"only"`
	Equal  bool   `json:"equal_batches"`
	Why    string `json:"why"`
}

// sources prints everything. The error is errDiffers if something differs.
func (p *diffPrinter) sources(all []diff.SourceDifference) error {
	differs := false
	t := tabwriter.NewWriter(p.out, 0, 8, 2, ' ', 0)
	lines := json.NewEncoder(p.out)
	if !p.asJSON {
		cli.Fprintf(p.out, "first: %s\nsecond: %s\n\n", p.names[0], p.names[1])
		fmt.Fprintf(t, "source\tfirst\tsecond\tonly first\tonly second\twhy\n")
	}
	var err error
	for _, s := range all {
		if !p.meant(s.Source) {
			continue
		}
		differs = differs || s.Why != ""
		if p.asJSON {
			err = errors.Join(err, lines.Encode(sourceRow{s.Source.String(), s.Blocks, s.Only, s.AtEqualBatches, s.Why}))
			continue
		}
		cli.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%s\n", s.Source, s.Blocks[0], s.Blocks[1], s.Only[0], s.Only[1], s.Why)
	}
	err = errors.Join(err, t.Flush())
	if !p.asJSON && len(p.listed) > 0 {
		fmt.Fprintf(p.out, "\n")
		fmt.Fprintf(t, "only\tsource\trank\tmedium\tmodel\tengine hash\tseq hash\n")
	}
	for _, b := range p.listed {
		only := "first"
		if b.Second {
			only = "second"
		}
		d := b.Deployment
		if p.asJSON {
			err = errors.Join(err, lines.Encode(blockRow{b.Source.String(), d.Model, d.BlockSize, b.Variant.Lora, b.Rank, b.Medium,
				b.Engine, b.Key, only}))
			continue
		}
		cli.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%d\t%d\n", only, b.Source, b.Rank, b.Medium, d.Model, b.Engine, b.Key)
	}
	err = errors.Join(err, t.Flush())
	if p.more > 0 && !p.asJSON {
		cli.Fprintf(p.out, "and %d more; --limit 0 lists all\n", p.more)
	}
	switch {
	case err != nil:
		return err
	case differs:
		return errDiffers
	case !p.asJSON:
		fmt.Fprintln(p.out, "no difference")
	}
	return nil
}
