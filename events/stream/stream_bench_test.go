package stream

import (
	"testing"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/stream/streamtest"
)

// Payloads of a typical batch: about 40 blocks of 16 tokens.
const benchPayload = 4 << 10

func benchDecode([]byte) (events.Batch, error) { return events.Batch{}, nil }

// BenchmarkMachineLive is what a live batch costs next to its decoding.
func BenchmarkMachineLive(b *testing.B) {
	m := newMachine(machineConfig{decode: benchDecode})
	now := time.Unix(1e9, 0)
	m.handleInput(input{kind: inConnected}, now)
	payload := make([]byte, benchPayload)
	b.SetBytes(benchPayload)
	b.ReportAllocs()
	for seq := uint64(0); b.Loop(); seq++ {
		m.handleInput(input{kind: inLive, message: message{seq: seq, payload: payload}}, now)
		if _, _, ok := m.nextStep(now); !ok {
			b.Fatal("nothing to apply")
		}
	}
}

// BenchmarkMachineReplay is what a replayed batch costs while live ones wait.
func BenchmarkMachineReplay(b *testing.B) {
	m := newMachine(machineConfig{decode: benchDecode, canReplay: true, timeout: time.Second})
	now := time.Unix(1e9, 0)
	m.handleInput(input{kind: inConnected}, now)
	payload := make([]byte, benchPayload)
	for seq := range uint64(1000) {
		m.handleInput(input{kind: inLive, message: message{seq: 1<<40 + seq, payload: payload}}, now)
	}
	b.SetBytes(benchPayload)
	b.ReportAllocs()
	for seq := uint64(0); b.Loop(); seq++ {
		m.handleInput(input{kind: inReplay, ask: m.replay.id, message: message{seq: seq, payload: payload}}, now)
		if _, _, ok := m.nextStep(now); !ok {
			b.Fatal("nothing to apply")
		}
	}
}

// BenchmarkStream is the whole way from Recv to Next, two goroutines included.
func BenchmarkStream(b *testing.B) {
	p := streamtest.NewPublisher()
	s := Open(Config{Endpoint: "live", Transport: p, Decode: benchDecode})
	defer s.Close()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !s.Status().Connected {
		<-tick.C
	}
	p.Mu.Lock()
	var c *streamtest.Conn
	for c = range p.Live {
	}
	p.Mu.Unlock()
	payload := make([]byte, benchPayload)
	b.SetBytes(benchPayload)
	b.ReportAllocs()
	for seq := uint64(0); b.Loop(); seq++ {
		c.Send(nil, streamtest.EncodeSequence(seq), payload)
		if seq%64 == 63 { // keep the queue busy, but bounded
			for range 64 {
				if _, ok := s.Next(); !ok {
					b.Fatal("closed")
				}
			}
		}
	}
}
