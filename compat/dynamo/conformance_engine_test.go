package dynamo_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
)

// engine is one publisher on real sockets: PUB for the live stream, ROUTER for
// replays.
type engine struct {
	topic        string
	live, replay string // endpoints
	next         uint64 // sequence of the next batch
	markers      uint64 // settle steps so far

	topicInReplies bool // four frames a reply and not three
	sentinel       bool // replies end with an empty payload

	pub, router zmq4.Socket

	mu       sync.Mutex // guards the rest
	ring     []batch
	requests []string
}

type batch struct {
	seq     uint64
	payload []byte
}

func openEngine(topic, frames string, sentinel bool) (*engine, error) {
	e := &engine{topic: topic, topicInReplies: frames == "4", sentinel: sentinel}
	return e, e.open("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
}

func (e *engine) open(live, replay string) error {
	quiet := zmq4.WithLogger(log.New(io.Discard, "", 0))
	e.pub, e.router = zmq4.NewPub(context.Background(), quiet), zmq4.NewRouter(context.Background(), quiet)
	for s, endpoint := range map[zmq4.Socket]string{e.pub: live, e.router: replay} {
		// The port of an engine that was closed a moment ago may be in use still.
		var err error
		if !until(func() bool { err = s.Listen(endpoint); return err == nil }) {
			return fmt.Errorf("cannot listen on %s: %w", endpoint, err)
		}
	}
	e.live, e.replay = "tcp://"+e.pub.Addr().String(), "tcp://"+e.router.Addr().String()
	go e.serve(e.router)
	return nil
}

func (e *engine) close() {
	e.pub.Close()
	e.router.Close()
}

// restart is the next life of the engine: the ports stay, nothing else does.
func (e *engine) restart() error {
	e.close()
	e.mu.Lock()
	e.ring = nil
	e.mu.Unlock()
	e.next = 0
	return e.open(e.live, e.replay)
}

// heard reports whether somebody is subscribed.
func (e *engine) heard() bool { return len(e.pub.(zmq4.Topics).Topics()) > 0 }

// await returns once a subscriber is there.
func (e *engine) await(t *testing.T) {
	t.Helper()
	if !until(e.heard) {
		t.Fatalf("nobody subscribed to %s", e.live)
	}
}

// publish sends one batch; a lost one is only in the ring, an unkept one is not.
func (e *engine) publish(t *testing.T, seq uint64, payload []byte, lost, unkept bool) {
	t.Helper()
	if !unkept {
		e.mu.Lock()
		e.ring = append(e.ring, batch{seq, payload})
		e.mu.Unlock()
	}
	e.next = seq + 1
	if !lost {
		e.send(t, [][]byte{[]byte(e.topic), binary.BigEndian.AppendUint64(nil, seq), payload})
	}
}

func (e *engine) send(t *testing.T, frames [][]byte) {
	t.Helper()
	e.await(t)
	if err := e.pub.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
		t.Fatal(err)
	}
}

// serve answers replay requests until the socket is closed.
func (e *engine) serve(router zmq4.Socket) {
	for {
		m, err := router.Recv()
		if err != nil {
			return
		}
		e.mu.Lock()
		e.requests = append(e.requests, fmt.Sprintf("%q", m.Frames[1:]))
		ring := e.ring
		e.mu.Unlock()
		if len(m.Frames) != 3 || len(m.Frames[2]) != 8 {
			continue
		}
		reply := func(seq, payload []byte) {
			frames := [][]byte{m.Frames[0], nil}
			if e.topicInReplies {
				frames = append(frames, []byte(e.topic))
			}
			router.SendMulti(zmq4.NewMsgFrom(append(frames, seq, payload)...))
		}
		from := binary.BigEndian.Uint64(m.Frames[2])
		for _, b := range ring {
			if b.seq >= from {
				reply(binary.BigEndian.AppendUint64(nil, b.seq), b.payload)
			}
		}
		if e.sentinel {
			reply(bytes.Repeat([]byte{0xff}, 8), nil)
		}
	}
}

// requested lists the frames of the replay requests, identities left out.
func (e *engine) requested() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.requests, "\n")
}

// object is a map whose keys keep their order on the wire.
type object []struct {
	key   string
	value any
}

func (o object) EncodeMsgpack(enc *msgpack.Encoder) error {
	if err := enc.EncodeMapLen(len(o)); err != nil {
		return err
	}
	for _, f := range o {
		if err := enc.EncodeString(f.key); err != nil {
			return err
		}
		if err := enc.Encode(f.value); err != nil {
			return err
		}
	}
	return nil
}

func encode(v any) []byte {
	var out bytes.Buffer
	enc := msgpack.NewEncoder(&out)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func encodeJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// decodeValue reads JSON as what msgpack carries: integers of 64 bits with and
// without sign, maps in their order, {"$bin": hex} as bytes.
func decodeValue(text string) (any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	v, err := nextValue(dec)
	if err == nil && dec.More() {
		err = fmt.Errorf("more than one value")
	}
	return v, err
}

func nextValue(dec *json.Decoder) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, nil
		}
		var n uint64
		if _, err := fmt.Sscan(v.String(), &n); err == nil && !strings.ContainsAny(v.String(), ".eE") {
			return n, nil
		}
		return v.Float64()
	case json.Delim:
		if v == '[' {
			list := []any{}
			for dec.More() {
				item, err := nextValue(dec)
				if err != nil {
					return nil, err
				}
				list = append(list, item)
			}
			_, err := dec.Token()
			return list, err
		}
		o := object{}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			value, err := nextValue(dec)
			if err != nil {
				return nil, err
			}
			o = append(o, struct {
				key   string
				value any
			}{key.(string), value})
		}
		if _, err := dec.Token(); err != nil {
			return nil, err
		}
		if len(o) == 1 && o[0].key == "$bin" {
			return hex.DecodeString(o[0].value.(string))
		}
		return o, nil
	default:
		return v, nil
	}
}
