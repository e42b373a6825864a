package publisher

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/lab/sim/master"
)

// masterBatch is how many events the master puts into one batch at most.
const masterBatch = 64

// Master publishes the events of a Mooncake master: objects by key. Its sequences start
// at 1. It cannot replay, so it discards nothing.
type Master struct {
	tenant, backend string
	pub             zmq4.Socket

	mu     sync.Mutex // guards the rest
	enc    *encoder
	seq    uint64 // of the newest batch
	event  uint64 // id of the newest event
	tokens int
	now    func() time.Time
}

// ListenMaster opens the socket.
func ListenMaster(host, tenant, backend string) (*Master, error) {
	m := newMaster(tenant, backend)
	m.pub = zmq4.NewPub(context.Background(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
	if err := m.pub.Listen("tcp://" + host + ":0"); err != nil {
		m.pub.Close()
		return nil, fmt.Errorf("cannot listen on %q: %w", host, err)
	}
	return m, nil
}

func newMaster(tenant, backend string) *Master {
	return &Master{tenant: tenant, backend: backend, now: time.Now, enc: newEncoder(Options{})}
}

// Endpoint returns the address of the stream.
func (m *Master) Endpoint() string { return "tcp://" + m.pub.Addr().String() }

// Followed reports whether a reader has subscribed. Batches published from then on reach
// that reader.
func (m *Master) Followed() bool { return len(m.pub.(zmq4.Topics).Topics()) > 0 }

// Publish sends events in as many batches as they need and returns how many
// those were.
func (m *Master) Publish(events []master.Event) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	batches := 0
	for len(events) > 0 {
		n := min(len(events), masterBatch)
		payload, err := m.batch(events[:n])
		if err != nil {
			return batches, fmt.Errorf("cannot encode a batch of %d objects: %w", n, err)
		}
		m.tokens += tokensIn(payload)
		m.seq++
		seq := binary.BigEndian.AppendUint64(nil, m.seq)
		if err := m.pub.SendMulti(zmq4.NewMsgFrom([]byte{}, seq, payload)); err != nil {
			return batches, fmt.Errorf("cannot publish batch %d: %w", m.seq, err)
		}
		batches++
		events = events[n:]
	}
	return batches, nil
}

// LastSeq returns the newest sequence, -1 before the first batch.
func (m *Master) LastSeq() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seq == 0 {
		return -1
	}
	return int64(m.seq)
}

// Tokens returns how many of the events that were sent had tokens, which the
// master cannot know. They are looked for in the bytes.
func (m *Master) Tokens() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tokens
}

// Close closes the socket.
func (m *Master) Close() error { return m.pub.Close() }

// batch returns [milliseconds, [events], 0].
func (m *Master) batch(events []master.Event) ([]byte, error) {
	now := int(m.now().UnixMilli())
	list := make([]any, len(events))
	for i := range events {
		m.event++
		list[i] = m.object(now, &events[i])
	}
	return m.enc.encode([]any{now, list, 0})
}

// object returns one event with the keys in the order in which the master packs
// them: the standardized ones, legacy ones among them, and the object's. All that
// describes a block is nil, and only keys that are numbers have a hash.
func (m *Master) object(now int, ev *master.Event) fields {
	kind, legacy := "stored", "BlockStored"
	var group, base any
	if ev.Group != "" {
		group = ev.Group
	}
	if ev.Removed {
		kind, legacy = "removed", "BlockRemoved"
	} else {
		base = 0
	}
	e := fields{"event_id", int(m.event), "timestamp", now, "event_type", kind, "type", legacy,
		"model_name", nil, "block_size", nil, "additional_salt", nil, "lora_name", nil,
		"tenant_id", m.tenant, "backend_id", m.backend, "group_id", group, "medium", Media{Host: "cpu", Disk: "disk"}.name(ev.Tier),
		"dp_rank", nil, "object_key", ev.Key, "seq_hashes", []any{}, "block_hashes", []any{}, "base_block_idx", base}
	if !ev.Removed {
		e = append(e, "parent_hash", nil, "token_ids", nil, "parent_block_hash", nil)
	}
	return e
}

// tokensIn counts the keys of a payload named token_ids whose value is not nil.
func tokensIn(payload []byte) (n int) {
	const key = "\xa9token_ids"
	for {
		_, after, found := bytes.Cut(payload, []byte(key))
		if !found {
			return n
		}
		if len(after) == 0 || after[0] != 0xc0 {
			n++
		}
		payload = after
	}
}
