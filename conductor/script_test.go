package conductor_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"

	nethttp "net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"

	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/scripttest"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/events/tape"
	"example.com/conductor/index/hash"
)

var rewrite = flag.Bool("rewrite", false, "write the answers of this run into testdata")

// TestScripts runs testdata/*.txt in the notation of package scripttest: commands against a
// whole Conductor, from msgpack payloads on a network without sockets to HTTP answers, under
// a fake clock. Before every query all published batches are applied. Paths name prefixes:
// a/b/c is block a, then b, then c.
func TestScripts(t *testing.T) {
	eachScript(t, func(t *testing.T, file string) {
		steps, comments := scripttest.Parse(t, file)
		b := newBench()
		defer b.conductor.Close()
		r := scripttest.Runner{T: t, Rewrite: *rewrite}
		r.Execute = func(st *scripttest.Step, want []string) (string, error) {
			got := b.run(st.Raw[0])
			for _, err := range b.conductor.Check() {
				t.Fatalf("%s:%d: after %s: %v", file, st.Line, st.Raw[0], err)
			}
			return got, r.Same(got, want)
		}
		r.Run(file, steps, comments)
	})
}

// eachScript runs a subtest in a bubble for each script.
func eachScript(t *testing.T, run func(t *testing.T, file string)) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { run(t, file) })
		})
	}
}

// bench is a Conductor on a network without sockets.
type bench struct {
	conductor *conductor.Conductor
	handler   nethttp.Handler
	network   *streamtest.Network
	objects   int                                    // announced by masters
	answered  func(path string, body, answer []byte) // hears of POST requests; nil for none
}

// lasting keeps all registrations without a disk.
type lasting struct{}

func (lasting) Commit(context.Context) error          { return nil }
func (lasting) Failure() error                        { return nil }
func (lasting) Keeps(*registration.Registration) bool { return true }
func (lasting) Unregistered(registration.Key)         {}

func newBench() *bench { return newBenchWith(nil, zerolog.Nop()) }

// inBubble runs f with a bench whose time is synthetic.
func inBubble(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		defer b.conductor.Close()
		f(t, b)
	})
}

// newRecordedBench is a bench that keeps a journal.
func newRecordedBench(j *tape.Tape) *bench { return newBenchWith(j, zerolog.Nop()) }

func newBenchWith(j *tape.Tape, log zerolog.Logger, set ...func(*conductor.Options)) *bench {
	n := new(streamtest.Network)
	opts := conductor.Options{
		HashSeed:   1337,
		GhostBytes: 1 << 20, RemovalsBytes: 1 << 12,
		Tape: j,
		Log:  log,
		Stream: stream.Config{
			Transport:     n,
			ReplayTimeout: 5 * time.Second,
			StaleAfter:    30 * time.Second,
			Queue:         1024,
			Replays:       stream.NewLimiter(8),
		},
	}
	for _, set := range set {
		set(&opts)
	}
	c := conductor.New(opts)
	c.KeepRegistrations(lasting{})
	return &bench{conductor: c, handler: handlerOf(c), network: n}
}

func handlerOf(c *conductor.Conductor) nethttp.Handler {
	opts := admin.Options{
		Dialect:  conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 16, Version: "test"},
		Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	r := admin.New(c, opts)
	conductorhttp.Mount(r, c, opts.Dialect)
	return r
}

// args are the words of a command.
type args struct {
	word string
	keys map[string]string
}

func (a args) get(key, otherwise string) string {
	if v, ok := a.keys[key]; ok {
		return v
	}
	return otherwise
}

func (a args) number(key string, otherwise int) int {
	v, ok := a.keys[key]
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		panic(err)
	}
	return n
}

