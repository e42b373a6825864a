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

	"kvconductor/conductor/replica"
	"kvconductor/events/stream/streamtest"
	"kvconductor/index/hash"
)

// world is a server and random workers: two of two ranks, one of a string id, and a
// pool. It remembers which prompt each engine hash names.
type world struct {
	*testServer
	rng   *rand.Rand
	names map[uint64]string
	plain bool // nothing that only details can tell, and alike
	// alike are worlds whose workers hash alike. There every block has a known place:
	// a block that waits for what another worker teaches joins with the worker's next
	// event, and in a replica at once.
	alike bool
}

type publisherOf struct {
	instance, group, kind string
	rank                  int
}

var workers = []publisherOf{
	{"1", "default", "vLLM", 0}, {"1", "default", "vLLM", 1}, {"2", "default", "SGLang", 0}, {"2", "g:h", "vLLM", 1},
	{"node", "default", "vLLM", 0}, {"pool", "default", "Mooncake", 0},
}

// eagle reports whether a worker has a draft model, in a world that may have some:
// local hashes alone do not tell their tokens. All of a
// group have one or none, and behind every block the same token follows, so that
// there is one local hash to a block.
func (w *world) eagle(p publisherOf) bool { return p.group == "g:h" && !w.plain }

func (p publisherOf) endpoint() string {
	return fmt.Sprintf("tcp://10.0.0.1:%d", 1+slices.Index(workers, p))
}

// follow registers a worker.
func (s *testServer) follow(p publisherOf) {
	s.t.Helper()
	rec := s.send("POST", "/conductor/v1/register", fmt.Sprintf(`{"instance_id":%q,"endpoint":%q,"type":%q,"modelname":"m:x","tenant_id":%q,"block_size":4,"dp_rank":%d}`,
		p.instance, p.endpoint(), p.kind, p.group, p.rank))
	if rec.Code != 200 {
		s.t.Fatal(rec.Body)
	}
}

func (w *world) pick(of ...string) string { return of[w.rng.IntN(len(of))] }

// about is an adapter and a salt. Engines hash both.
type about struct{ lora, salt string }

var contexts = []about{{}, {"", "s"}, {"l", ""}, {"l", "s"}}

