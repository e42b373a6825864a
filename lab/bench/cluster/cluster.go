// Package cluster measures what replicas share over a store: a part for each kind of it.
//
// A store is started for the run, unless its URL is given. It shares the machine with everything
// that is measured.
package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"time"

	"example.com/conductor/internal/freeport"
	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/harness"
)

// Config says what to measure.
type Config struct {
	Parts    []string
	Store    string // URL; "" starts a server
	Load     ingest.Load
	Duration time.Duration // of each phase
	// Part forward: models, tokens of a prompt, and clients at once for rates.
	Models, Tokens, Clients int
	// Parts takeover and reseed: blocks of the shard that Load.Sources engines share, owners of each
	// run of takeover, and registrations without an engine.
	ShardBlocks   int
	Owners        []int
	Registrations int
	// Fleet starts a process that calls recovery.Fleet, Serve a server with flags.
	Fleet    func(ingest.Load) *exec.Cmd
	Serve    func(flags ...string) *exec.Cmd
	Progress harness.Progress
}

// Parts are the names of what can be measured.
var Parts = []string{"forward", "takeover", "reseed"}

// Report is the result, by part.
type Report struct {
	Machine  harness.Machine  `json:"machine"`
	Forward  *ForwardReport   `json:"forward,omitempty"`
	Takeover []TakeoverReport `json:"takeover,omitempty"`
	Reseed   *ReseedReport    `json:"reseed,omitempty"`
}

// Table writes it for people.
func (r *Report) Table(w io.Writer) {
	if r.Forward != nil {
		r.Forward.writeTable(w)
	}
	for i := range r.Takeover {
		r.Takeover[i].writeTable(w)
	}
	if r.Reseed != nil {
		r.Reseed.writeTable(w)
	}
}

// Run measures.
func Run(c Config) (*Report, error) {
	if c.Store == "" {
		url, stop, err := startStore()
		if err != nil {
			return nil, err
		}
		defer stop()
		c.Store = url
	}
	r := &Report{Machine: harness.ThisMachine()}
	for _, part := range c.Parts {
		var err error
		switch part {
		case "forward":
			r.Forward, err = c.measureForwarding()
		case "takeover":
			r.Takeover, err = c.measureTakeovers()
		case "reseed":
			r.Reseed, err = c.measureReseed()
		default:
			err = fmt.Errorf("no part is named %q, there are %q", part, Parts)
		}
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// startStore starts a server in memory alone, and returns its URL.
func startStore() (url string, stop func(), err error) {
	addr, err := freeport.Address()
	if err != nil {
		return "", nil, err
	}
	host, port, _ := net.SplitHostPort(addr)
	for _, name := range []string{"valkey-server", "redis-server"} {
		cmd := exec.Command(name, "--bind", host, "--port", port, "--save", "", "--appendonly", "no") // #nosec G204 -- a name of ours
		if err := cmd.Start(); errors.Is(err, exec.ErrNotFound) {
			continue
		} else if err != nil {
			return "", nil, err
		}
		stop := func() { cmd.Process.Kill(); cmd.Wait() }
		for range 1000 {
			if c, err := net.Dial("tcp", addr); err == nil {
				c.Close()
				return "redis://" + addr, stop, nil
			}
			time.Sleep(10 * time.Millisecond)
		}
		stop()
		return "", nil, fmt.Errorf("%s does not listen on %s", name, addr)
	}
	return "", nil, errors.New("neither valkey-server nor redis-server is installed: name a store with --store")
}