// run executes one command and returns its output.
func (b *bench) run(line string) string {
	st := scripttest.Line(line)
	a := args{keys: st.Keys}
	if n := len(st.Words); n > 0 {
		a.word = st.Words[n-1]
	}
	defer synctest.Wait()
	switch st.Name {
	case "register":
		return b.register(a)
	case "unregister":
		return b.post("/unregister", map[string]any{"instance_id": a.word, "dp_rank": a.number("rank", 0),
			"tenant_id": a.get("tenant", "")})
	case "store":
		return b.publish(a, b.storeEvent(a))
	case "remove":
		return b.publish(a, b.removeEvent(a))
	case "move":
		return b.publish(a, moveEvent(a))
	case "put":
		return b.publishAll(a, b.objectEvents(a, "stored"))
	case "drop":
		return b.publishAll(a, b.objectEvents(a, "removed"))
	case "clear":
		return b.publish(a, clearEvent(a))
	case "event":
		return b.publish(a, rawEvent(a))
	case "standard":
		return b.publish(a, standardEvent(a))
	case "batch":
		return b.publish(a, rawBatch(a)...)
	case "gap":
		// Batches that no subscriber received: kept=yes leaves them in the replay ring.
		for range a.number("batches", 1) {
			publish(b.network.PublisherAt(endpoint(a)), a.number("rank", 0), nil, false, a.get("kept", "no") == "yes")
		}
		return ""
	case "restart":
		b.network.PublisherAt(endpoint(a)).Restart()
		return ""
	case "wait":
		d, err := time.ParseDuration(a.word)
		if err != nil {
			panic(err)
		}
		<-time.After(d)
		return ""
	case "query":
		return b.query(a)
	case "routed":
		return b.report(a)
	case "takeback":
		return b.send(nethttp.MethodDelete, "/routed/"+a.word+"?tenant_id="+a.get("tenant", ""), nil)
	case "resync":
		key := registration.Key{Instance: a.word, Tenant: scope.DefaultTenant, Rank: a.number("rank", 0)}
		return fmt.Sprintln(b.conductor.Sources().Resync(key, ingest.ReasonDrift))
	case "findings":
		return b.findings()
	case "services":
		return b.services(a)
	case "post":
		body, _ := strings.CutPrefix(line, "post "+st.Words[0]+" ")
		return b.send(nethttp.MethodPost, st.Words[0], []byte(body))
	case "get":
		return b.send(nethttp.MethodGet, st.Words[0], nil)
	}
	return "unknown command " + st.Name
}

// endpoint is where the source of a command publishes: word is the instance.
func endpoint(a args) string {
	return a.get("endpoint", fmt.Sprintf("ipc://%s/%d", a.word, a.number("rank", 0)))
}

func (b *bench) register(a args) string {
	body := map[string]any{
		"instance_id": a.word, "endpoint": endpoint(a), "type": a.get("type", "vLLM"), "modelname": a.get("model", "m"),
		"block_size": a.number("block_size", 16), "dp_rank": a.number("rank", 0),
		"tenant_id": a.get("tenant", ""), "lora_name": a.get("lora", ""), "additionalsalt": a.get("salt", ""),
	}
	switch replay := a.get("replay", "yes"); replay {
	case "no":
	case "yes":
		body["replay_endpoint"] = endpoint(a) + "/replay"
	default:
		body["replay_endpoint"] = replay
	}
	if word, ok := a.keys["events"]; ok { // then an endpoint is there if it is named
		body["events"] = word
		for field, key := range map[string]string{"endpoint": "endpoint", "replay_endpoint": "replay"} {
			delete(body, field)
			if at, ok := a.keys[key]; ok {
				body[field] = at
			}
		}
	}
	if _, ok := a.keys["capacity_blocks"]; ok {
		body["capacity_blocks"] = a.number("capacity_blocks", 0)
	}
	for _, field := range []string{"serves", "aliases", "adapters", "may_announce"} {
		if names, ok := a.keys[field]; ok {
			body[field] = strings.Split(names, ",")
		}
	}
	for _, field := range []string{"copies", "reports", "drafter", "owned", "clear", "approximate", "address"} {
		if word, ok := a.keys[field]; ok {
			body[field] = word
		}
	}
	if ttl := a.get("ttl", ""); strings.Contains(ttl, ":") { // medium:time,medium:time
		media := make(map[string]string)
		for _, one := range strings.Split(ttl, ",") {
			medium, d, _ := strings.Cut(one, ":")
			media[medium] = d
		}
		body["ttl"] = media
	} else if ttl != "" {
		body["ttl"] = ttl
	}
	if text := a.get("profile", ""); text != "" {
		p := profileOf(text)
		body["hash_profile"] = map[string]string{
			"strategy": p.Strategy, "algorithm": p.Algorithm, "python_hash_seed": p.PythonHashSeed, "index_projection": p.IndexProjection,
			"extra_keys": p.ExtraKeys,
		}
	}
	if a.get("replace", "") != "" {
		body["replace"] = true
	}
	if a.get("static", "") != "" {
		return b.configure(a, body)
	}
	return b.post("/register", body)
}

