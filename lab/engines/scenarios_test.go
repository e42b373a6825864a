package engines_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/zeebo/xxh3"

	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// hexSalt is a salt that looks like the digest of an image.
var hexSalt = strings.Repeat("0123456789abcdef", 4)

// A scenario is a life of a few engines with comparisons in between.
type scenario struct {
	name string
	has  func(release) bool // whether the release's classes can do it
	run  func(*fleet)
}

func every(release) bool { return true }
func vllmSince(version string) func(release) bool {
	return func(r release) bool { return r.since(version) }
}

var scenarios = []scenario{
	{"plain", every, func(f *fleet) { f.serve("", options{}) }},
	{"joined late", every, joinedLate},
	{"discovered", func(r release) bool { return !r.sglang() }, discovered},
	{"joined late, no replay", every, joinedBlind},
	{"killed", every, killed},
	{"ranks", every, ranks},
	{"ranks restarted in turn", every, ranksInTurn},
	{"stopped", every, stopped},
	{"flood", every, flood},
	{"adapters", func(r release) bool { return r.since("0.20") || r.sglangSince("0.5.23") }, func(f *fleet) {
		f.serve("", options{"loras": []any{nil, "adapter-a", "adapter-b"}, "salts": []any{nil, nil, "tenant-a"}})
	}},
	{"adapters by number", func(r release) bool { return !r.sglang() && !r.since("0.20") }, func(f *fleet) {
		f.serve("", options{"loras": []any{nil, "adapter-a", "adapter-b"}, "ask_base": true})
		f.finds("unnamed_adapter")
	}},
	{"namespaced hashes", func(r release) bool { return r.sglangSince("0.5.23") }, func(f *fleet) {
		f.serve("", options{"namespaced": true, "loras": []any{nil, "adapter-a"}, "salts": []any{nil, "tenant-a"}})
	}},
	{"RadixCache", func(r release) bool { return r.sglangSince("0.5.23") }, func(f *fleet) {
		f.serve("", options{"radix": true, "loras": []any{nil, "adapter-a"}, "salts": []any{nil, "tenant-a"}})
	}},
	{"SGLang, sliding window", func(r release) bool { return r.sglangSince("0.5.23") }, func(f *fleet) {
		f.serveOf(longer, "", options{"window": window, "salts": []any{nil, "tenant-a"}}) // events tell of full attention alone
	}},
	{"salts", func(r release) bool { return r.since("0.20") || r.sglangSince("0.5.23") }, func(f *fleet) {
		f.serve("", options{"salts": []any{nil, "tenant-a", hexSalt}})
	}},
	{"prompt embeddings", vllmSince("0.20"), func(f *fleet) {
		f.serve("", options{"embeds": true, "hash_seed": "0", "loras": []any{nil, "adapter-a"}, "salts": []any{nil, "tenant-a", hexSalt}})
		f.findsNothing()
	}},
	{"prompt embeddings, host tier", vllmSince("0.24"), func(f *fleet) {
		f.serve("", options{"embeds": true, "hash_seed": "0", "host": "self-describing"})
		f.findsNothing()
	}},
	{"adapters loaded again", vllmSince("0.33"), func(f *fleet) {
		f.reloads(exact, options{"loras": []any{nil, "adapter-a", "adapter-b"}})
	}},
	{"adapters loaded again, SGLang", func(r release) bool { return r.sglangSince("0.5.23") }, func(f *fleet) {
		f.reloads(longer, options{"loras": []any{nil, "adapter-a", "adapter-b"}})
		f.finds("unnamed_extra_key")
	}},
	{"adapters loaded again, flushed", func(r release) bool { return r.sglangSince("0.5.23") }, func(f *fleet) {
		f.reloads(exact, options{"flush": true, "loras": []any{nil, "adapter-a", "adapter-b"}})
		f.findsNothing()
	}},
	{"extra keys", func(r release) bool { return r.sglangSince("0.5.12") }, func(f *fleet) {
		f.serveOf(longer, "", options{"extra_keys": true, "loras": []any{nil, "user-a", "user-b"}, "ask_base": true})
		f.finds("unnamed_extra_key")
	}},
	{"extra keys, namespaced hashes", func(r release) bool { return r.sglangSince("0.5.23") }, func(f *fleet) {
		f.serveOf(longer, "", options{"extra_keys": true, "namespaced": true, "loras": []any{nil, "user-a", "user-b"}, "ask_base": true})
		f.finds("unnamed_extra_key")
	}},
	{"sessions", func(r release) bool { return r.since("0.33") || r.sglangSince("0.5.23") }, func(f *fleet) { f.sessions(options{}) }},
	{"sessions, sliding window", vllmSince("0.33"), func(f *fleet) {
		f.sessions(options{"groups": []group{full(16), sliding(16, window)}, "blocks": 640, "salts": []any{nil, "tenant-a"}})
		f.announces(window)
	}},
	{"prefill and decode", vllmSince("0.20"), func(f *fleet) { f.pair(options{"hash_seed": "0"}) }},
	{"prefill and decode, own hashes", vllmSince("0.20"), func(f *fleet) { f.pair(options{}) }},
	{"prefill and decode, adapters", vllmSince("0.20"), func(f *fleet) {
		f.pair(options{"hash_seed": "0", "loras": []any{nil, "adapter-a"}, "salts": []any{nil, "tenant-a", hexSalt}})
	}},
	{"host tier", func(r release) bool { return r.since("0.11") }, func(f *fleet) {
		f.serve("", options{"host": "hashes"})
	}},
	{"host tier, adapters", vllmSince("0.20"), func(f *fleet) {
		f.serve("", options{"host": "hashes", "loras": []any{nil, "adapter-a"}, "salts": []any{nil, "tenant-a", hexSalt}})
	}},
	{"host tier, self-describing", vllmSince("0.24"), func(f *fleet) {
		f.serve("", options{"host": "self-describing", "loras": []any{nil, "adapter-a"}, "salts": []any{nil, "tenant-a", hexSalt}})
	}},
	{"host tier, chunks of 4", vllmSince("0.33"), func(f *fleet) {
		f.serve("", options{"host": "self-describing", "chunk": 4, "loras": []any{nil, "adapter-a"}})
	}},
	{"host tier, chunks of 3, hashes", vllmSince("0.33"), func(f *fleet) {
		f.serveOf(shorter, "", options{"host": "hashes", "chunk": 3, "loras": []any{nil, "adapter-a"}, "salts": []any{nil, "tenant-a"}})
	}},
	{"host tier, resets of the device", vllmSince("0.33"), func(f *fleet) { f.resets(command{Do: "reset"}, "") }},
	{"host tier, resets of both", vllmSince("0.33"), func(f *fleet) { f.resets(command{Do: "clear"}, "all") }},
	{"host tier, Mooncake", vllmSince("0.33"), func(f *fleet) {
		f.serve("", options{"host": "mooncake", "loras": []any{nil, "adapter-a"}, "salts": []any{nil, "tenant-a"}})
	}},
	{"host tier, HiCache", func(r release) bool { return r.sglangSince("0.5.12") }, func(f *fleet) {
		f.serve("", options{"host": "hicache"})
	}},
	{"EAGLE", func(r release) bool { return r.sglang() }, func(f *fleet) {
		f.serve("", options{"eagle": true})
	}},
	{"look-ahead 1", vllmSince("0.33"), func(f *fleet) { f.serve("", options{"lookahead": 1}) }},
	{"look-ahead 4", vllmSince("0.33"), func(f *fleet) {
		f.serve("", options{"lookahead": 4, "loras": []any{nil, "adapter-a"}, "salts": []any{nil, hexSalt}})
	}},
	{"full report", vllmSince("0.33"), func(f *fleet) { f.serve("", options{"full": "sessions"}) }},
	{"full report, look-ahead 1", vllmSince("0.33"), func(f *fleet) {
		f.serve("", options{"full": "sessions", "lookahead": 1})
	}},
	{"full report, no sessions", vllmSince("0.33"), func(f *fleet) {
		f.want = 0 // copies and reports look alike: the server says so instead
		f.serve("", options{"full": "plain"})
		f.finds("copies_grow")
	}},
	{"full report, copies: set", vllmSince("0.33"), func(f *fleet) {
		f.serve("stream: {copies: set}", options{"full": "plain"})
	}},
}

