package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/lab/harness"
)

// Churn is the process of the publishers when they publish while it is measured, at Batches a second over
// all instances. A batch is what an engine that is full says of one prompt: it stores churnBlocks blocks, and removes
// those of an older prompt from the last one on, each in an event of its own as vLLM does.
type Churn struct {
	Load
	Server  string // its URL
	Batches int    // a second
}

const (
	churnBlocks = 32 // of 16 tokens by default: half of a usual turn of a chat
	churnDepth  = 8  // prompts of an instance that are stored before the first is removed
)

// Orders of the parent, one a line. Each is answered by the number of batches sent so far.
const (
	orderPublish = "publish"
	orderSilence = "silence"
)

// Serve fills the index of the server, says hello on out and obeys the orders on in until in ends.
func (c *Churn) Serve(in io.Reader, out io.Writer) error {
	if _, _, core := harness.Allowed(); core != "" {
		if err := harness.Pin(core); err != nil {
			return err
		}
	}
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(2000) // a collection every few seconds: each takes the core of the client for some milliseconds
	p := c.Load.newPublishers(&served{Server: &harness.Server{URL: c.Server}})
	defer p.disconnectAll()
	orders := readOrders(in)
	filled := make(chan error, 1)
	go func() { filled <- p.fillIndex() }()
	select {
	case err := <-filled:
		if err != nil {
			return err
		}
	case <-orders: // before the hello there are none
		return errors.New("the bench ended before the index was filled")
	}
	e := json.NewEncoder(out)
	if err := e.Encode(hello{}); err != nil {
		return err
	}
	var next <-chan time.Time
	var due time.Time
	sent := 0
	step := time.Second / time.Duration(max(c.Batches, 1))
	for {
		select {
		case order, more := <-orders:
			if !more {
				return nil
			}
			if due, next = time.Now(), time.After(0); order == orderSilence {
				next = nil
			}
			if err := e.Encode(sent); err != nil {
				return err
			}
		case <-next:
			for ; !due.After(time.Now()); due = due.Add(step) {
				if err := p.publishChurn(sent); err != nil {
					return fmt.Errorf("cannot publish: %w", err)
				}
				sent++
			}
			next = time.After(time.Until(due))
		}
	}
}

// publishChurn publishes a batch, the n-th of all.
func (p *publishers) publishChurn(n int) error {
	l := p.load
	source, turn := n%l.Workers, n/l.Workers
	chain := func(turn int) (hashes []uint64) {
		for i := range churnBlocks {
			h := (uint64(turn)<<32 | uint64(source)<<8 | uint64(i)) * 0xd6e8feb86659fd93
			hashes = append(hashes, h^h>>32)
		}
		return hashes
	}
	tokens := randomTokens(nil, ofChurn, n, churnBlocks*l.BlockSize)
	events := []any{map[string]any{
		"type": "BlockStored", "block_hashes": chain(turn), "parent_block_hash": nil, "token_ids": harness.Compact[uint32](tokens),
		"block_size": l.BlockSize, "lora_id": nil, "medium": "GPU", "lora_name": nil,
	}}
	if turn >= churnDepth {
		old := chain(turn - churnDepth)
		for i := len(old) - 1; i >= 0; i-- {
			events = append(events, map[string]any{"type": "BlockRemoved", "block_hashes": old[i : i+1], "medium": "GPU"})
		}
	}
	payload, err := msgpack.Marshal([]any{float64(time.Now().UnixNano()) / 1e9, events, 0})
	if err != nil {
		return err
	}
	return p.sendBatch(source, payload)
}

// churning is that process as its parent sees it.
type churning struct{ *harness.Process }

// startChurn runs the process until it has filled the index of the server.
func startChurn(cmd *exec.Cmd) (*churning, error) {
	p, err := harness.Start("publishing", cmd)
	if err != nil {
		return nil, err
	}
	if _, err := p.Line(); err != nil {
		p.Stop()
		return nil, err
	}
	return &churning{p}, nil
}

// sendOrder gives an order and returns how many batches have been sent.
func (c *churning) sendOrder(text string) (sent int, err error) {
	if _, err := fmt.Fprintln(c, text); err != nil {
		return 0, fmt.Errorf("the publishing process is gone: %w", err)
	}
	line, err := c.Line()
	if err == nil {
		err = json.Unmarshal(line, &sent)
	}
	return sent, err
}
