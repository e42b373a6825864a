package conductor_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/index/hash"
)

// standardEvent is an event of the published envelope about a path. The hashes are
// canonical, or of another seed with seed=...; what no key gives is nil, as for a
// publisher that leaves it to the registration.
func standardEvent(a args) any {
	names := strings.Split(a.get("path", ""), "/")
	from, size := a.number("from", 0), a.number("block_size", 16)
	var tokens []uint32
	for _, name := range names {
		tokens = append(tokens, tokensOf(name, size)...)
	}
	seq := hash.Scheme{Seed: uint64(a.number("seed", hash.DefaultSeed))}.AppendTokenChain(nil, tokens, size)
	e := map[string]any{"event_type": a.get("kind", "stored"), "event_id": a.number("id", 0), "timestamp": 1739145600000}
	for key, field := range map[string]string{
		"model": "model_name", "salt": "additional_salt", "lora": "lora_name", "tenant": "tenant_id", "backend": "backend_id",
		"medium": "medium",
	} {
		if v, ok := a.keys[key]; ok {
			e[field] = v
		} else {
			e[field] = nil
		}
	}
	e["block_size"], e["dp_rank"] = nil, nil
	if _, ok := a.keys["block_size"]; ok {
		e["block_size"] = size
	}
	if _, ok := a.keys["of_rank"]; ok {
		e["dp_rank"] = a.number("of_rank", 0)
	}
	if a.get("kind", "stored") == "cleared" {
		return e
	}
	e["seq_hashes"], e["base_block_idx"] = seq[from:], from
	if a.get("base", "yes") == "no" {
		e["base_block_idx"] = nil
	}
	if a.get("kind", "stored") == "stored" {
		e["parent_hash"], e["token_ids"] = nil, nil
		if from > 0 && a.get("parent", "no") == "yes" {
			e["parent_hash"] = seq[from-1]
		}
		if a.get("tokens", "no") == "yes" {
			e["token_ids"] = tokens[from*size:]
		}
	}
	return e
}

// rawBatch is the JSON array of json=...
func rawBatch(a args) []any {
	d := json.NewDecoder(strings.NewReader(a.get("json", "[]")))
	d.UseNumber()
	var list []any
	if err := d.Decode(&list); err != nil {
		panic(err)
	}
	for i := range list {
		list[i] = integers(list[i])
	}
	return list
}

// A replica that goes on behind a source with lost events is partial for the same
// reason, whether the last batch is still in hand or not.
func TestEventGapIsInherited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := openReplica(t, new(streamtest.Network))
		from.run("register S type=Standard")
		from.run("standard S id=1 path=a backend=w medium=gpu")
		from.run("standard S id=3 path=b backend=w medium=gpu")
		to, open := newReplica(t, from.network)
		to.run("register S type=Standard")
		recoverFrom(t, from.conductor, to.conductor, true, 0)
		open()
		synctest.Wait()
		want := func(state string) {
			t.Helper()
			for name, b := range map[string]*bench{"replica": to, "first": from} {
				if got := b.run("services show=State,Reason"); got != "S|default|0 "+state+"\n" {
					t.Errorf("%s: %s", name, got)
				}
			}
		}
		want("State=partial Reason=event_gap")
		from.run("standard S id=4 path=c backend=w medium=gpu")
		want("State=partial Reason=event_gap")
		from.run("clear S")
		want("State=synced Reason=")
	})
}
