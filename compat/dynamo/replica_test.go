package dynamo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/history/peer"
	"example.com/conductor/index/hash"
)

// world is a server and random workers, two of two ranks. They hash alike, so that every
// block has a known place: a dump tells of no other. It remembers which prompt each
// engine hash names.
type world struct {
	*testServer
	rng   *rand.Rand
	names map[uint64]string
}

type publisherOf struct {
	instance, group, kind string
	rank                  int
}

var workers = []publisherOf{
	{"1", "default", "vLLM", 0}, {"1", "default", "vLLM", 1}, {"2", "default", "SGLang", 0}, {"2", "g:h", "vLLM", 1},
}

func (p publisherOf) endpoint() string {
	return fmt.Sprintf("tcp://10.0.0.1:%d", 1+slices.Index(workers, p))
}

// follow registers a worker.
func (s *testServer) follow(p publisherOf) {
	s.t.Helper()
	rec := s.send("POST", "/conductor/v1/register",
		fmt.Sprintf(`{"instance_id":%q,"endpoint":%q,"type":%q,"modelname":"m:x","tenant_id":%q,"block_size":4,"dp_rank":%d}`,
			p.instance, p.endpoint(), p.kind, p.group, p.rank))
	if rec.Code != 200 {
		s.t.Fatal(rec.Body)
	}
}

func (w *world) pick(of ...string) string { return of[w.rng.IntN(len(of))] }

// path is the names of the blocks of a random prompt, their tokens and the images in them.
func (w *world) path() (engine []uint64, tokens []uint32, infos []any) {
	path := ""
	for range 1 + w.rng.IntN(4) {
		name := w.pick(blockNames...)
		path += "/" + name
		h := fnv.New64a()
		fmt.Fprint(h, path)
		e := h.Sum64()
		w.names[e] = path
		engine, tokens, infos = append(engine, e), append(tokens, tokensOf(name)...), append(infos, infoOf(name))
	}
	return engine, tokens, infos
}

// blockNames are the kinds of blocks: an upper-case one has the tokens of the lower-case
// one, and an image.
var blockNames = []string{"a", "b", "c", "A"}

// tokensOf are the tokens of a block by its name.
func tokensOf(name string) []uint32 {
	t := uint32(name[0] | 0x20)
	return []uint32{firstToken, t + 1, t + 2, t + 3}
}

// firstToken is that of every block.
const firstToken = 7

// itemsOf are the numbers of the images in it.
func itemsOf(name string) []uint64 {
	if name == "A" {
		return []uint64{42}
	}
	return nil
}

func infoOf(name string) any {
	var objects []any
	for _, n := range itemsOf(name) {
		objects = append(objects, map[string]any{"mm_hash": n, "offsets": []any{}})
	}
	if objects == nil {
		return nil
	}
	return map[string]any{"mm_objects": objects}
}

// act publishes something.
func (w *world) act() {
	p := workers[w.rng.IntN(len(workers))]
	engine, tokens, infos := w.path()
	e := map[string]any{"block_hashes": engine, "medium": w.pick("GPU", "GPU", "CPU", "DISK", "EXTERNAL")}
	switch n := w.rng.IntN(100); {
	case n < 65:
		e["type"], e["parent_block_hash"], e["token_ids"], e["block_size"] = "BlockStored", nil, tokens, 4
		e["block_mm_infos"] = infos
	case n < 97:
		e["type"] = "BlockRemoved"
	default:
		e = map[string]any{"type": "AllBlocksCleared"}
	}
	synctest.Wait()
	w.network.PublisherAt(p.endpoint()).Publish(streamtest.EncodeBatch(1.5, nil, e))
	synctest.Wait()
}

