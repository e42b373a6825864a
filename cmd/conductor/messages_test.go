package main

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/must"
)

// messageService is what the tests of messages look at in the row of a source.
type messageService struct {
	State, Reason string
	Blocks        int
	Orphans       int
	LastSeq       *uint64
	DroppedBy     map[string]int
	Findings      []struct{ Code, Message string }
}

// found returns the message of a finding, "" without it.
func (s *messageService) found(code string) string {
	for _, f := range s.Findings {
		if f.Code == code {
			return f.Message
		}
	}
	return ""
}

// messageEngine is an engine and the server that follows it.
type messageEngine struct {
	*ruledEngine
	p *process
}

func newMessageEngine(t *testing.T) *messageEngine {
	e := newRuledEngine(t, "odd", 0)
	config := fmt.Sprintf("sources:\n  - {instance_id: odd, type: vLLM, endpoint: %q, modelname: m, block_size: %d}\n",
		"tcp://"+e.pub.Addr().String(), recordedBlock)
	m := &messageEngine{ruledEngine: e, p: serveProcess(t, config)}
	m.publish() // once the server has subscribed
	return m
}

// raw sends frames as they are.
func (e *messageEngine) raw(frames ...[]byte) {
	must.Succeed(e.t, e.pub.SendMulti(zmq4.NewMsgFrom(frames...)))
}

// until waits for a state of the source.
func (e *messageEngine) until(what string, is func(s *messageService) bool) (s messageService) {
	e.t.Helper()
	eventually(e.t, what, func() (string, bool) {
		rows, body := servicesOf[messageService](e.t, e.p.url)
		s = rows[0]
		return body, is(&s)
	})
	return s
}

// TestUnusableMessages holds that a source most of whose messages cannot be used is not synced, that the doctor
// says what they look like, and that it ends.
func TestUnusableMessages(t *testing.T) {
	e := newMessageEngine(t)
	payload, err := msgpack.Marshal([]any{1.5, []any{ruledStored(0, 1)}, 0})
	must.Succeed(t, err)
	f := func(count string, wants string, frames func(i int) [][]byte) {
		t.Helper()
		before := e.until("the source is not synced", func(s *messageService) bool { return s.State == "synced" }).DroppedBy[count]
		for i := range 40 {
			e.raw(frames(i)...)
		}
		s := e.until("all are counted", func(s *messageService) bool { return s.DroppedBy[count] == before+40 })
		if s = e.until("there is no finding", func(s *messageService) bool {
			return s.found("unusable_messages") != ""
		}); s.State != "partial" || s.Reason != "unusable" ||
			!strings.Contains(s.found("unusable_messages"), wants) {
			t.Errorf("%s: %+v", wants, s)
		}
		if out, _ := command("doctor", "--server", e.p.url).Output(); !strings.Contains(string(out), wants) ||
			strings.Contains(string(out), "replay_endpoint") {
			t.Errorf("the doctor says %s, nothing of %s", out, wants)
		}
		e.publish(map[string]any{"type": "AllBlocksCleared"}) // lost batches do not matter any more
		for range 32 {
			e.publish(ruledStored(0, 1))
		}
		// The finding ends just after the state that other readers see.
		e.until("the state or the finding stays", func(s *messageService) bool {
			return s.State == "synced" && s.found("unusable_messages") == ""
		})
	}
	const beginning = "begins with 0x93, a msgpack array of 3, which looks like a batch: the publisher sends no sequence number"
	f("bad_frames", "1 frame where 3 are expected (topic, sequence number, batch); it "+beginning, func(int) [][]byte {
		return [][]byte{payload}
	})
	f("bad_frames", "2 frames where 3 are expected (topic, sequence number, batch); the second "+beginning, func(int) [][]byte {
		return [][]byte{[]byte("kv"), payload}
	})
	f("bad_frames", "a sequence number of 4 bytes where 8 are expected", func(i int) [][]byte {
		return [][]byte{nil, binary.BigEndian.AppendUint32(nil, uint32(i)), payload}
	})
	f("bad_payload", "it begins with 0x7b, JSON text", func(int) [][]byte {
		e.seq++
		return [][]byte{nil, binary.BigEndian.AppendUint64(nil, e.seq-1), []byte(`{"type":"BlockStored"}`)}
	})
	odd, err := msgpack.Marshal([]any{1.5, []any{map[string]any{"type": "BlockStored", "block_hashes": "1"}}, 0})
	must.Succeed(t, err)
	f("bad_event", `no event of a batch can be read: bad_event 1, such as "BlockStored"`, func(int) [][]byte {
		e.seq++
		return [][]byte{nil, binary.BigEndian.AppendUint64(nil, e.seq-1), odd}
	})
	large, err := msgpack.Marshal([]any{1.5, []any{ruledStored(0, 1, "block_size", recordedBlock+1)}, 0})
	must.Succeed(t, err)
	f("block_size_mismatch", "all events of a batch are refused, as block_size_mismatch", func(int) [][]byte {
		e.seq++
		return [][]byte{nil, binary.BigEndian.AppendUint64(nil, e.seq-1), large}
	})
}

