package query

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"slices"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/lab/harness"
)

// underWay is how many batches of a source may be under way. A publisher knows no
// back-pressure, and its subscriber loses the batches that its queue cannot take.
const underWay = 32

// A follower is what the instances publish to: a server, or a Conductor in this process.
type follower interface {
	follow(endpoint, instance string, blockSize int) error
	watermarks(applied []uint64) error // batches of each source, sorted as instances are
	// check returns an error if a source has lost batches: the index then lacks blocks that
	// answers must have.
	check() error
}

// inProcess is a Conductor in this process.
type inProcess struct{ conductor *conductor.Conductor }

func (k inProcess) follow(endpoint, instance string, blockSize int) error {
	return k.conductor.Register(registration.Registration{
		Endpoint: endpoint, Type: registration.TypeVLLM, Model: model, Instance: instance, BlockSize: blockSize,
	}, conductor.RegisterOptions{})
}

func (k inProcess) watermarks(applied []uint64) error {
	copy(applied, k.conductor.Watermarks())
	return nil
}

func (k inProcess) check() error {
	for _, s := range k.conductor.Services() {
		if s.Gaps > 0 || s.State == stream.Failed {
			return fmt.Errorf("source %s is %s %s: %s", s.Key(), s.State, s.Reason, s.LastError)
		}
	}
	return nil
}

// preload registers all instances, publishes their blocks, and waits until all are
// indexed. The publishers stay, silent, until end is called.
func (l *Load) preload(k follower) (end func(), err error) {
	p := l.publishers(k)
	if err := p.fill(); err != nil {
		p.end()
		return nil, err
	}
	return p.end, nil
}

// publishers returns the engines of all instances, which have not connected.
func (l *Load) publishers(k follower) *publishers {
	return &publishers{load: l, k: k, sent: make([]uint64, l.Workers), applied: make([]uint64, l.Workers)}
}

// fill connects all instances, publishes their blocks, and waits until all are indexed.
func (p *publishers) fill() error {
	if err := p.connect(); err != nil {
		return err
	}
	return p.publish()
}

func (p *publishers) end() {
	for _, s := range p.sockets {
		s.Close()
	}
}

// publishers are the engines of all instances.
type publishers struct {
	load    *Load
	k       follower
	sockets []zmq4.Socket
	sent    []uint64 // batches, by source
	applied []uint64
}

// connect makes a publisher for each instance and lets the Conductor follow it.
func (p *publishers) connect() error {
	for i := range p.load.Workers {
		s := zmq4.NewPub(context.Background(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
		p.sockets = append(p.sockets, s)
		if err := s.Listen("tcp://127.0.0.1:0"); err != nil {
			return fmt.Errorf("cannot listen: %w", err)
		}
		if err := p.k.follow("tcp://"+s.Addr().String(), instance(i), p.load.BlockSize); err != nil {
			return err
		}
		if err := p.await(func() bool { return len(s.(zmq4.Topics).Topics()) > 0 }); err != nil {
			return err
		}
	}
	return nil
}

// publish sends every family on behalf of all that hold it. The bytes are encoded
// once: instances of one fleet name blocks alike.
func (p *publishers) publish() error {
	var tokens []uint32
	for f := range p.load.families() {
		tokens = p.load.stored(tokens[:0], f)
		payload, err := p.load.payload(f, tokens)
		if err != nil {
			return fmt.Errorf("cannot encode a batch: %w", err)
		}
		for _, i := range p.load.holders(f) {
			if err := p.await(func() bool { return p.sent[i]-p.applied[i] < underWay }); err != nil {
				return err
			}
			if err := p.send(i, payload); err != nil {
				return fmt.Errorf("cannot publish: %w", err)
			}
		}
	}
	if err := p.await(func() bool { return slices.Equal(p.applied, p.sent) }); err != nil {
		return err
	}
	return p.k.check()
}

// send publishes the next batch of a source.
func (p *publishers) send(source int, payload []byte) error {
	seq := binary.BigEndian.AppendUint64(nil, p.sent[source])
	p.sent[source]++
	return p.sockets[source].SendMulti(zmq4.NewMsgFrom([]byte{}, seq, payload))
}

// await looks at the applied batches until enough returns true.
func (p *publishers) await(enough func() bool) error {
	for n := 1; !enough(); n++ {
		if n%200 == 0 {
			if err := p.k.check(); err != nil {
				return err
			}
		}
		time.Sleep(time.Millisecond)
		if err := p.k.watermarks(p.applied); err != nil {
			return err
		}
	}
	return nil
}

// payload is the batch that stores a family, a vLLM map.
func (l *Load) payload(family int, tokens []uint32) ([]byte, error) {
	hashes := make([]uint64, l.chain())
	for i := range hashes {
		hashes[i] = l.hash(family, i)
	}
	return msgpack.Marshal([]any{float64(time.Now().UnixNano()) / 1e9, []any{map[string]any{
		"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": harness.Compact[uint32](tokens),
		"block_size": l.BlockSize,
		"lora_id":    nil, "medium": "GPU", "lora_name": nil,
	}}, 0})
}

// hash is what engines call block i of a family.
func (l *Load) hash(family, i int) uint64 {
	h := (uint64(family)*uint64(l.chain()) + uint64(i) + 1) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}