// rows are what a dump says, block by block and so that their order, and how they
// are gathered into events, does not matter. Nor does it how a parent without holders was
// named.
func (w *world) rows(s *testServer, path, accept string) []string {
	w.t.Helper()
	var rows []string
	type child struct{ slot, who, name, parent string }
	var children []child
	held := make(map[string]bool)
	name := func(h uint64) string {
		if w.names[h] == "" {
			w.t.Errorf("%s: %d is no engine hash", path, h)
		}
		return w.names[h]
	}
	event := func(key string, raw []byte) {
		var e routerEvent
		if err := json.Unmarshal(raw, &e); err != nil {
			w.t.Fatalf("%v: %s", err, raw)
		}
		var data storedData
		if err := json.Unmarshal(e.Event.Data, &data); err != nil {
			w.t.Fatalf("%v: %s", err, raw)
		}
		parent := "-"
		if data.Stored.Parent != nil {
			parent = name(uint64(*data.Stored.Parent))
		}
		for _, b := range data.Stored.Blocks {
			who := fmt.Sprintf("%s %d/%d %s is %d", key, *e.Worker, e.Event.Rank, *e.Tier, *b.Tokens)
			c := child{key, who, name(uint64(*b.Block)), parent}
			children = append(children, c)
			held[key+c.name] = true
			parent = c.name
		}
	}
	rec := s.accept(path, accept)
	if rec.Code != 200 {
		w.t.Fatalf("%s: %d %s", path, rec.Code, rec.Body)
	}
	if accept == ndjson {
		for raw := range bytes.Lines(rec.Body.Bytes()) {
			var line struct {
				Key   string
				Event json.RawMessage
			}
			if err := json.Unmarshal(raw, &line); err != nil {
				w.t.Fatalf("%v: %s", err, raw)
			}
			event(line.Key, line.Event)
		}
	} else {
		var slots map[string]struct{ Events []json.RawMessage }
		if err := json.Unmarshal(rec.Body.Bytes(), &slots); err != nil {
			w.t.Fatalf("%v: %s", err, rec.Body)
		}
		for key, slot := range slots {
			for _, raw := range slot.Events {
				event(key, raw)
			}
		}
	}
	for _, c := range children {
		if c.parent != "-" && !held[c.slot+c.parent] {
			c.parent = "nobody"
		}
		rows = append(rows, fmt.Sprintf("%s: %s behind %s", c.who, c.name, c.parent))
	}
	slices.Sort(rows)
	return rows
}

// answers are those to all short prompts, and by local hashes, without tree_sizes: blocks
// without a known place are counted there, and no dump tells of them.
func (s *testServer) answers() []string {
	var all []string
	ask := func(path, body string) {
		text := s.send("POST", path, body).Body.String()
		before, after, _ := strings.Cut(text, `,"tree_sizes":`)
		if _, after, ok := strings.Cut(after, `,"instances":`); ok {
			text = before + after
		}
		all = append(all, path+" "+body+": "+text)
	}
	var grow func(tokens []uint32, items [][]uint64, deep int)
	grow = func(tokens []uint32, items [][]uint64, deep int) {
		if deep == 0 {
			return
		}
		for _, name := range blockNames {
			items := append(slices.Clip(items), itemsOf(name))
			longer := append(slices.Clip(tokens), tokensOf(name)...)
			text, _ := json.Marshal(longer)
			for _, group := range []string{"default", "g:h"} {
				ask("/query", fmt.Sprintf(`{"model_name":"m:x","routing_group":%q,"token_ids":%s}`, group, text))
				for ahead := range 2 {
					locals, _ := json.Marshal(hash.Scheme{Seed: hash.DefaultSeed}.AppendWindows(nil, append(longer, firstToken), 4,
						ahead, items))
					ask("/query_tiered_by_hash", fmt.Sprintf(`{"model_name":"m:x","routing_group":%q,"block_hashes":%s}`, group, locals))
				}
			}
			grow(longer, items, deep-1)
		}
	}
	grow(nil, nil, 3)
	slices.Sort(all)
	return all
}

