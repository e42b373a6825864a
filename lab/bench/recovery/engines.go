package recovery

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"example.com/conductor/lab/harness"
)

// Engines are the engines of a process that runs Fleet.
type Engines struct {
	Ports   []Ends
	process *harness.Process
}

// StartEngines starts them. They publish nothing yet.
func StartEngines(cmd *exec.Cmd) (*Engines, error) {
	process, err := harness.Start("engines'", cmd)
	if err != nil {
		return nil, err
	}
	e := &Engines{process: process}
	if err := e.read(&e.Ports); err != nil {
		e.Stop()
		return nil, err
	}
	return e, nil
}

// Stop ends the process.
func (e *Engines) Stop() { e.process.Stop() }

// Fill lets the engines publish, not far ahead of a server, until that has applied the given number of
// batches of each.
func (e *Engines) Fill(s *harness.Server, batches uint64) error {
	ahead := max(1, batches/16)
	return s.Until(20*time.Millisecond, func() error {
		past, err := s.Applied(len(e.Ports))
		if err != nil {
			return err
		}
		least := slices.Min(past)
		if least >= batches {
			return nil
		}
		if err := e.order(order{To: slices.Repeat([]uint64{min(batches, least+ahead)}, len(e.Ports))}); err != nil {
			return err
		}
		return fmt.Errorf("%d of %d batches are applied", least, batches)
	})
}

// rest waits until the engines have published all that they were told to, and lets them publish
// nothing more. It returns how many batches each has published.
func (e *Engines) rest() (sent []uint64, err error) {
	if err := e.order(order{Rest: true}); err != nil {
		return nil, err
	}
	err = e.read(&sent)
	return sent, err
}

func (e *Engines) order(o order) error { return json.NewEncoder(e.process).Encode(o) }

// read reads an answer of the engines.
func (e *Engines) read(into any) error {
	line, err := e.process.Line()
	if err != nil {
		return err
	}
	return json.Unmarshal(line, into)
}