// A fleet is the engines of one scenario with the server that follows them.
type fleet struct {
	t       *testing.T
	release release
	server  *server
	engines []*engine

	random               *rand.Rand
	want, answers, wrong int // answers to compare, compared, wrong
	some, differ         int // truths above 0, and answers that are not the truth
	note                 string
}

// start starts the server, and engines with seeds of their own.
func (f *fleet) start(config string, n int, replay bool, o options) {
	f.t.Helper()
	f.server = startServer(f.t, config)
	for i := range n {
		port, second := freePorts(f.t, 2), 0
		if replay {
			second = port + 1
		}
		f.engine(fmt.Sprintf("engine-%d", i), 0, port, second, o)
	}
	for _, e := range f.engines {
		e.answer()
	}
}

// engine launches one rank that publishes on one port and serves replays on another, if that is not 0.
func (f *fleet) engine(instance string, rank, port, replay int, o options) *engine {
	f.t.Helper()
	e := &engine{t: f.t, instance: instance, rank: rank, port: port, last: -1, options: options{
		"engine": f.release.engine, "version": f.release.version, "rank": rank, "port": port - rank, "seed": len(f.engines) + 1,
		"unpacked": filepath.Join(os.Getenv("ENGINES_CACHE"), f.release.engine+"-"+f.release.version),
		// Pages of SGLang 0.5.5 name no parent across nodes: only prompts without a common page can be told from its events.
		"apart": f.release.sglang() && !f.release.sglangSince("0.5.12"),
	}}
	if replay != 0 {
		e.replay = replay
		e.options["replay"] = replay - rank // the publisher adds the rank
	}
	for name, value := range o {
		e.options[name] = value
	}
	f.engines = append(f.engines, e)
	f.t.Cleanup(e.kill)
	e.launch()
	return e
}