// compare reports the elements of one of two sorted lists that the other lacks.
func compare(t *testing.T, what string, got, want []string) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	var diff strings.Builder
	for lines := 0; (len(got) > 0 || len(want) > 0) && lines < 10; lines = strings.Count(diff.String(), "\n") {
		switch {
		case len(want) == 0 || len(got) > 0 && got[0] < want[0]:
			fmt.Fprintf(&diff, "got  %s\n", got[0])
			got = got[1:]
		case len(got) == 0 || got[0] > want[0]:
			fmt.Fprintf(&diff, "want %s\n", want[0])
			want = want[1:]
		default:
			got, want = got[1:], want[1:]
		}
	}
	t.Fatalf("%s:\n%s", what, &diff)
}

// replica recovers a server of its own from the world's, through HTTP.
func (w *world) replica(t *testing.T, handler http.Handler, follow ...publisherOf) *testServer {
	t.Helper()
	web := pipes{}
	web.serve(t, "peer:80", handler)
	gate := make(chan struct{})
	s := newServerOn(t, Config{Replica: web.asks(t, "http://peer/")}, w.network, gate)
	for _, p := range follow {
		s.follow(p)
	}
	got := s.restore(t.Context(), 0)
	if got.State != peer.Done || len(got.Skipped) > 0 {
		t.Fatal(got)
	}
	close(gate)
	synctest.Wait()
	for _, err := range s.conductor.Check() {
		t.Fatal(err)
	}
	return s
}

// asked asks a peer for lines, or for an object.
func asked(h http.Handler, accept string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Accept", accept)
		h.ServeHTTP(w, r)
	})
}

func inWorlds(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	const seed = 1
	for i := range 12 {
		inBubble(t, Config{}, func(t *testing.T, s *testServer) {
			t.Logf("world %d", i)
			w := &world{s, rand.New(rand.NewPCG(seed, uint64(i))), make(map[uint64]string)}
			for _, p := range workers {
				s.follow(p)
			}
			for range w.rng.IntN(120) {
				w.act()
			}
			f(t, w)
		})
	}
}

var row = regexp.MustCompile(`^(\S+) .*: (.*) behind (.*)$`)

// placed are the rows of blocks that hang together with the beginning of a prompt,
// whichever source holds the blocks between. Of others a dump does not tell where they
// belong, and no answer tells of them.
func placed(rows []string) []string {
	type place struct{ block, behind string }
	places := make(map[string]place, len(rows))
	for _, r := range rows {
		m := row.FindStringSubmatch(r)
		p := place{m[1] + " " + m[2], ""}
		if m[3] != "-" {
			p.behind = m[1] + " " + m[3]
		}
		places[r] = p
	}
	known := map[string]bool{"": true}
	for before := -1; len(known) != before; {
		before = len(known)
		for _, p := range places {
			if known[p.behind] {
				known[p.block] = true
			}
		}
	}
	return slices.DeleteFunc(rows, func(r string) bool { return !known[places[r].block] })
}

// TestReplicaOfDump holds that a replica has all that can be told in a dump, and answers as its
// peer does, whichever workers it knew before.
func TestReplicaOfDump(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		for _, accept := range []string{ndjson, "*/*"} {
			s := w.replica(t, asked(w.handler, accept), workers[:w.rng.IntN(len(workers)+1)]...)
			compare(t, "dump", placed(w.rows(s, "/dump", accept)), placed(w.rows(w.testServer, "/dump", accept)))
			s.follow(workers[0]) // so that their groups are known although they hold nothing
			s.follow(workers[3])
			compare(t, "answers", s.answers(), w.answers())
		}
	})
}

// A parent may be on a lower tier only, or another worker's, and so come after its
// children in a dump.
func TestReplicaOfEarlyChildren(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		s.register(1, 0, "")
		s.register(2, 0, "")
		s.publish(1, 0, stored("DISK", 1, 1), stored("CPU", 2, 2), stored("GPU", 3, 3))
		s.publish(2, 0, stored("GPU", 4, 4))
		want := s.send("GET", "/dump", "").Body.String()
		if n := strings.Count(want, `"parent_hash":100`); n != 3 {
			t.Fatalf("%d children: %s", n, want)
		}
		w := &world{testServer: s}
		for _, accept := range []string{ndjson, "*/*"} {
			w.replica(t, asked(s.handler, accept)).do("GET", "/dump", "", 200, want)
		}
	})
}