// configure registers a source of the configuration that is said in a body of
// POST /register.
func (b *bench) configure(a args, body map[string]any) string {
	text := func(field string) string { s, _ := body[field].(string); return s }
	names, _ := body["may_announce"].([]string)
	err := b.conductor.Register(registration.Registration{
		Endpoint: text("endpoint"), ReplayEndpoint: text("replay_endpoint"), Type: text("type"), Model: text("modelname"),
		Instance: text("instance_id"),
		Tenant:   text("tenant_id"), BlockSize: body["block_size"].(int), Rank: body["dp_rank"].(int), MayAnnounce: names,
	}, ingest.RegisterOptions{Static: true, Replace: body["replace"] == true})
	if err != nil {
		return err.Error()
	}
	return "configured"
}

// blocksOf returns the engine hashes of a path from block number from on, the
// parent of the first, and the path's names.
func blocksOf(a args) (hashes []any, parent any, names []string, from int) {
	names = strings.Split(a.get("path", ""), "/")
	from = a.number("from", 0)
	prefix := func(i int) string { return strings.Join(names[:i], "/") }
	// Engines hash each in their own way, or with hashes= in another's; a salt enters that, and as= any hash.
	by := endpoint(a) + a.get("as", "")
	if other, ok := a.keys["hashes"]; ok {
		by = "ipc://" + other + "/0" + a.get("salt", "") + a.get("as", "")
	}
	if text := a.get("hashed", ""); text != "" {
		hashes, parent = hashedBlocks(a, profileOf(text), from)
		if text := a.get("parent_hashed", ""); text != "" {
			_, parent = hashedBlocks(a, profileOf(text), from)
		}
		return hashes, parent, names, from
	}
	for i := from; i < len(names); i++ {
		hashes = append(hashes, engineHash(by, prefix(i+1)))
	}
	if from > 0 {
		parent = engineHash(by, prefix(from))
	}
	return hashes, parent, names, from
}

// profileOf is a profile written as algorithm/seed or algorithm/seed/extra_keys, or as
// sglang or sglang_bigram.
func profileOf(text string) registration.HashProfile {
	if strings.HasPrefix(text, "sglang") {
		return registration.HashProfile{Strategy: text, Algorithm: "sha256_raw", PythonHashSeed: "0", IndexProjection: "first64_be"}
	}
	words := append(strings.Split(text, "/"), "")
	return registration.HashProfile{Strategy: "vllm_v1", Algorithm: words[0], PythonHashSeed: words[1], IndexProjection: "low64_be",
		ExtraKeys: words[2]}
}