// register tells the server of an engine.
func (f *fleet) register(e *engine) {
	f.t.Helper()
	kind := "vLLM"
	if f.release.sglang() {
		kind = "SGLang"
	}
	body := map[string]any{
		"endpoint": fmt.Sprintf("tcp://127.0.0.1:%d", e.port), "type": kind, "modelname": model, "instance_id": e.instance,
		"block_size": e.block(), "dp_rank": e.rank,
	}
	if e.options["drafter"] == true {
		body["drafter"] = "drops_last_block"
	}
	if clear, is := e.options["clear"]; is {
		body["clear"] = clear
	}
	if in := e.options["drops"]; in != nil {
		body["drafter"] = in
	}
	if e.replay != 0 {
		body["replay_endpoint"] = fmt.Sprintf("tcp://127.0.0.1:%d", e.replay)
	}
	if e.options["full"] == "sessions" {
		body["reports"] = "full"
	}
	f.server.call("/register", body, new(any))
}

// settle waits until the server has applied all that the engine published, in one of the states.
func (f *fleet) settle(e *engine, states ...string) service {
	f.t.Helper()
	var row service
	eventually(f.t, fmt.Sprintf("%s has published up to %d in an epoch after %d", e.instance, e.last, e.epoch), func() (string, bool) {
		row = f.server.service(e)
		for _, state := range states {
			if row.State == state && row.LastSeq != nil && *row.LastSeq == e.last && row.Epoch > e.epoch {
				return "", true
			}
		}
		seq := int64(-1)
		if row.LastSeq != nil {
			seq = *row.LastSeq
		}
		return fmt.Sprintf("%d applied, epoch %d, %s %s, dropped %v", seq, row.Epoch, row.State, row.Reason, row.DroppedBy), false
	})
	return row
}

// answer is one row of an answer.
type answer struct {
	Longest int                               `json:"longest_matched"`
	Ranks   map[string]struct{ GPU, CPU int } `json:"rank_matches"`
	Bound   bool                              `json:"upper_bound"`
	Detail  map[string]struct {
		State     string
		Watermark *int64
	} `json:"detail"`
}

// A slack is how answers may differ from the truth.
type slack int

const (
	exact slack = iota
	shorter
	longer
)

