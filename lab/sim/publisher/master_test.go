package publisher

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/master"
	"example.com/conductor/lab/sim/truth"
)

// TestMasterBytes compares with what the master's fields pack to, but for the
// hashes, which only keys that are numbers have.
func TestMasterBytes(t *testing.T) {
	m := newMaster("default", "pool-a")
	m.now = func() time.Time { return time.UnixMilli(0x194ed27dc00) }
	f := func(ev master.Event, want string) {
		t.Helper()
		got, err := m.batch([]master.Event{ev})
		if err != nil || hex.EncodeToString(got) != want {
			t.Errorf("%+v:\ngot  %x\nwant %s\n%v", ev, got, want, err)
		}
		if n := tokensIn(got); n != 0 {
			t.Errorf("%+v has tokens %d times", ev, n)
		}
	}
	f(master.Event{Tier: truth.Host, Key: "42"},
		"93cf00000194ed27dc0091de0014a86576656e745f696401a974696d657374616d70cf00000194ed27dc00aa6576656e745f74797065a673746f7265"+
			"64a474797065ab426c6f636b53746f726564aa6d6f64656c5f6e616d65c0aa626c6f636b5f73697a65c0af6164646974696f6e616c5f73616c74c0a9"+
			"6c6f72615f6e616d65c0a974656e616e745f6964a764656661756c74aa6261636b656e645f6964a6706f6f6c2d61a867726f75705f6964c0a66d6564"+
			"69756da3637075a764705f72616e6bc0aa6f626a6563745f6b6579a23432aa7365715f68617368657390ac626c6f636b5f68617368657390ae626173"+
			"655f626c6f636b5f69647800ab706172656e745f68617368c0a9746f6b656e5f696473c0b1706172656e745f626c6f636b5f68617368c000")
	m.tenant = "tenant-a"
	f(master.Event{Removed: true, Tier: truth.Disk, Key: "e3b0_0_k", Group: "sglang-hicache:e3b0"},
		"93cf00000194ed27dc0091de0011a86576656e745f696402a974696d657374616d70cf00000194ed27dc00aa6576656e745f74797065a772656d6f76"+
			"6564a474797065ac426c6f636b52656d6f766564aa6d6f64656c5f6e616d65c0aa626c6f636b5f73697a65c0af6164646974696f6e616c5f73616c74"+
			"c0a96c6f72615f6e616d65c0a974656e616e745f6964a874656e616e742d61aa6261636b656e645f6964a6706f6f6c2d61a867726f75705f6964b373"+
			"676c616e672d686963616368653a65336230a66d656469756da46469736ba764705f72616e6bc0aa6f626a6563745f6b6579a8653362305f305f6baa"+
			"7365715f68617368657390ac626c6f636b5f68617368657390ae626173655f626c6f636b5f696478c000")
}

// TestTokensIn: a token on the wire is found, in whatever event it is.
func TestTokensIn(t *testing.T) {
	f := func(want int, events ...any) {
		t.Helper()
		payload, err := msgpack.Marshal([]any{1, events, 0})
		must.Succeed(t, err)
		if got := tokensIn(payload); got != want {
			t.Errorf("%v: %d, want %d", events, got, want)
		}
	}
	silent := object{"token_ids": nil}
	f(0)
	f(0, silent, silent, object{"medium": "cpu"})
	f(1, silent, object{"token_ids": []int{1, 2}}, silent)
	f(2, object{"token_ids": []int{}}, object{"token_ids": 0})
}

// TestMasterStream: batches of at most 64 events, numbered from 1, without topic.
func TestMasterStream(t *testing.T) {
	m, err := ListenMaster("127.0.0.1", "default", "pool-a")
	must.Succeed(t, err)
	defer m.Close()
	if m.LastSeq() != -1 || m.Followed() {
		t.Errorf("at batch %d, followed %t", m.LastSeq(), m.Followed())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := zmq4.NewSub(ctx)
	dial(t, s, m.Endpoint())
	must.Succeed(t, s.SetOption(zmq4.OptionSubscribe, ""))
	for tick := time.NewTicker(time.Millisecond); !m.Followed(); <-tick.C {
		if ctx.Err() != nil {
			t.Fatal("a subscription went unnoticed")
		}
	}
	events := make([]master.Event, 2*masterBatch+3)
	for i := range events {
		events[i] = master.Event{Removed: i%3 == 0, Tier: truth.Disk, Key: strings.Repeat("k", i)}
	}
	if n, err := m.Publish(events); n != 3 || err != nil {
		t.Fatalf("%d batches: %v", n, err)
	}
	if n, err := m.Publish(nil); n != 0 || err != nil || m.LastSeq() != 3 || m.Tokens() != 0 {
		t.Errorf("%d batches for nothing, at batch %d with %d tokens: %v", n, m.LastSeq(), m.Tokens(), err)
	}
	key := 0
	for seq, size := range []int{masterBatch, masterBatch, 3} {
		msg, err := s.Recv()
		must.Succeed(t, err)
		fr := msg.Frames
		if len(fr) != 3 || len(fr[0]) != 0 || binary.BigEndian.Uint64(fr[1]) != uint64(seq+1) {
			t.Fatalf("message %q", fr)
		}
		var batch []any
		if err := msgpack.Unmarshal(fr[2], &batch); err != nil || len(batch[1].([]any)) != size {
			t.Fatalf("batch %v: %v", batch, err)
		}
		for _, ev := range batch[1].([]any) {
			if got := ev.(object)["object_key"].(string); len(got) != key {
				t.Fatalf("the object of %d letters came in place of %d", len(got), key)
			}
			key++
		}
	}
}

func TestMasterCannotListen(t *testing.T) {
	if m, err := ListenMaster("203.0.113.1", "default", "pool-a"); err == nil {
		m.Close()
		t.Error("listens on an address of somebody else")
	}
}
