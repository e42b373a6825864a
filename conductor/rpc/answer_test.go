package rpc

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/conductor"
	"example.com/conductor/events/stream"
	"example.com/conductor/internal/must"
)

// TestAnswerIsAMessage holds that the bytes of an answer are those that protobuf writes, with every
// field of the messages in them.
func TestAnswerIsAMessage(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("x", 150)
	a := r.register("a")
	for i := range 3 {
		r.register(fmt.Sprintf("b-%d", i))
	}
	r.register(long)
	store(a, 200)
	ask := func(q match.Query) (out []byte) {
		q.Model, q.BlockSize = "m", 1
		r.conductor.For(conductor.Reader{}).Answer(&q, func(ans *match.Answer) {
			ans.Truncated = q.Detail
			if q.Detail { // what a pool, a window and a mark look like
				row := &ans.Rows[0]
				row.Window, row.Approximate, row.UpperBound = 4096, true, true
				row.Ranks[0].Rank = 3
				row.Detail[0] = match.SourceDetail{
					Key: registration.Key{Instance: strings.Repeat(long, 100), Tenant: "t", Rank: 3}, Rank: 3, State: stream.Partial,
					Reason: "gap", Epoch: 7, HasMark: true, Age: time.Second, ServesOnly: []string{"a", "b-0"},
				}
				ans.Pools = row.Detail
			}
			out = appendAnswer(nil, ans)
		})
		return out
	}
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for !bytes.Contains(ask(match.Query{Tokens: prompt(200).GetTokens().Ids}), []byte{0xc8, 1}) { // 200
		<-pace.C
	}
	seen := make(map[protoreflect.FullName]bool)
	check := func(text []byte, m proto.Message) {
		t.Helper()
		must.Succeed(t, proto.Unmarshal(text, m))
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		must.Succeed(t, err)
		if !bytes.Equal(again, text) {
			t.Errorf("%d bytes, protobuf writes %d: %v", len(text), len(again), m)
		}
		visit(m.ProtoReflect(), seen)
	}
	report := match.Routed{Query: match.Query{Model: "m", BlockSize: 1, Tokens: prompt(300).GetTokens().Ids}, Target: "b-1"}
	_, err := r.conductor.For(conductor.Reader{}).Routed(&report)
	must.Succeed(t, err)
	for _, q := range []match.Query{
		{Tokens: prompt(200).GetTokens().Ids}, {Tokens: prompt(200).GetTokens().Ids, Detail: true}, {}, {Top: 1},
		{Tokens: prompt(300).GetTokens().Ids, Expected: true}, {Tokens: prompt(300).GetTokens().Ids, Expected: true, Detail: true},
	} {
		check(ask(q), new(pb.QueryResponse))
	}
	q := match.Query{Model: "m", BlockSize: 1, Tokens: prompt(200).GetTokens().Ids, Expected: true, Keep: true, States: true}
	must.Succeed(t, r.conductor.For(conductor.Reader{}).Answer(&q, func(ans *match.Answer) {
		ans.Truncated = true
		if at, ok := ans.Rows[0].At(); ok {
			ans.Roster.Instances[at].Address = "http://b-0" // no registration here has one
		}
		text, err := proto.Marshal(candidatesOf(ans, registration.Meaning{Model: "m", Lora: "l"}))
		must.Succeed(t, err)
		check(text, new(pb.CandidatesResponse))
	}))
	for _, message := range []proto.Message{new(pb.QueryResponse), new(pb.CandidatesResponse), new(pb.Row), new(pb.Medium), new(pb.Rank),
		new(pb.Source)} {
		fields := message.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if name := fields.Get(i).FullName(); !seen[name] {
				t.Errorf("no answer has %s", name)
			}
		}
	}
}

// visit notes the fields that a message and those in it have.
func visit(m protoreflect.Message, seen map[protoreflect.FullName]bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		seen[f.FullName()] = true
		if f.IsList() && f.Message() != nil {
			for i := range v.List().Len() {
				visit(v.List().Get(i).Message(), seen)
			}
		}
		return true
	})
	if n := len(m.GetUnknown()); n > 0 {
		panic(fmt.Sprintf("%d unknown bytes", n))
	}
}