// compare asks n questions about an instance and compares the answers with the truth of all its ranks.
func (f *fleet) compare(ranks []*engine, n int, may slack) {
	f.t.Helper()
	truths := make([][]question, len(ranks))
	asking := f.random.IntN(len(ranks))
	truths[asking] = ranks[asking].do(command{Do: "ask", N: n})
	for i, e := range ranks {
		if i != asking {
			truths[i] = e.do(command{Do: "truth", Questions: truths[asking]})
		}
	}
	for i, q := range truths[asking] {
		var all map[string]map[string]answer
		path, body := "/query", map[string]any{"model": model, "block_size": ranks[0].block(), "lora_name": q.Lora, "cache_salt": q.Salt,
			"instance_id": ranks[0].instance}
		if len(q.Embeds) > 0 {
			path, body["seq_hashes"] = "/query_by_hash", q.keys(f.t)
		} else {
			body["token_ids"] = q.Tokens
		}
		f.server.call(path+"?detail=1", body, &all)
		row := all["default"][ranks[0].instance]
		var wrong []string
		differs := false
		check := func(field string, tokens, want int) {
			differs = differs || tokens != want
			switch {
			case tokens > want && may != longer:
				wrong = append(wrong, fmt.Sprintf("%s is %d, %d too many", field, tokens, tokens-want))
			case tokens < want && may != shorter:
				wrong = append(wrong, fmt.Sprintf("%s is %d, %d too few", field, tokens, want-tokens))
			}
		}
		check("longest_matched", row.Longest, longest(truths, i))
		for r, e := range ranks {
			rank := fmt.Sprint(e.rank)
			check("gpu of rank "+rank, row.Ranks[rank].GPU, truths[r][i].device())
			if reached := truths[r][i].Reached; reached != nil {
				check("cpu of rank "+rank, row.Ranks[rank].CPU, *reached)
			}
			if mark := row.Detail[rank].Watermark; mark == nil || *mark != e.last {
				f.t.Fatalf("%s: the answer's watermark is not %d", e.instance, e.last)
			}
		}
		f.answers++
		if differs {
			f.differ++
		}
		if longest(truths, i) > 0 {
			f.some++
		}
		if len(wrong) == 0 {
			continue
		}
		if f.wrong++; f.wrong <= 5 {
			f.t.Logf("%s: %s: %d tokens, %d blocks of embeddings, adapter %s, salt %s, held %s",
				ranks[0].instance, strings.Join(wrong, "; "), len(q.Tokens), len(q.Embeds), text(q.Lora), text(q.Salt), q.Held)
		}
	}
}

// keys returns the keys of the blocks of a prompt with embeddings.
func (q *question) keys(t *testing.T) []uint64 {
	t.Helper()
	items := make([][]uint64, len(q.Embeds))
	for i, digits := range q.Embeds {
		digest, err := hex.DecodeString(digits)
		must.Succeed(t, err)
		packed, err := msgpack.Marshal(digest)
		must.Succeed(t, err)
		items[i] = []uint64{xxh3.Hash(packed)}
	}
	s := hash.DefaultScheme()
	return s.AppendChain(nil, s.AppendWindows(nil, q.Tokens, blockSize, 0, items))
}

// device returns how many tokens of a prompt the engine has on the device.
func (q *question) device() int {
	if q.Taken != nil {
		return *q.Taken
	}
	return (len(q.Held) - len(strings.TrimLeft(q.Held, "d"))) * blockSize
}

// longest returns how many tokens of question i the ranks of an instance have. Several groups of a rank have what they have by themselves.
func longest(truths [][]question, i int) (tokens int) {
	if truths[0][i].Taken != nil {
		for _, t := range truths {
			tokens = max(tokens, *t[i].Taken)
			if t[i].Reached != nil {
				tokens = max(tokens, *t[i].Reached)
			}
		}
		return tokens
	}
	for tokens/blockSize < len(truths[0][i].Held) && anyHolds(truths, i, tokens/blockSize) {
		tokens += blockSize
	}
	return tokens
}

// anyHolds reports whether a rank holds a block of question i.
func anyHolds(truths [][]question, i, block int) bool {
	for _, t := range truths {
		if t[i].Held[block] != '-' {
			return true
		}
	}
	return false
}