// hashedBlocks returns what an engine with a profile calls the blocks of a path from
// block number from on, and the parent of the first.
func hashedBlocks(a args, settings registration.HashProfile, from int) (hashes []any, parent any) {
	p, err := hash.NewProfile(settings)
	if err != nil {
		panic(err)
	}
	chain, err := p.NewDigestChain(a.get("lora", ""), a.get("salt", ""))
	if err != nil {
		panic(err)
	}
	size := a.number("block_size", 16)
	tokens := promptOf(a.get("path", ""), size)
	if settings.Strategy == hash.StrategySGLangBigram {
		tokens = append(tokens, behind)
	}
	// hashed_size is the size that the engine hashes; several make a block.
	parts := size / a.number("hashed_size", size)
	chain.Reset(tokens, size/parts)
	for i := from; (i+1)*parts <= chain.Len(); i++ {
		hashes = append(hashes, chain.At((i+1)*parts-1))
	}
	if from > 0 {
		parent = chain.At(from*parts - 1)
	}
	return hashes, parent
}

// behind is the token behind every path.
const behind = 7

func (b *bench) storeEvent(a args) any {
	hashes, parent, names, from := blocksOf(a)
	size := a.number("block_size", 16)
	var tokens []uint32
	for _, name := range names[from:] {
		tokens = append(tokens, tokensOf(name, size)...)
	}
	if a.get("tokens", "yes") == "no" {
		tokens, size, parent = []uint32{}, 0, nil
	}
	var ids any = tokens
	if strings.HasPrefix(a.get("hashed", ""), hash.StrategySGLangBigram) {
		ids = pairsOf(append(tokens, behind))
	}
	e := map[string]any{
		"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": ids,
		"block_size": size, "lora_id": nil, "medium": medium(a), "lora_name": nil,
	}
	if l := a.get("lora", ""); l != "" {
		e["lora_name"] = l
	}
	if s := a.get("salt", ""); s != "" {
		e["cache_salt"] = s
	}
	if s := a.get("session", ""); s != "" {
		e["session_id"] = s
	}
	group(a, e)
	return e
}

// pairsOf returns tokens as EAGLE engines publish them.
func pairsOf(tokens []uint32) (pairs [][2]uint32) {
	for i := range len(tokens) - 1 {
		pairs = append(pairs, [2]uint32{tokens[i], tokens[i+1]})
	}
	return pairs
}

func (b *bench) removeEvent(a args) any {
	hashes, _, _, _ := blocksOf(a)
	e := map[string]any{"type": "BlockRemoved", "block_hashes": hashes, "medium": medium(a)}
	if left, ok := a.keys["remaining"]; ok {
		var counts []int
		for _, text := range strings.Split(left, ",") {
			n, err := strconv.Atoi(text)
			if err != nil {
				panic(err)
			}
			counts = append(counts, n)
		}
		e["remaining_copy_counts"] = counts
	}
	group(a, e)
	return e
}

// moveEvent is what ATOM says of blocks that go from one medium to another (out= and to=, nil without), with last=
// behind them. form=map writes it as vLLM writes its events.
func moveEvent(a args) any {
	hashes, _, _, _ := blocksOf(a)
	word := func(key string) any {
		if m, ok := a.keys[key]; ok {
			return m
		}
		return nil
	}
	if a.get("form", "array") == "map" {
		return map[string]any{
			"type": "BlockTransferred", "block_hashes": hashes, "from_medium": word("out"), "to_medium": word("to"),
		}
	}
	e := []any{"BlockTransferred", hashes, word("out"), word("to")}
	if _, ok := a.keys["last"]; ok {
		e = append(e, a.number("last", 0))
	}
	return e
}

