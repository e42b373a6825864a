// The picker-demo program starts a Conductor, and compares the picker with what Envoy does without it, over a simulated fleet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	envoy "example.com/conductor/integrations/envoy/demo"
	"example.com/conductor/lab/demo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program. It returns its exit status: 2 if the flags are wrong, 1 if something broke.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var d envoy.Options
	var program string
	var grid grid
	flags := flag.NewFlagSet("picker-demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&program, "conductor", "conductor", "`path` of the server's program")
	flags.StringVar(&d.Trace, "trace", "", "Mooncake trace `file` to replay instead of generated conversations")
	flags.IntVar(&d.Requests, "requests", 0, "requests to route, and as many in bursts; 0 for the whole trace, or as many as are usual")
	flags.Uint64Var(&d.Seed, "seed", 0, "seed of everything random, 0 for a new one each time")
	flags.BoolVar(&d.NoBursts, "no-bursts", false, "leave the bursts out")
	flags.Func("only", "`expression` that matches the policies to compare with the oracle", func(text string) (err error) {
		d.Only, err = regexp.Compile(text)
		return err
	})
	flags.BoolVar(&grid.on, "grid", false, "compare weights of the picker instead")
	flags.StringVar(&grid.pickers, "pickers", "1,3", "with --grid, how many pickers there are")
	flags.StringVar(&grid.wait, "wait", "0.5,1,2,4", "with --grid, weights of the wait; that of computing is 1")
	flags.StringVar(&grid.load, "load", "0,1", "with --grid, weights of the load")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "picker-demo: unexpected %q\n", flags.Arg(0))
		return 2
	}
	for d.Seed == 0 {
		d.Seed = rand.Uint64()
	}
	fmt.Fprintf(stdout, "seed:   %d\n", d.Seed)
	err := compare(ctx, d, grid, program, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "picker-demo: %v\n", err)
		return 1
	}
	return 0
}

// grid says which pickers are compared in place of the policies.
type grid struct {
	on                  bool
	pickers, wait, load string
}

func (g *grid) weights() ([]envoy.SharedBy, error) {
	if !g.on {
		return nil, nil
	}
	float := func(text string) (float64, error) { return strconv.ParseFloat(text, 64) }
	counts, err := numbers("--pickers", g.pickers, strconv.Atoi)
	if err != nil {
		return nil, err
	}
	waits, err := numbers("--wait", g.wait, float)
	if err != nil {
		return nil, err
	}
	loads, err := numbers("--load", g.load, float)
	if err != nil {
		return nil, err
	}
	return envoy.Weights(counts, waits, loads), nil
}

// compare compares policies against a server of its own.
func compare(ctx context.Context, d envoy.Options, g grid, program string, stdout, stderr io.Writer) error {
	weights, err := g.weights()
	if err != nil {
		return err
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("--conductor names no program: %w", err)
	}
	serve := func(args ...string) *exec.Cmd { return exec.Command(path, args...) } // #nosec G204 -- the server that --conductor names
	server, err := demo.Start(ctx, serve, false, 0, stderr)
	if err != nil {
		return err
	}
	return errors.Join(envoy.Run(ctx, d, weights, server.URL, stdout, stderr), server.Stop())
}

// numbers reads numbers with commas between them.
func numbers[T any](flag, text string, read func(string) (T, error)) (all []T, err error) {
	for _, one := range strings.Split(text, ",") {
		n, err := read(strings.TrimSpace(one))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		all = append(all, n)
	}
	return all, nil
}