func text(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

// rounds lets engines of one instance each work and be compared until the scenario has its answers.
func (f *fleet) rounds(may slack) {
	f.t.Helper()
	const most = 12
	for left := most; f.answers < f.want; left-- {
		each := (f.want - f.answers + max(left, 1)*len(f.engines) - 1) / (max(left, 1) * len(f.engines))
		for _, e := range f.engines {
			e.send(command{Do: "work", N: 150})
		}
		for _, e := range f.engines {
			e.answer()
			f.settle(e, "synced")
			f.compare([]*engine{e}, each, may)
		}
	}
	if may != exact {
		f.note = fmt.Sprintf("%d not exact", f.differ)
	}
}

// serve compares two engines that are followed from their start.
func (f *fleet) serve(config string, o options) { f.serveOf(exact, config, o) }

// serveOf is serve for engines whose events do not tell all.
func (f *fleet) serveOf(may slack, config string, o options) {
	f.start(config, 2, true, o)
	for _, e := range f.engines {
		f.register(e)
	}
	f.rounds(may)
}

// sessions compares two engines whose requests have sessions and report new blocks only. A block that
// two requests computed has two copies, and stays when one of them goes.
func (f *fleet) sessions(o options) {
	f.t.Helper()
	o["sessions"] = true
	f.serve("", o)
	f.findsNothing()
	if f.release.sglang() {
		return // a tree has one copy of a block
	}
	kept := 0
	for _, e := range f.engines {
		kept += e.kept
		if e.kept == 0 {
			f.t.Errorf("%s removed no copy that left another one", e.instance)
		}
	}
	f.note = fmt.Sprintf("%d removals left a copy", kept)
}

// window is the sliding window of a model, in tokens.
const window = 128

// announces checks that answers name the sliding window of every engine.
func (f *fleet) announces(window int) {
	f.t.Helper()
	for _, e := range f.engines {
		for _, q := range e.do(command{Do: "ask", N: 1}) {
			var all map[string]map[string]struct{ Window int }
			f.server.call("/query?detail=1", map[string]any{"model": model, "block_size": blockSize, "token_ids": q.Tokens,
				"instance_id": e.instance}, &all)
			if got := all["default"][e.instance].Window; got != window {
				f.t.Errorf("%s: the answer's window is %d, want %d", e.instance, got, window)
			}
		}
	}
}

// pair compares an instance that prefills and one that decodes. The second takes prompts of the first:
// their blocks arrive in pieces, and it announces the last piece before the others, which may never come.
func (f *fleet) pair(o options) {
	f.t.Helper()
	f.start("", 2, true, o)
	prefill, decode := f.engines[0], f.engines[1]
	f.register(prefill)
	f.register(decode)
	const most = 20
	orphans := 0
	for left := most; f.answers < f.want; left-- {
		each := (f.want - f.answers + 2*max(left, 1) - 1) / (2 * max(left, 1))
		if left%2 == 0 {
			prefill.do(command{Do: "work", N: 60})
			f.settle(prefill, "synced")
		}
		sent := prefill.do(command{Do: "ask", N: 20})
		decode.do(command{Do: "receive", Questions: sent})
		decode.do(command{Do: "work", N: 60})
		if row := f.settle(decode, "synced"); row.Orphans > 0 {
			orphans++
		}
		f.compare([]*engine{decode}, each, exact)
		if left == most/2 {
			prefill.epoch = f.server.service(prefill).Epoch
			prefill.dies(60)
			prefill.again(100, 0)
		}
		prefill.do(command{Do: "work", N: 60})
		f.settle(prefill, "synced")
		f.compare([]*engine{prefill}, each, exact)
		f.compare([]*engine{decode}, each, exact)
	}
	f.note = fmt.Sprintf("blocks waited for a parent in %d of the rounds", orphans)
	if orphans == 0 {
		f.t.Error("no block ever waited for its parent")
	}
}

// reloads loads the adapters of two engines again under their names, with other weights. An engine does not reuse what it computed
// with the weights before, which stays in its cache until it is evicted.
func (f *fleet) reloads(may slack, o options) {
	f.t.Helper()
	const loads = 5
	want := f.want
	for n := range loads {
		f.want = want * (n + 1) / loads
		if n == 0 {
			f.serve("", o) // with one load, answers are always exact
			continue
		}
		for _, e := range f.engines {
			e.do(command{Do: "reload"})
			f.settle(e, "synced")
			f.compare([]*engine{e}, want/loads/4, may)
		}
		f.rounds(may)
	}
	f.want = want
}

// finds lets every engine work until the doctor has a finding about it.
func (f *fleet) finds(code string) {
	f.t.Helper()
	for _, e := range f.engines {
		eventually(f.t, e.instance+" has no finding "+code, func() (string, bool) {
			e.do(command{Do: "work", N: 100})
			row := f.settle(e, "synced")
			for _, finding := range row.Findings {
				if finding.Code == code {
					return "", true
				}
			}
			return fmt.Sprint(row.Findings), false
		})
	}
	f.note = strings.TrimPrefix(f.note+", finding "+code, ", ")
}

// findsNothing reports the findings about engines that there are, and what the server left out.
func (f *fleet) findsNothing() {
	f.t.Helper()
	for _, e := range f.engines {
		row := f.server.service(e)
		delete(row.DroppedBy, "other_group") // events about a sliding window
		if len(row.Findings) > 0 || len(row.DroppedBy) > 0 {
			f.t.Errorf("%s: findings %v, dropped %v", e.instance, row.Findings, row.DroppedBy)
		}
	}
}

// joinedLate registers engines that have a history, and a replay endpoint.
func joinedLate(f *fleet) {
	f.start("", 2, true, options{})
	for _, e := range f.engines {
		e.do(command{Do: "work", N: 600})
		f.register(e)
	}
	f.rounds(exact)
}

// discovered registers engines by a URL alone. The publishers are the release's; the HTTP server
// answers in the form that the engine's answers have.
func discovered(f *fleet) {
	f.start("", 2, true, options{})
	for _, e := range f.engines {
		e.do(command{Do: "work", N: 100})
		answers := map[string]string{
			"/kv_event_sources": fmt.Sprintf(`{"0":{"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d","topic":""}}`,
				e.port, e.replay),
			"/v1/models": fmt.Sprintf(`{"data":[{"id":%q}]}`, model),
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, ok := answers[r.URL.Path]; ok {
				io.WriteString(w, body)
				return
			}
			http.NotFound(w, r)
		}))
		f.t.Cleanup(server.Close)
		f.server.call("/register", map[string]any{"discover": server.URL, "instance_id": e.instance}, new(any))
		eventually(f.t, e.instance+" is not discovered", func() (string, bool) {
			var all struct {
				Services  []service
				Discovery json.RawMessage
			}
			f.server.call("/services", nil, &all)
			return string(all.Discovery), slices.ContainsFunc(all.Services, func(row service) bool { return row.InstanceID == e.instance })
		})
	}
	f.rounds(exact)
}

