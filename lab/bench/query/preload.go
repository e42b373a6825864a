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
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/lab/harness"
)

// underWay is how many batches of a source may be under way. A publisher knows no
// back-pressure, and its subscriber loses the batches that its queue cannot take.
const underWay = 32

// A follower is what the instances publish to: a server, or a Conductor in this process.
type follower interface {
	followEngine(endpoint, instance string, blockSize int) error
	readWatermarks(applied []uint64) error // batches of each source, sorted as instances are
	// check returns an error if a source has lost batches: the index then lacks blocks that
	// answers must have.
	checkLosses() error
}

// inProcess is a Conductor in this process.
type inProcess struct{ conductor *conductor.Conductor }

func (k inProcess) followEngine(endpoint, instance string, blockSize int) error {
	return k.conductor.Register(registration.Registration{
		Endpoint: endpoint, Type: registration.TypeVLLM, Model: model, Instance: instance, BlockSize: blockSize,
	}, ingest.RegisterOptions{})
}

func (k inProcess) readWatermarks(applied []uint64) error {
	copy(applied, k.conductor.Watermarks())
	return nil
}

func (k inProcess) checkLosses() error {
	for _, s := range k.conductor.Services() {
		if s.Gaps > 0 || s.State == stream.Failed {
			return fmt.Errorf("source %s is %s %s: %s", s.Key(), s.State, s.Reason, s.LastError)
		}
	}
	return nil
}

// preloadBlocks registers all instances, publishes their blocks, and waits until all are
// indexed. The publishers stay, silent, until end is called.
func (l *Load) preloadBlocks(k follower) (end func(), err error) {
	p := l.newPublishers(k)
	if err := p.fillIndex(); err != nil {
		p.disconnectAll()
		return nil, err
	}
	return p.disconnectAll, nil
}

// newPublishers returns the engines of all instances, which have not connected.
func (l *Load) newPublishers(k follower) *publishers {
	return &publishers{load: l, k: k, sent: make([]uint64, l.Workers), applied: make([]uint64, l.Workers)}
}

// fillIndex connects all instances, publishes their blocks, and waits until all are indexed.
func (p *publishers) fillIndex() error {
	if err := p.connectAll(); err != nil {
		return err
	}
	return p.publishFamilies()
}

func (p *publishers) disconnectAll() {
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

// connectAll makes a publisher for each instance and lets the Conductor follow it.
func (p *publishers) connectAll() error {
	for i := range p.load.Workers {
		s := zmq4.NewPub(context.Background(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
		p.sockets = append(p.sockets, s)
		if err := s.Listen("tcp://127.0.0.1:0"); err != nil {
			return fmt.Errorf("cannot listen: %w", err)
		}
		if err := p.k.followEngine("tcp://"+s.Addr().String(), instanceName(i), p.load.BlockSize); err != nil {
			return err
		}
		if err := p.awaitApplied(func() bool { return len(s.(zmq4.Topics).Topics()) > 0 }); err != nil {
			return err
		}
	}
	return nil
}

// publishFamilies sends every family on behalf of all that hold it. The bytes are encoded
// once: instances of one fleet name blocks alike.
func (p *publishers) publishFamilies() error {
	var tokens []uint32
	for f := range p.load.families() {
		tokens = p.load.appendStored(tokens[:0], f)
		payload, err := p.load.encodeFamily(f, tokens)
		if err != nil {
			return fmt.Errorf("cannot encode a batch: %w", err)
		}
		for _, i := range p.load.holdersOf(f) {
			if err := p.awaitApplied(func() bool { return p.sent[i]-p.applied[i] < underWay }); err != nil {
				return err
			}
			if err := p.sendBatch(i, payload); err != nil {
				return fmt.Errorf("cannot publish: %w", err)
			}
		}
	}
	if err := p.awaitApplied(func() bool { return slices.Equal(p.applied, p.sent) }); err != nil {
		return err
	}
	return p.k.checkLosses()
}

// sendBatch publishes the next batch of a source.
func (p *publishers) sendBatch(source int, payload []byte) error {
	seq := binary.BigEndian.AppendUint64(nil, p.sent[source])
	p.sent[source]++
	return p.sockets[source].SendMulti(zmq4.NewMsgFrom([]byte{}, seq, payload))
}

// awaitApplied looks at the applied batches until enough returns true.
func (p *publishers) awaitApplied(enough func() bool) error {
	for n := 1; !enough(); n++ {
		if n%200 == 0 {
			if err := p.k.checkLosses(); err != nil {
				return err
			}
		}
		time.Sleep(time.Millisecond)
		if err := p.k.readWatermarks(p.applied); err != nil {
			return err
		}
	}
	return nil
}

// encodeFamily returns the batch that stores a family, vLLM maps.
func (l *Load) encodeFamily(family int, tokens []uint32) ([]byte, error) {
	hashes := make([]uint64, l.chainLength())
	for i := range hashes {
		hashes[i] = l.engineHash(family, i)
	}
	stored := func(hashes []uint64) map[string]any {
		return map[string]any{
			"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": harness.Compact[uint32](tokens),
			"block_size": l.BlockSize,
			"lora_id":    nil, "medium": "GPU", "lora_name": nil,
		}
	}
	list := []any{stored(hashes)}
	if l.Window > 0 {
		full, window := list[0].(map[string]any), stored(hashes[max(0, len(hashes)-l.windowBlocks()):])
		full["group_idx"], full["kv_cache_spec_kind"] = 0, "full_attention"
		window["group_idx"], window["kv_cache_spec_kind"], window["kv_cache_spec_sliding_window"] = 1, "sliding_window", l.Window
		list = append(list, window)
	}
	return msgpack.Marshal([]any{float64(time.Now().UnixNano()) / 1e9, list, 0})
}

// windowBlocks returns how many blocks a hit needs of the window.
func (l *Load) windowBlocks() int { return (l.Window - 1 + l.BlockSize - 1) / l.BlockSize }

// engineHash returns what engines call block i of a family.
func (l *Load) engineHash(family, i int) uint64 {
	h := (uint64(family)*uint64(l.chainLength()) + uint64(i) + 1) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}
