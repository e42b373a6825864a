package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/compat/dynamo"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/config"
)

const (
	// indexerName is the command of Dynamo's indexer; called by it, this program
	// takes its flags alone.
	indexerName = "dynamo-kv-indexer"
	indexerPort = 8090
)

// calledAsIndexer reports whether the program was started through a link of
// that name.
func calledAsIndexer(arg0 string) bool {
	return strings.TrimSuffix(filepath.Base(arg0), ".exe") == indexerName
}

// indexerFlags are the flags of Dynamo's indexer that are no settings.
type indexerFlags struct {
	set *pflag.FlagSet

	port         uint16
	threads      uint
	blockSize    uint32
	modelName    string
	tenantID     string
	routingGroup string
	workers      string
}

func addIndexerFlags(fs *pflag.FlagSet, port uint16) *indexerFlags {
	f := &indexerFlags{set: fs}
	fs.Uint16Var(&f.port, "port", port, "port on all addresses for the Dynamo dialect, in place of its listeners in other settings")
	fs.UintVar(&f.threads, "threads", 4, "accepted without effect: sources are followed in parallel on all processors")
	fs.Uint32Var(&f.blockSize, "block-size", 0, "tokens a block of the --workers")
	fs.StringVar(&f.modelName, "model-name", "default", "model of the --workers")
	fs.StringVar(&f.tenantID, "tenant-id", scope.DefaultTenant, "the same as --routing-group, which wins")
	fs.StringVar(&f.routingGroup, "routing-group", scope.DefaultTenant, "routing group of the --workers")
	fs.StringVar(&f.workers, "workers", "", "`list` of engines to follow from the start: instance_id[:dp_rank]=zmq_address,…")
	return f
}

// dynamoServer returns the settings that the flags stand for. Flags that were not given set nothing. Its errors are in Dynamo's
// words.
func (f *indexerFlags) dynamoServer() (out config.DynamoServer, err error) {
	if f.set.Changed("port") {
		out.Address = "0.0.0.0:" + strconv.Itoa(int(f.port))
	}
	if !f.set.Changed("workers") {
		return out, nil
	}
	if !f.set.Changed("block-size") {
		return out, errors.New("--block-size is required when --workers is specified")
	}
	workers, err := dynamo.ParseWorkers(f.workers)
	if err != nil {
		return out, err
	}
	if f.blockSize == 0 || f.blockSize > math.MaxInt32 {
		return out, fmt.Errorf("--block-size %d is out of range 1 to %d", f.blockSize, math.MaxInt32)
	}
	for _, w := range workers {
		if w.Rank > math.MaxInt32 {
			return out, fmt.Errorf("dp_rank %d of instance %d is out of range 0 to %d", w.Rank, w.Instance, math.MaxInt32)
		}
		out.Workers = append(out.Workers, config.Source{Registration: registration.Registration{
			Endpoint: w.Endpoint, Type: registration.TypeVLLM, Model: f.modelName, Tenant: f.tenant(),
			Instance: strconv.FormatUint(w.Instance, 10), BlockSize: int(f.blockSize), Rank: int(w.Rank),
			Clear: registration.ClearAll, // as Dynamo reads it
		}})
	}
	return out, nil
}

// tenant returns the routing group if one is given, else the tenant.
func (f *indexerFlags) tenant() string {
	if f.set.Changed("routing-group") && f.routingGroup != "" {
		return f.routingGroup
	}
	return f.tenantID
}

// remarks returns warnings for an operator who gave flags that have no effect.
func (f *indexerFlags) remarks() (out []string) {
	if f.set.Changed("threads") {
		out = append(out, "--threads has no effect: sources are followed in parallel on all processors; GOMAXPROCS bounds those")
	}
	if f.set.Changed("tenant-id") && f.tenantID != f.tenant() {
		out = append(out, fmt.Sprintf("--tenant-id %q has no effect beside --routing-group %q", f.tenantID, f.routingGroup))
	}
	return out
}

// loadConfig loads the configuration from all its layers. These flags win over the others.
func (f *indexerFlags) loadConfig() (*config.Loaded, error) {
	server, flagErr := f.dynamoServer()
	loaded, err := config.Load(config.Options{Env: os.Environ(), Flags: f.set, Dynamo: server})
	if flagErr != nil {
		err = errors.Join(err, fmt.Errorf("flag --workers: %w", flagErr))
	}
	return loaded, err
}

// indexerCommand is the whole program under Dynamo's name.
func indexerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   indexerName + " [flags]",
		Short: "A KV-cache indexer that speaks the dialect of Dynamo's standalone indexer",
		Long: "Follows the KV-cache events of engines and answers routers on one port, as Dynamo's standalone indexer does.\n" +
			"It is conductor serve with that dialect alone; everything else is set by CONDUCTOR_… variables or a file that\n" +
			"CONDUCTOR_CONFIG_PATH names, whose listeners are left out. DYN_ROUTER_MIN_INITIAL_WORKERS and\n" +
			"DYN_KV_INDEXER_TEST_ENDPOINTS are read too.",
		Args:          cli.Arguments(cobra.NoArgs),
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetVersionTemplate(cli.VersionTemplate)
	cmd.SetFlagErrorFunc(cli.FlagError)
	cmd.Flags().SortFlags = false
	flags := addIndexerFlags(cmd.Flags(), indexerPort)
	config.DynamoFlags(cmd.Flags())
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		server, err := flags.dynamoServer()
		if err != nil {
			return &runError{err}
		}
		server.Address, server.Alone = "0.0.0.0:"+strconv.Itoa(int(flags.port)), true
		loaded, err := config.Load(config.Options{Env: os.Environ(), Flags: cmd.Flags(), Dynamo: server})
		if err == nil {
			err = runServer(cmd, loaded, flags)
		}
		if err != nil {
			return &runError{err}
		}
		return nil
	}
	return cmd
}

// runError is an error of a command line that was understood.
type runError struct{ error }

// indexerMain runs the program under Dynamo's name: errors of the command line
// end it with status 2, all others with 1.
func indexerMain(stderr io.Writer) int {
	err := indexerCommand().Execute()
	var ran *runError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ran):
		fmt.Fprintln(stderr, "Error:", err)
		return 1
	}
	fmt.Fprintf(stderr, "error: %v\n\nFor more information, try '--help'.\n", err)
	return 2
}