// joinedBlind registers engines that have a history and no replay endpoint. The answers are partial
// and never too long until the engines clear their caches.
func joinedBlind(f *fleet) {
	f.start("", 2, false, options{})
	for _, e := range f.engines {
		e.do(command{Do: "work", N: 600})
		f.register(e)
		f.hear(e, "work")
		if row := f.settle(e, "partial"); row.Reason != "history_unknown" {
			f.t.Errorf("partial for %s, want history_unknown", row.Reason)
		}
		e.do(command{Do: "work", N: 200})
		f.settle(e, "partial")
		f.compare([]*engine{e}, f.want/6, shorter)
		e.do(command{Do: "clear"})
		f.settle(e, "synced")
	}
	f.rounds(exact)
}

// resets compares two engines that offload and reset their prefix cache again and again.
func (f *fleet) resets(reset command, clear string) {
	f.start("", 2, true, options{"host": "self-describing", "chunk": 2, "loras": []any{nil, "adapter-a"}, "clear": clear})
	for _, e := range f.engines {
		f.register(e)
	}
	for round := 0; f.answers < f.want; round++ {
		for _, e := range f.engines {
			e.do(command{Do: "work", N: 300})
			e.do(reset)
			e.do(command{Do: "work", N: 1 + 20*(round%4)})
			f.settle(e, "synced")
			f.compare([]*engine{e}, 20, exact)
		}
	}
	f.findsNothing()
}

// hear repeats a command until the server has received a batch: a PUB socket drops what it sends
// before a subscription reaches it.
func (f *fleet) hear(e *engine, do string) {
	f.t.Helper()
	eventually(f.t, e.instance+" is not heard", func() (string, bool) {
		if row := f.server.service(e); row.LastSeq != nil {
			return "", true
		}
		e.do(command{Do: do, N: 1})
		return "", false
	})
}

// killed kills an engine at a random step, many times. The next life may pass the old sequence
// before the server is back.
func killed(f *fleet) {
	f.start("", 2, true, options{})
	for _, e := range f.engines {
		f.register(e)
		e.do(command{Do: "work", N: 100})
		f.settle(e, "synced")
	}
	const kills = 5
	for n := range kills {
		for i, e := range f.engines {
			e.epoch = f.server.service(e).Epoch
			e.dies(300)
			e.again(100+2*n+i, f.random.IntN(2)*500)
			e.do(command{Do: "work", N: 50 + f.random.IntN(300)})
			f.settle(e, "synced")
			f.compare([]*engine{e}, f.want/(2*kills)+1, exact)
		}
	}
}

