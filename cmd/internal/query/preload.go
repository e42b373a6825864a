package query

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"kvconductor/cmd/internal/ingest"
	"kvconductor/conductor"
	"kvconductor/events/stream"
)

// underWay is how many batches of a source may be under way: a publisher knows no
// back-pressure, and what its subscriber's queue cannot take is lost.
const underWay = 32

// preload registers all instances, publishes what they hold, and waits until it is
// indexed. The publishers stay, silent, until end is called.
func (l *Load) preload(k *conductor.Conductor) (end func(), err error) {
	p := &publishers{load: l, k: k}
	p.moved = sync.NewCond(&p.mu)
	end = func() {
		for _, c := range p.open {
			c.Close()
		}
	}
	if err = p.connect(); err == nil {
		err = p.publish()
	}
	if err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// publishers are the engines of all instances.
type publishers struct {
	load  *Load
	k     *conductor.Conductor
	open  []io.Closer
	conns []net.Conn

	mu      sync.Mutex // guards what follows
	moved   *sync.Cond
	applied []uint64 // batches, by source
	failed  error
}

// connect makes a publisher for each instance and lets the Conductor follow it.
func (p *publishers) connect() error {
	for i := range p.load.Workers {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("cannot listen: %w", err)
		}
		p.open = append(p.open, ln)
		err = p.k.Register(conductor.Registration{
			Endpoint: "tcp://" + ln.Addr().String(), Type: conductor.TypeVLLM, Model: model, Instance: instance(i), BlockSize: p.load.BlockSize,
		}, conductor.RegisterOptions{})
		if err != nil {
			return err
		}
		c, err := ln.Accept()
		if err != nil {
			return fmt.Errorf("instance %q is not connected to: %w", instance(i), err)
		}
		p.open = append(p.open, c)
		if err := ingest.Greet(c); err != nil {
			return fmt.Errorf("instance %q is not subscribed to: %w", instance(i), err)
		}
		go io.Copy(io.Discard, c) // heartbeats
		p.conns = append(p.conns, c)
	}
	p.applied = make([]uint64, len(p.conns))
	return nil
}

// publish sends every family on behalf of all that hold it. The bytes are encoded
// once: instances of one fleet name blocks alike.
func (p *publishers) publish() error {
	var senders sync.WaitGroup
	batches := make([]chan []byte, len(p.conns))
	sent := make([]uint64, len(p.conns))
	for i, c := range p.conns {
		batches[i] = make(chan []byte, underWay)
		senders.Go(func() { sent[i] = p.send(i, c, batches[i]) })
	}
	watched, all := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		p.watch(all)
	}()
	var tokens []uint32
	for f := range p.load.families() {
		tokens = p.load.stored(tokens[:0], f)
		payload, err := p.load.payload(f, tokens)
		if err != nil {
			p.fail(fmt.Errorf("cannot encode a batch: %w", err))
			break
		}
		for _, i := range p.load.holders(f) {
			batches[i] <- payload
		}
	}
	for i := range batches {
		close(batches[i])
	}
	senders.Wait()
	p.mu.Lock()
	for p.failed == nil && !slices.Equal(p.applied, sent) {
		p.moved.Wait()
	}
	err := p.failed
	p.mu.Unlock()
	close(all)
	<-watched
	return err
}

// send publishes the batches of one source and returns how many there were. After a
// failure it only takes them.
func (p *publishers) send(source int, c net.Conn, batches <-chan []byte) (n uint64) {
	w := bufio.NewWriterSize(c, 64<<10)
	for payload := range batches {
		p.mu.Lock()
		for p.failed == nil && n-p.applied[source] >= underWay {
			p.moved.Wait()
		}
		failed := p.failed != nil
		p.mu.Unlock()
		if failed {
			continue
		}
		head := append(make([]byte, 0, 32), 1, 0, 1, 8) // an empty topic, then the sequence
		head = append(binary.BigEndian.AppendUint64(head, n), 2)
		head = binary.BigEndian.AppendUint64(head, uint64(len(payload)))
		w.Write(head)
		w.Write(payload)
		if err := w.Flush(); err != nil {
			p.fail(fmt.Errorf("cannot publish: %w", err))
		}
		n++
	}
	return n
}

func (p *publishers) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = errors.Join(p.failed, err)
	p.moved.Broadcast()
}

// watch tells senders what has been applied, and fails when a source has lost
// something: then the index is not what answers are compared with.
func (p *publishers) watch(all <-chan struct{}) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-all:
			return
		case <-tick.C:
		}
		marks := p.k.Watermarks() // sorted as instances are
		p.mu.Lock()
		copy(p.applied, marks)
		p.moved.Broadcast()
		p.mu.Unlock()
		if n%100 != 0 {
			continue
		}
		for _, s := range p.k.Services() {
			if s.Gaps > 0 || s.State == stream.Failed {
				p.fail(fmt.Errorf("source %s is %s %s: %s", s.Key(), s.State, s.Reason, s.LastError))
				return
			}
		}
	}
}

// payload is the batch that stores a family, a vLLM map.
func (l *Load) payload(family int, tokens []uint32) ([]byte, error) {
	hashes := make([]uint64, l.chain())
	for i := range hashes {
		h := (uint64(family)*uint64(l.chain()) + uint64(i) + 1) * 0x9e3779b97f4a7c15
		hashes[i] = h ^ h>>29
	}
	return msgpack.Marshal([]any{float64(time.Now().UnixNano()) / 1e9, []any{map[string]any{
		"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": compact(tokens), "block_size": l.BlockSize,
		"lora_id": nil, "medium": "GPU", "lora_name": nil,
	}}, 0})
}
