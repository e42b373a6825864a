package recovery

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"example.com/conductor/lab/harness"
)

// Engines are the engines of processes that run Fleet.
type Engines struct {
	Ports     []Ends
	processes []*harness.Process
	of        []int // how many engines each process has
}

// StartEngines starts the processes. The engines publish nothing yet.
func StartEngines(cmds ...*exec.Cmd) (*Engines, error) {
	e := &Engines{}
	for _, cmd := range cmds {
		process, err := harness.Start("engines'", cmd)
		if err != nil {
			e.Stop()
			return nil, err
		}
		e.processes = append(e.processes, process)
	}
	for i := range e.processes {
		var ports []Ends
		if err := e.readAnswer(i, &ports); err != nil {
			e.Stop()
			return nil, err
		}
		e.Ports, e.of = append(e.Ports, ports...), append(e.of, len(ports))
	}
	return e, nil
}

// Stop ends the processes.
func (e *Engines) Stop() {
	for _, p := range e.processes {
		p.Stop()
	}
}

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
		if err := e.sendOrder(order{To: slices.Repeat([]uint64{min(batches, least+ahead)}, len(e.Ports))}); err != nil {
			return err
		}
		return fmt.Errorf("%d of %d batches are applied", least, batches)
	})
}

// awaitRest waits until the engines have published all that they were told to, and lets them publish
// nothing more. It returns how many batches each has published.
func (e *Engines) awaitRest() (sent []uint64, err error) {
	if err := e.sendOrder(order{Rest: true}); err != nil {
		return nil, err
	}
	for i := range e.processes {
		var of []uint64
		if err := e.readAnswer(i, &of); err != nil {
			return nil, err
		}
		sent = append(sent, of...)
	}
	return sent, nil
}

// sendOrder gives each process its part of an order.
func (e *Engines) sendOrder(o order) error {
	busy := cmp.Or(o.Busy, len(e.Ports))
	first := 0
	for i, n := range e.of {
		part := order{Rest: o.Rest, Busy: min(n, max(0, busy-first))}
		if o.To != nil {
			part.To = o.To[first : first+n]
		}
		part.Rate = o.Rate * float64(part.Busy) / float64(busy)
		if err := json.NewEncoder(e.processes[i]).Encode(part); err != nil {
			return fmt.Errorf("cannot tell engines what to publish: %w", err)
		}
		first += n
	}
	return nil
}

// readAnswer reads an answer of a process.
func (e *Engines) readAnswer(process int, into any) error {
	line, err := e.processes[process].Line()
	if err != nil {
		return err
	}
	return json.Unmarshal(line, into)
}