// ranks compares two data-parallel ranks of one instance, which publish whole digests where the
// release can.
func ranks(f *fleet) {
	f.server = startServer(f.t, "")
	port := freePorts(f.t, 4)
	for rank := range 2 {
		f.register(f.engine("engine", rank, port+rank, port+2+rank, options{"bytes": f.release.since("0.11"), "topic": "kv-events"}))
	}
	for _, e := range f.engines {
		e.answer()
	}
	const rounds = 8
	for range rounds {
		for _, e := range f.engines {
			e.do(command{Do: "work", N: 150})
			f.settle(e, "synced")
		}
		f.compare(f.engines, f.want/rounds+1, exact)
	}
}

// ranksInTurn restarts the data-parallel ranks of one instance one after another, twice. Answers are
// compared while the others have their caches, and before the next one ends.
func ranksInTurn(f *fleet) {
	f.server = startServer(f.t, "")
	const n, rounds = 3, 2
	port := freePorts(f.t, 2*n)
	for rank := range n {
		f.register(f.engine("engine", rank, port+rank, port+n+rank, options{"topic": "kv-events"}))
	}
	for _, e := range f.engines {
		e.answer()
		e.do(command{Do: "work", N: 150})
		f.settle(e, "synced")
	}
	for round := range rounds {
		for i, e := range f.engines {
			e.epoch = f.server.service(e).Epoch
			e.dies(100)
			e.again(200+n*round+i, f.random.IntN(2)*500)
			e.do(command{Do: "work", N: 50 + f.random.IntN(100)})
			f.settle(e, "synced")
			f.compare(f.engines, f.want/(n*rounds)+1, exact)
		}
	}
}

// stopped stops engines in the middle of their work, with their sockets open, until the server takes
// them for stale, and lets them go on.
func stopped(f *fleet) {
	f.start("stream: {stale_after: 3s}\n", 2, true, options{})
	for _, e := range f.engines {
		f.register(e)
		e.do(command{Do: "work", N: 100})
		f.settle(e, "synced")
		e.send(command{Do: "work", N: 1000})
		must.Succeed(f.t, e.cmd.Process.Signal(syscall.SIGSTOP))
		eventually(f.t, e.instance+" is stale", func() (string, bool) {
			row := f.server.service(e)
			return row.State, row.State == "stale"
		})
		must.Succeed(f.t, e.cmd.Process.Signal(syscall.SIGCONT))
		e.answer()
		f.settle(e, "synced")
		f.compare([]*engine{e}, f.want/2+1, exact)
	}
}

// flood lets many engines without a replay endpoint publish at full speed to a server with short
// queues. Nothing may be lost.
func flood(f *fleet) {
	n, batches := 4, 2000
	if f.release.since("0.33") {
		n, batches = 16, setting(f.t, "ENGINES_FLOOD")
	}
	f.start("stream: {queue_bytes_total: 2MiB}\nlimits: {max_payload: 1MiB}", n, false, options{"blocks": 200})
	for _, e := range f.engines {
		f.register(e)
		f.hear(e, "clear")
		f.settle(e, "synced")
	}
	for _, e := range f.engines {
		e.send(command{Do: "flood", N: batches / n})
	}
	lost := 0
	for _, e := range f.engines {
		e.answer()
		var row service
		eventually(f.t, e.instance+" is flooded", func() (string, bool) {
			row = f.server.service(e)
			return fmt.Sprintf("%d published, %v", e.last, row), row.State == "partial" || row.DroppedBy["queue_overflow"] > 0 ||
				*row.LastSeq == e.last
		})
		if row.State != "synced" || row.DroppedBy["queue_overflow"] > 0 {
			lost++
			f.t.Errorf("%s is %s %s: %d gaps, dropped %v", e.instance, row.State, row.Reason, row.Gaps, row.DroppedBy)
		}
	}
	peak := f.server.peak()
	f.note = fmt.Sprintf("%d batches from %d publishers, %d of them with losses, server's peak %d MiB", batches/n*n, n, lost, peak>>20)
	if peak > mostMemory {
		f.t.Errorf("the server took %d MiB, want at most %d", peak>>20, mostMemory>>20)
	}
	if lost > 0 {
		return
	}
	for _, e := range f.engines {
		f.compare([]*engine{e}, f.want/n+1, exact)
	}
}

// mostMemory is what a server may take in a flood: a few times what it takes without one.
const mostMemory = 128 << 20