// objectEvents are what a Mooncake master says of a path's blocks: an object each, named
// by the digests of the engine that computed them (hashes=, A when absent) and tp=,
// with layout= behind the model.
func (b *bench) objectEvents(a args, what string) (all []any) {
	if _, ok := a.keys["hashes"]; !ok {
		a.keys["hashes"] = "A"
	}
	hashes, _, _, _ := blocksOf(a)
	for _, h := range hashes {
		key := fmt.Sprintf("%s%s@tp_rank:%d@%048x%016x", a.get("model", "m"), a.get("layout", ""), a.number("tp", 0), 0, h)
		if part := a.get("part", ""); part != "" { // SGLang's
			key = fmt.Sprintf("%s_%016x%048x_%d_%s", strings.ReplaceAll(a.get("model", "m"), "/", "-"), h, 0, a.number("tp", 0), part)
		}
		b.objects++
		e := map[string]any{
			"event_id": b.objects, "timestamp": 0, "event_type": what, "model_name": nil, "block_size": nil, "lora_name": nil,
			"additional_salt": nil,
			"tenant_id":       a.get("tenant", "default"), "backend_id": a.get("backend", "b"), "medium": a.get("medium", "cpu"),
			"dp_rank":    nil,
			"object_key": a.get("key", key), "seq_hashes": []any{}, "base_block_idx": 0,
		}
		if a.get("connector", "") != "" {
			e["connector_block_hash"] = fmt.Sprintf("%048x%016x", 0, h)
		}
		group(a, e)
		all = append(all, e)
	}
	return all
}

func (b *bench) publishAll(a args, all []any) string {
	out := ""
	for _, e := range all {
		out += b.publish(a, e)
	}
	return out
}

func clearEvent(a args) any {
	if backend, ok := a.keys["backend"]; ok {
		e := map[string]any{"event_type": "cleared", "tenant_id": a.get("tenant", "default"), "backend_id": backend, "medium": nil}
		if m, ok := a.keys["medium"]; ok {
			e["medium"] = m
		}
		return e
	}
	if m, ok := a.keys["medium"]; ok {
		return map[string]any{"event_type": "cleared", "medium": m, "dp_rank": nil}
	}
	return map[string]any{"type": "AllBlocksCleared"}
}

