package publisher

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/engine"
)

// patience is how long a test waits for a message that has to come.
const patience = 2 * time.Minute

func listen(t *testing.T, o Options) *Publisher {
	t.Helper()
	o.Host, o.BlockSize, o.Wire = "127.0.0.1", 4, SGLang{}
	p, err := Listen(o)
	must.Succeed(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func publish(t *testing.T, p *Publisher, n int) {
	t.Helper()
	for range n {
		if _, err := p.Publish([]engine.Event{{Kind: engine.Cleared}}); err != nil {
			t.Fatal(err)
		}
	}
}

func dial(t *testing.T, s zmq4.Socket, endpoint string) {
	t.Helper()
	must.Succeed(t, s.Dial(endpoint))
	t.Cleanup(func() { s.Close() })
}

// replay asks and returns the sequences of the replies, each checked for the
// layout, up to the end marker.
func replay(t *testing.T, p *Publisher, start uint64) []uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d := zmq4.NewDealer(ctx)
	dial(t, d, p.ReplayEndpoint())
	// Neither of these is a request; the third is.
	for _, frames := range [][][]byte{
		{binary.BigEndian.AppendUint64(nil, 0)},
		{{}, {0}},
		{{}, binary.BigEndian.AppendUint64(nil, start)},
	} {
		must.Succeed(t, d.SendMulti(zmq4.NewMsgFrom(frames...)))
	}
	var seqs []uint64
	for {
		msg, err := d.Recv()
		if err != nil {
			t.Fatalf("after %d replies: %v", len(seqs), err)
		}
		f := msg.Frames
		if len(f) == 0 || len(f[0]) != 0 {
			t.Fatalf("reply %q does not begin with an empty frame", f)
		}
		f = f[1:]
		if p.o.TopicInReplay {
			if len(f) != 3 || string(f[0]) != p.o.Topic {
				t.Fatalf("reply %q has no topic", f)
			}
			f = f[1:]
		}
		if len(f) != 2 || len(f[0]) != 8 {
			t.Fatalf("reply %q is no sequence and payload", f)
		}
		seq := binary.BigEndian.Uint64(f[0])
		if seq == 1<<64-1 {
			if len(f[1]) != 0 {
				t.Fatalf("the end marker carries %x", f[1])
			}
			return seqs
		}
		if len(f[1]) == 0 {
			t.Fatalf("batch %d is empty", seq)
		}
		seqs = append(seqs, seq)
	}
}

func TestPublisherReplays(t *testing.T) {
	f := func(o Options, published int, start uint64, want string) {
		t.Helper()
		p := listen(t, o)
		publish(t, p, published)
		if got := fmt.Sprint(replay(t, p, start)); got != want {
			t.Errorf("%+v, %d batches, from %d: got %s, want %s", o, published, start, got, want)
		}
	}
	f(Options{Ring: 10}, 0, 0, "[]")
	f(Options{Ring: 10}, 3, 0, "[0 1 2]")
	f(Options{Ring: 10, Topic: "kv-events"}, 3, 1, "[1 2]")
	f(Options{Ring: 10, Topic: "kv-events", TopicInReplay: true}, 3, 1, "[1 2]")
	f(Options{Ring: 10, TopicInReplay: true}, 3, 2, "[2]")
	f(Options{Ring: 10}, 3, 3, "[]")
	f(Options{Ring: 10}, 3, 99, "[]")
	f(Options{Ring: 4}, 4, 0, "[0 1 2 3]")
	f(Options{Ring: 4}, 5, 0, "[1 2 3 4]")
	f(Options{Ring: 4}, 11, 8, "[8 9 10]")
	f(Options{Ring: 2000}, 1500, 3, fmt.Sprint(count(3, 1500)))
}

func TestPublisherForgets(t *testing.T) {
	f := func(published, more int, want string) {
		t.Helper()
		p := listen(t, Options{Ring: 4})
		publish(t, p, published)
		p.Forget()
		publish(t, p, more)
		if got := fmt.Sprint(replay(t, p, 0)); got != want {
			t.Errorf("%d batches, forgotten, %d batches more: got %s, want %s", published, more, got, want)
		}
	}
	f(0, 0, "[]")
	f(0, 2, "[0 1]")
	f(3, 0, "[2]")
	f(3, 2, "[2 3 4]")
	f(3, 6, "[5 6 7 8]")
}

func count(from, to uint64) []uint64 {
	var n []uint64
	for ; from < to; from++ {
		n = append(n, from)
	}
	return n
}

func TestPublisherPublishes(t *testing.T) {
	p := listen(t, Options{Ring: 10, Topic: "kv-events"})
	if p.LastSeq() != -1 {
		t.Errorf("the last sequence is %d before the first batch", p.LastSeq())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := zmq4.NewSub(ctx)
	dial(t, s, p.Endpoint())
	must.Succeed(t, s.SetOption(zmq4.OptionSubscribe, "kv-"))
	got := make(chan zmq4.Msg)
	go func() {
		defer close(got)
		for {
			msg, err := s.Recv()
			if err != nil {
				return
			}
			got <- msg
		}
	}()
	// A subscription takes a moment; batches published before it are lost.
	var first zmq4.Msg
	for first.Frames == nil {
		publish(t, p, 1)
		select {
		case first = <-got:
		case <-time.After(10 * time.Millisecond):
			if ctx.Err() != nil {
				t.Fatal("no batch arrived")
			}
		}
	}
	next := check(t, first)
	publish(t, p, 3)
	for next != uint64(p.LastSeq()) {
		msg, ok := <-got
		if !ok {
			t.Fatalf("the stream ended at batch %d of %d", next, p.LastSeq())
		}
		seq := check(t, msg)
		if seq != next+1 {
			t.Fatalf("batch %d after %d", seq, next)
		}
		next = seq
	}
}

func check(t *testing.T, msg zmq4.Msg) uint64 {
	t.Helper()
	f := msg.Frames
	if len(f) != 3 || string(f[0]) != "kv-events" || len(f[1]) != 8 || len(f[2]) == 0 {
		t.Fatalf("message %q", f)
	}
	return binary.BigEndian.Uint64(f[1])
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{Ring: 0, Host: "127.0.0.1"}, {Ring: 1, Host: "203.0.113.1"}} {
		if p, err := Listen(o); err == nil {
			p.Close()
			t.Errorf("%+v was accepted", o)
		}
	}
}