// path is the names of some blocks of a random prompt in a context, from the one
// at from on, their parent's, nil at the beginning, their tokens and the images in them.
func (w *world) path(p publisherOf, c about) (engine []uint64, parent any, tokens []uint32, infos []any) {
	path := ""
	n := 1 + w.rng.IntN(4)
	from := max(0, w.rng.IntN(n+2)-2)
	if w.alike {
		from = 0
	}
	for i := range n {
		name := w.pick(blockNames...)
		path += "/" + name
		h := fnv.New64a()
		if !w.alike {
			fmt.Fprint(h, p)
		}
		fmt.Fprint(h, c, path)
		e := h.Sum64()
		w.names[e] = fmt.Sprint(c, path)
		switch {
		case i >= from:
			engine, tokens, infos = append(engine, e), append(tokens, tokensOf(name)...), append(infos, infoOf(name))
		case i == from-1:
			parent = e
		}
	}
	return engine, parent, tokens, infos
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

// pairsOf are the pairs of neighbours, up to the token behind the last.
func pairsOf(tokens []uint32) [][]uint32 {
	pairs := make([][]uint32, len(tokens))
	for i, t := range tokens {
		next := uint32(firstToken)
		if i+1 < len(tokens) {
			next = tokens[i+1]
		}
		pairs[i] = []uint32{t, next}
	}
	return pairs
}

// act publishes something.
func (w *world) act() {
	p := workers[w.rng.IntN(len(workers))]
	var c about
	if w.rng.IntN(3) == 0 && !w.plain {
		c = contexts[w.rng.IntN(len(contexts))]
	}
	if p.kind == "Mooncake" {
		c.lora = "" // which workers once announced an adapter, and are served with it, is not in a dump
	}
	if w.plain {
		for p.kind == "Mooncake" || p.instance == "node" {
			p = workers[w.rng.IntN(len(workers))]
		}
	}
	engine, parent, tokens, infos := w.path(p, c)
	media := []string{"GPU", "GPU", "CPU", "DISK", "EXTERNAL"}
	if !w.plain {
		media = append(media, "TAPE")
	}
	e := map[string]any{"block_hashes": engine, "medium": w.pick(media...)}
	if !w.plain && w.rng.IntN(5) == 0 {
		e["ownership"] = "kvcr"
	}
	switch n := w.rng.IntN(100); {
	case n < 65:
		e["type"], e["parent_block_hash"], e["token_ids"], e["block_size"] = "BlockStored", parent, tokens, 4
		e["block_mm_infos"] = infos
		if w.eagle(p) {
			e["token_ids"] = pairsOf(tokens)
		}
		if c.lora != "" {
			e["lora_name"] = c.lora
		}
		if c.salt != "" {
			e["cache_salt"] = c.salt
		}
		if n < 5 && !w.alike {
			e["token_ids"], e["block_size"], e["parent_block_hash"] = []int{}, 0, nil
		}
	case n < 97:
		e["type"] = "BlockRemoved"
	default:
		e = map[string]any{"type": "AllBlocksCleared"}
	}
	synctest.Wait()
	w.network.At(p.endpoint()).Publish(streamtest.Batch(1.5, nil, e))
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
	name := func(hashes ...uint64) string {
		var all []string
		for _, h := range hashes {
			if w.names[h] == "" {
				w.t.Errorf("%s: %d is no engine hash", path, h)
			}
			all = append(all, w.names[h])
		}
		slices.Sort(all)
		return strings.Join(slices.Compact(all), "+")
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
		parent, seq := "-", uint64(0)
		if data.Stored.Parent != nil {
			parent = name(uint64(*data.Stored.Parent))
		}
		for i, b := range data.Stored.Blocks {
			who := fmt.Sprintf("%s %d/%d %s", key, *e.Worker, e.Event.Rank, *e.Tier)
			engine := []uint64{uint64(*b.Block)}
			if d := e.Detail; d != nil {
				local := uint64(*b.Tokens)
				if d.Locals != nil {
					local = d.Locals[i]
				}
				switch {
				case i > 0:
					seq = hash.Scheme{Seed: hash.DefaultSeed}.Next(seq, local)
				case d.Seq != nil:
					seq = *d.Seq
				}
				engine = append(engine, d.More[i]...)
				who += fmt.Sprintf(" %s %d %s %t lora %s salt %s medium %s group %d backend %q owned %t waiting %t copies %d bare %t seq %d local %d",
					d.Instance, d.Source, d.Tenant, d.Pool, d.Lora, d.Salt, d.Medium, d.Group, d.Backend, d.Owned, d.Waiting, d.Copies[i], d.Bare, seq, local)
			}
			if d := e.Detail; i == 0 && d != nil && (parent == "-" && !d.Root || d.Gone) {
				parent = "nobody"
			}
			c := child{key, fmt.Sprintf("%s is %d", who, *b.Tokens), name(engine...), parent}
			children = append(children, c)
			held[key+c.name] = true
			parent = name(engine[0])
		}
	}
	known := func(key string, raw []byte) {
		var n nameDetail
		if err := json.Unmarshal(raw, &n); err != nil {
			w.t.Fatalf("%v: %s", err, raw)
		}
		rows = append(rows, fmt.Sprintf("%s: %s %s lora %s salt %s: %s is %d", key, n.Instance, n.Tenant, n.Lora, n.Salt, name(n.Block), n.Seq))
	}
	rec := s.accept(path, accept)
	if rec.Code != 200 {
		w.t.Fatalf("%s: %d %s", path, rec.Code, rec.Body)
	}
	if accept == ndjson {
		for raw := range bytes.Lines(rec.Body.Bytes()) {
			var line struct {
				Key                 string
				Event, Source, Name json.RawMessage
			}
			if err := json.Unmarshal(raw, &line); err != nil {
				w.t.Fatalf("%v: %s", err, raw)
			}
			switch {
			case line.Event != nil:
				event(line.Key, line.Event)
			case line.Source != nil:
				rows = append(rows, line.Key+" source "+string(line.Source))
			default:
				known(line.Key, line.Name)
			}
		}
	} else {
		var slots map[string]struct{ Events, Sources, Names []json.RawMessage }
		if err := json.Unmarshal(rec.Body.Bytes(), &slots); err != nil {
			w.t.Fatalf("%v: %s", err, rec.Body)
		}
		for key, slot := range slots {
			for _, raw := range slot.Events {
				event(key, raw)
			}
			for _, raw := range slot.Sources {
				rows = append(rows, key+" source "+string(raw))
			}
			for _, raw := range slot.Names {
				known(key, raw)
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

// answers are those to all short prompts in every context, and by local hashes,
// without tree_sizes: blocks without a known place are counted there, and only
// details tell of them.
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
				for _, c := range contexts {
					ask("/query", fmt.Sprintf(`{"model_name":"m:x","routing_group":%q,"lora_name":%q,"cache_salt":%q,"token_ids":%s}`, group, c.lora, c.salt, text))
					scheme := hash.Scheme{Seed: hash.Seeded(hash.DefaultSeed, c.lora, c.salt)}
					for ahead := range 2 {
						locals, _ := json.Marshal(scheme.Windows(nil, append(longer, firstToken), 4, ahead, items))
						ask("/query_tiered_by_hash", fmt.Sprintf(`{"model_name":"m:x","routing_group":%q,"block_hashes":%s}`, group, locals))
					}
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
func (w *world) replica(t *testing.T, peer http.Handler, follow ...publisherOf) *testServer {
	t.Helper()
	web := pipes{}
	web.serve(t, "peer:80", peer)
	gate := make(chan struct{})
	s := newServerOn(t, Config{Replica: web.asks(t, "http://peer/")}, w.network, gate)
	for _, p := range follow {
		s.follow(p)
	}
	got := s.dialect.replica.Recover(t.Context(), s.conductor, 0)
	if got.State != replica.Done || len(got.Skipped) > 0 {
		t.Fatal(got)
	}
	close(gate)
	synctest.Wait()
	for _, err := range s.conductor.Check() {
		t.Fatal(err)
	}
	return s
}

// without asks a peer as one that knows nothing of details, or of lines.
func without(h http.Handler, query, accept string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.RawQuery = query
		r.Header.Set("Accept", accept)
		h.ServeHTTP(w, r)
	})
}

func inWorlds(t *testing.T, plain bool, f func(t *testing.T, w *world)) {
	t.Helper()
	const seed = 1
	for i := range 12 {
		inBubble(t, Config{}, func(t *testing.T, s *testServer) {
			t.Logf("world %d", i)
			w := &world{s, rand.New(rand.NewPCG(seed, uint64(i))), make(map[uint64]string), plain, plain || i%2 == 0}
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

// A replica of ours has exactly what its peer has: it dumps the same and answers the
// same, whichever workers it knew before.
func TestReplicaEqualsPeer(t *testing.T) {
	inWorlds(t, false, func(t *testing.T, w *world) {
		want := w.rows(w.testServer, "/dump?detail=1", ndjson)
		compare(t, "the two forms", w.rows(w.testServer, "/dump?detail=1", "*/*"), want)
		s := w.replica(t, w.handler, workers[:w.rng.IntN(len(workers)+1)]...)
		compare(t, "details", w.rows(s, "/dump?detail=1", ndjson), want)
		compare(t, "plain", placed(w.rows(s, "/dump", "*/*")), placed(w.rows(w.testServer, "/dump", "*/*")))
		compare(t, "answers", s.answers(), w.answers())

		// From the object form it is the same.
		s = w.replica(t, without(w.handler, "detail=1", "*/*"))
		compare(t, "from an object", w.rows(s, "/dump?detail=1", ndjson), want)
	})
}

var row = regexp.MustCompile(`^(\S+) .*: (.*) behind (.*)$`)

// placed are the rows of blocks that hang together with the beginning of a prompt,
// whichever source holds the blocks between. Of others a plain dump does not tell where they
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

// From a plain dump it has all that can be told in one.
func TestPlainReplica(t *testing.T) {
	inWorlds(t, true, func(t *testing.T, w *world) {
		for _, accept := range []string{ndjson, "*/*"} {
			s := w.replica(t, without(w.handler, "", accept), workers[:w.rng.IntN(len(workers)+1)]...)
			compare(t, "plain", placed(w.rows(s, "/dump", accept)), placed(w.rows(w.testServer, "/dump", accept)))
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
		for _, query := range []string{"detail=1", ""} {
			for _, accept := range []string{ndjson, "*/*"} {
				w.replica(t, without(s.handler, query, accept)).do("GET", "/dump", "", 200, want)
			}
		}
	})
}

// The canonical hashes of a peer with another seed mean nothing here, but those of
// Dynamo do: blocks without adapter and salt are recovered, as a guess.
func TestReplicaOfAnotherSeed(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		s.register(1, 0, "")
		s.publish(1, 0, stored("GPU", 1, 2), stored("CPU", 3, 3), stored("GPU", 1, 2, "cache_salt", "s"))
		for _, accept := range []string{ndjson, "*/*"} {
			text := strings.ReplaceAll(s.accept("/dump?detail=1", accept).Body.String(), `"hash_seed":1337`, `"hash_seed":7`)
			text = regexp.MustCompile(`"seq_hash":[0-9]+`).ReplaceAllString(text, `"seq_hash":77`)
			web := pipes{}
			web.serve(t, "peer:80", says(200, strings.Replace(accept, "*/*", "application/json", 1), text))
			b := newServerOn(t, Config{Replica: web.asks(t, "http://peer")}, s.network, make(chan struct{}))
			b.register(1, 0, "")
			if got := b.dialect.replica.Recover(t.Context(), b.conductor, 0); got.State != replica.Done || fmt.Sprint(got.Skipped) != "map[refused:2]" {
				t.Error(got)
			}
			b.do("POST", "/query", ask(promptOf(3), ""), 200, `{"scores":{"1":{"0":8}},"frequencies":[],"tree_sizes":{"1":{"0":2}},"instances":{`+
				`"1":{"longest_matched":12,"gpu":8,"dp":{"0":8},"cpu":12,"disk":12}}}`)
			if m := b.conductor.Snapshot().Sources; m[0].Mark != nil {
				t.Errorf("goes on behind %+v", m[0].Mark)
			}
		}
	})
}

// TestReplicaOfBoundPool requires that a pool serves the instances it is bound to also before
// it is registered.
func TestReplicaOfBoundPool(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, s *testServer) {
		s.register(1, 0, "")
		rec := s.send("POST", "/conductor/v1/register",
			`{"instance_id":"pool","endpoint":"tcp://10.0.0.9:1","type":"Mooncake","modelname":"m","block_size":4,"dp_rank":0,"serves":["1","2"]}`)
		if rec.Code != 200 {
			t.Fatal(rec.Body)
		}
		for _, accept := range []string{ndjson, "*/*"} {
			web := pipes{}
			web.serve(t, "peer:80", says(200, strings.Replace(accept, "*/*", "application/json", 1), s.accept("/dump?detail=1", accept).Body.String()))
			b := newServerOn(t, Config{Replica: web.asks(t, "http://peer")}, s.network, make(chan struct{}))
			if got := b.dialect.replica.Recover(t.Context(), b.conductor, 0); got.State != replica.Done {
				t.Fatal(got)
			}
			found := false
			for _, m := range b.conductor.Snapshot().Sources {
				if m.Instance == "pool" {
					found = true
					if !slices.Equal(m.Serves, []string{"1", "2"}) {
						t.Errorf("%s: the pool serves %q", accept, m.Serves)
					}
				}
			}
			if !found {
				t.Errorf("%s: no pool came back", accept)
			}
		}
	})
}