// rawEvent is the JSON object or array of json=..., or an event of a type and nothing else.
func rawEvent(a args) any {
	text, ok := a.keys["json"]
	if !ok {
		return map[string]any{"type": a.get("type", "")}
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var e any
	if err := d.Decode(&e); err != nil {
		panic(err)
	}
	return integers(e)
}

// integers turns JSON numbers into integers and {"$bin":"00ff"} into bytes, all the way down.
func integers(v any) any {
	switch v := v.(type) {
	case json.Number:
		n, err := strconv.ParseUint(v.String(), 10, 64)
		if err != nil {
			panic(err)
		}
		return n
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case map[string]any:
		if digits, ok := v["$bin"].(string); ok {
			p, err := hex.DecodeString(digits)
			if err != nil {
				panic(err)
			}
			return p
		}
		for k := range v {
			v[k] = integers(v[k])
		}
	}
	return v
}

// medium is nil for medium=nil, as old engines send it.
func medium(a args) any {
	if m := a.get("medium", "GPU"); m != "nil" {
		return m
	}
	return nil
}

func group(a args, e map[string]any) {
	if o := a.get("ownership", ""); o != "" {
		e["ownership"] = o
	}
	if _, ok := a.keys["group"]; ok {
		e["group_idx"] = a.number("group", 0)
	}
	if k := a.get("kind", ""); k != "" {
		e["kv_cache_spec_kind"] = k
	}
	if _, ok := a.keys["window"]; ok {
		e["kv_cache_spec_sliding_window"] = a.number("window", 0)
	}
}

// publish sends events as a batch, or times= of them; lost=kept or lost=gone keeps
// it from subscribers, in the ring or not.
func (b *bench) publish(a args, events ...any) string {
	lost := a.get("lost", "")
	for range a.number("times", 1) {
		publish(b.network.PublisherAt(endpoint(a)), a.number("batch_rank", a.number("rank", 0)), events, lost == "", lost != "gone")
	}
	return ""
}

func (b *bench) query(a args) string {
	size := a.number("block_size", 16)
	body := map[string]any{"model": a.get("model", "m"), "block_size": size, "token_ids": promptOf(a.get("path", ""), size)}
	for key, field := range map[string]string{"tenant": "tenant_id", "lora": "lora_name", "salt": "cache_salt", "instance": "instance_id"} {
		if v, ok := a.keys[key]; ok {
			body[field] = v
		}
	}
	for _, field := range []string{"min_matched", "top"} {
		if _, ok := a.keys[field]; ok {
			body[field] = a.number(field, 0)
		}
	}
	path := "/query"
	if kind := a.get("hash", ""); kind != "" { // hash=canonical has the keys of hashed= or hashes= as well
		hashes, _, _, _ := blocksOf(a)
		delete(body, "token_ids")
		body["seq_hashes"], body["hash"] = hashes, kind
		path = "/query_by_hash"
	}
	if a.get("detail", "") != "" {
		path += "?detail=1"
	}
	if a.get("expected", "") != "" {
		body["expected"] = true
	}
	return b.post(path, body)
}

// report reports that the prompt of path= goes to an instance.
func (b *bench) report(a args) string {
	size := a.number("block_size", 16)
	body := map[string]any{"model": a.get("model", "m"), "block_size": size, "token_ids": promptOf(a.get("path", ""), size),
		"instance_id": a.word}
	for key, field := range map[string]string{"tenant": "tenant_id", "lora": "lora_name", "salt": "cache_salt", "ttl": "ttl",
		"id": "request_id"} {
		if v, ok := a.keys[key]; ok {
			body[field] = v
		}
	}
	if _, ok := a.keys["rank"]; ok {
		body["dp_rank"] = a.number("rank", 0)
	}
	return b.post("/routed", body)
}

// services prints the asked columns of every source, or the default ones.
func (b *bench) services(a args) string {
	raw := b.request(nethttp.MethodGet, "/services", nil).Body.Bytes()
	var answer struct{ Services []map[string]any }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, s := range answer.Services {
		fmt.Fprintf(&out, "%v|%v|%v", s["InstanceID"], s["TenantID"], s["DPRank"])
		for _, column := range strings.Split(a.get("show", "State,Reason,Epoch,LastSeq,Blocks"), ",") {
			fmt.Fprintf(&out, " %s=%v", column, s[column])
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// findings prints what the doctor found, source by source.
func (b *bench) findings() string {
	var out strings.Builder
	for _, s := range b.conductor.Services() {
		for _, f := range s.Findings {
			fmt.Fprintf(&out, "%s %s: %s\n", s.Key(), f.Code, f.Message)
		}
	}
	return out.String()
}

func (b *bench) post(path string, body any) string {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return b.send(nethttp.MethodPost, path, raw)
}

// send makes a request and prints its status, unless 200, and its body, one
// line per instance for answers.
func (b *bench) send(method, path string, body []byte) string {
	rec := b.request(method, path, body)
	text := strings.TrimSpace(rec.Body.String())
	var answer map[string]map[string]json.RawMessage
	if strings.HasPrefix(path, "/query") && rec.Code == nethttp.StatusOK && json.Unmarshal([]byte(text), &answer) == nil &&
		len(answer) > 0 {
		var out strings.Builder
		for _, tenant := range slices.Sorted(maps.Keys(answer)) {
			for _, instance := range slices.Sorted(maps.Keys(answer[tenant])) {
				fmt.Fprintf(&out, "%s %s %s\n", tenant, instance, answer[tenant][instance])
			}
		}
		return out.String()
	}
	if rec.Code != nethttp.StatusOK {
		return fmt.Sprintf("%d %s", rec.Code, text)
	}
	return text
}

func (b *bench) request(method, path string, body []byte) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	b.handler.ServeHTTP(rec, httptest.NewRequest(method, path, bytes.NewReader(body)))
	if b.answered != nil && method == nethttp.MethodPost && rec.Code == nethttp.StatusOK {
		b.answered(path, body, rec.Body.Bytes())
	}
	return rec
}
