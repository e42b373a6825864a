package mooncake_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"example.com/conductor/compat/internal/conformance"
	"example.com/conductor/conductor/scripttest"
)

// masterTime is what every event of a master has as its time, in milliseconds.
const masterTime = 1_700_000_000_000

// event reads a line of a publish step.
func (s *script) event(st *scripttest.Step, e *conformance.Engine, line string) any {
	words := strings.Fields(s.Expand(line))
	if !slices.Contains([]string{"stored", "removed", "cleared", "put", "drop", "clear"}, words[0]) {
		return s.Value(st, line)
	}
	var event conformance.Object
	if s.pools[e] {
		event, words = s.masterEvent(st, e, words)
	} else {
		event, words = s.engineEvent(st, words)
	}
	for _, w := range words {
		name, text, ok := strings.Cut(w, "=")
		if !ok {
			s.T.Fatalf("line %d: %q is no key=value", st.Line, w)
		}
		var value any = text
		if v, err := conformance.DecodeValue(text); err == nil {
			value = v
		}
		again := strings.HasPrefix(name, "+")
		event = replace(event, strings.TrimPrefix(name, "+"), value, again, text == "-")
	}
	return event
}

// replace gives a field another value, or takes it away.
func replace(event conformance.Object, name string, value any, again, gone bool) conformance.Object {
	for i := range event {
		if event[i].Key != name || again {
			continue
		}
		if gone {
			return append(event[:i], event[i+1:]...)
		}
		event[i].Value = value
		return event
	}
	return append(event, conformance.Field{Key: name, Value: value})
}

// engineEvent is an event as vLLM writes it, and the words left.
func (s *script) engineEvent(st *scripttest.Step, words []string) (conformance.Object, []string) {
	if words[0] == "cleared" {
		return conformance.Object{{Key: "type", Value: "AllBlocksCleared"}}, words[1:]
	}
	hashes := s.Value(st, words[1])
	switch words[0] {
	case "stored":
		return conformance.Object{
			{Key: "type", Value: "BlockStored"}, {Key: "block_hashes", Value: hashes}, {Key: "parent_block_hash", Value: nil},
			{Key: "token_ids", Value: nil}, {Key: "block_size", Value: s.size(st)}, {Key: "lora_id", Value: nil},
			{Key: "medium", Value: "GPU"}, {Key: "lora_name", Value: nil},
		}, words[2:]
	case "removed":
		return conformance.Object{
			{Key: "type", Value: "BlockRemoved"}, {Key: "block_hashes", Value: hashes}, {Key: "medium", Value: "GPU"},
		}, words[2:]
	}
	s.T.Fatalf("line %d: an engine does not say %q", st.Line, words[0])
	return nil, nil
}

// masterEvent is an event as the Mooncake master writes it, and the words left.
func (s *script) masterEvent(st *scripttest.Step, e *conformance.Engine, words []string) (conformance.Object, []string) {
	e.Counted++
	envelope := func(kind string) conformance.Object {
		return conformance.Object{
			{Key: "event_id", Value: e.Counted}, {Key: "timestamp", Value: masterTime}, {Key: "event_type", Value: kind},
			{Key: "model_name", Value: s.Vars["M"]}, {Key: "block_size", Value: s.size(st)}, {Key: "additional_salt", Value: nil},
			{Key: "lora_name", Value: nil}, {Key: "tenant_id", Value: "default"}, {Key: "backend_id", Value: "backend-a"},
			{Key: "medium", Value: nil}, {Key: "dp_rank", Value: 0},
		}
	}
	if words[0] == "clear" {
		return envelope("cleared"), words[1:]
	}
	kind, ok := map[string]string{"put": "stored", "drop": "removed"}[words[0]]
	if !ok || len(words) < 3 {
		s.T.Fatalf("line %d: a master does not say %q", st.Line, words)
	}
	block := words[2]
	low, err := strconv.ParseUint(s.Vars[block], 10, 64)
	if err != nil {
		s.T.Fatalf("line %d: no block %q", st.Line, block)
	}
	event := append(envelope(kind),
		conformance.Field{Key: "group_id", Value: nil}, conformance.Field{Key: "seq_hashes", Value: []any{low}},
		conformance.Field{Key: "base_block_idx", Value: nil}, conformance.Field{Key: "object_key", Value: words[1]},
		conformance.Field{Key: "connector_block_hash", Value: s.Vars[block+".digest"]})
	event = replace(event, "medium", "cpu", false, false)
	if kind == "stored" {
		event = append(event, conformance.Field{Key: "parent_hash", Value: nil}, conformance.Field{Key: "token_ids", Value: nil})
	}
	return event, words[3:]
}

func (s *script) size(st *scripttest.Step) int {
	n, err := strconv.Atoi(s.Key(st, "block", s.block))
	if err != nil {
		s.T.Fatal(fmt.Errorf("line %d: %w", st.Line, err))
	}
	return n
}