// TestMessagesOfOtherBuilds holds over sockets what TestTrailingElements, TestUnknownTypes and TestBadTokens of
// events/wire hold of payloads.
func TestMessagesOfOtherBuilds(t *testing.T) {
	e := newMessageEngine(t)
	stored := ruledStored(0, 1)
	e.publish([]any{"BlockStored", stored["block_hashes"], nil, stored["token_ids"], recordedBlock, nil, "GPU", nil, nil, 0,
		"full_attention", nil, 7, "more"},
		[]any{"BlockInactive", stored["block_hashes"], "GPU"}, map[string]any{"type": "Block\x1b[31mMoved", "block_hashes": 7})
	tokens := recordedTokens(2)[recordedBlock:]
	wide := make([]uint64, len(tokens))
	for i, id := range tokens {
		wide[i] = uint64(id)
	}
	wide[3] = 1 << 32
	e.publish(ruledStored(1, 2, "token_ids", wide))
	s := e.until("not all is applied", func(s *messageService) bool { return s.LastSeq != nil && *s.LastSeq+1 == e.seq })
	if s.State != "synced" || s.Blocks != 1 || s.Orphans != 0 || fmt.Sprint(s.DroppedBy) != "map[bad_token:1 unknown_type:2]" ||
		!strings.Contains(s.found("unknown_version"), `"BlockInactive", "Block\x1b[31mMoved"`) {
		t.Errorf("the source is %+v", s)
	}
	if out, _ := command("doctor", "--server", e.p.url).Output(); !strings.Contains(string(out), `"BlockInactive", "Block\x1b[31mMoved"`) {
		t.Errorf("the doctor says %s", out)
	}
}

// TestInventedMediaOverSockets holds over sockets what TestInventedMedia of conductor holds: media that a
// publisher invents are neither rows of answers nor of metrics without end.
func TestInventedMediaOverSockets(t *testing.T) {
	e := newMessageEngine(t)
	var all []any
	for i := range 2000 {
		ev := ruledStored(0, 1)
		ev["medium"] = fmt.Sprintf("MEDIUM%d", i)
		all = append(all, ev)
	}
	e.publish(all...)
	e.until("not all is applied", func(s *messageService) bool { return s.LastSeq != nil && *s.LastSeq+1 == e.seq })
	for _, path := range []string{"/metrics", "/admin/stats", "/services"} {
		if _, body := get(e.p.url + path); strings.Count(body, "MEDIUM") > 200 {
			t.Errorf("%s has %d times the name of a medium", path, strings.Count(body, "MEDIUM"))
		}
	}
	_, stats := get(e.p.url + "/admin/stats")
	if !strings.Contains(stats, `"OTHER"`) || !strings.Contains(stats, `"MEDIUM15"`) || strings.Contains(stats, `"MEDIUM16"`) {
		t.Errorf("the media are %s", stats)
	}
}
