package http_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/must"
)

// goProxy is the example router of the Go server's time, as far as it talks to a
// Conductor. It knows its instances by name and sends no tenant; nothing is registered
// by it.
type goProxy struct {
	conductor string            // base URL
	prefill   map[string]string // base URLs of the instances it routes to
	order     []string
	blockSize int
	turns     int
}

// route returns where a request goes. It reads the answer before it looks at the
// status, compares longest_matched alone, and takes the first of the longest in the
// order of the document. Only {} makes it take turns.
func (p *goProxy) route(request map[string]any) (string, error) {
	tokens, err := p.tokenize(request)
	if err != nil {
		return "", err
	}
	model, given := request["model"]
	if !given {
		model = "deepseek"
	}
	var answer struct{ Default rowsInOrder }
	body, err := post(p.conductor+"/query", map[string]any{"token_ids": tokens, "model": model, "block_size": p.blockSize})
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(string(body)) == "{}" {
		p.turns++
		return p.order[(p.turns-1)%len(p.order)], nil
	}
	best, longest := "", -1
	for _, row := range answer.Default {
		if row.Longest > longest {
			best, longest = row.name, row.Longest
		}
	}
	if best == "" {
		return "", fmt.Errorf("nothing under default: %s", body)
	}
	if p.prefill[best] == "" {
		return "", fmt.Errorf("no such instance: %q", best)
	}
	return best, nil
}

// tokenize asks any engine.
func (p *goProxy) tokenize(request map[string]any) ([]int, error) {
	body, err := post(p.prefill[p.order[0]]+"/tokenize", request)
	var answer struct{ Tokens []int }
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	return answer.Tokens, err
}

func post(url string, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	resp, err := nethttp.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// rowsInOrder is an object whose order counts.
type rowsInOrder []struct {
	name    string
	Longest int `json:"longest_matched"`
}

func (r *rowsInOrder) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(err, fmt.Errorf("no object: %s", text))
	}
	*r = (*r)[:0]
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		*r = append(*r, struct {
			name    string
			Longest int `json:"longest_matched"`
		}{name: name.(string)})
		if err := d.Decode(&(*r)[len(*r)-1]); err != nil {
			return err
		}
	}
	return nil
}

// peer is an engine or a pool as others see it: it tokenizes, a word a token, and
// publishes events on a socket of its own.
type peer struct {
	t        *testing.T
	http     *httptest.Server
	pub      zmq4.Socket
	endpoint string
	seq      uint64
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	p := &peer{t: t, pub: zmq4.NewPub(context.Background())}
	must.Succeed(t, p.pub.Listen("tcp://127.0.0.1:0"))
	t.Cleanup(func() { p.pub.Close() })
	p.endpoint = "tcp://" + p.pub.Addr().String()
	p.http = httptest.NewServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		var request struct{ Prompt string }
		if r.URL.Path != "/tokenize" || json.NewDecoder(r.Body).Decode(&request) != nil {
			nethttp.Error(w, "no", 400)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"tokens": tokensOf(request.Prompt)})
	}))
	t.Cleanup(p.http.Close)
	return p
}

func tokensOf(prompt string) (tokens []uint32) {
	for _, word := range strings.Fields(prompt) {
		h := fnv.New32a()
		h.Write([]byte(word))
		tokens = append(tokens, h.Sum32()%100000)
	}
	return tokens
}

const proxyBlock = 4 // tokens, which are words

// store announces the blocks of a prompt to its subscribers.
func (p *peer) store(medium, prompt string) {
	p.t.Helper()
	tokens := tokensOf(prompt)
	event := map[string]any{
		"type": "BlockStored", "block_size": proxyBlock, "medium": medium, "parent_block_hash": nil, "token_ids": tokens,
	}
	var hashes []uint64
	for i := range len(tokens) / proxyBlock {
		hashes = append(hashes, uint64(tokens[i*proxyBlock])<<20+uint64(i))
	}
	event["block_hashes"] = hashes
	p.publish(event)
}

// publish sends one event in a batch of its own.
func (p *peer) publish(event any) {
	p.t.Helper()
	waitFor(p.t, "a subscriber connects", func() bool { return len(p.pub.(zmq4.Topics).Topics()) > 0 })
	payload, err := msgpack.Marshal([]any{1.5, []any{event}, nil})
	must.Succeed(p.t, err)
	p.seq++
	must.Succeed(p.t, p.pub.Send(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, p.seq), payload)))
}

// waitFor asks again until done is true.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("it does not happen: %s", what)
		}
	}
}

// TestGoProxy lets the router choose from what a Conductor answers about publishers on
// real sockets, and holds the answers to what it cannot do without: nothing under
// default but its own instances, in an order that stays.
func TestGoProxy(t *testing.T) {
	c := conductor.New(conductor.Options{
		HashSeed: 1337, MaxSources: 16, MaxOrphans: 16, Log: zerolog.Nop(), Stream: stream.Config{Transport: zmq.Transport{}},
	})
	t.Cleanup(c.Close)
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 10, Version: "test"}, Gatherer: prometheus.NewRegistry(),
		Log: zerolog.Nop(),
	}
	engine := admin.New(c, opts)
	conductorhttp.Mount(engine, c, opts.Dialect)
	server := httptest.NewServer(engine)
	t.Cleanup(server.Close)

	peers := map[string]*peer{}
	proxy := &goProxy{conductor: server.URL, prefill: map[string]string{}, blockSize: proxyBlock}
	for _, name := range []string{"b", "c", "a"} { // its order is not ours
		peers[name] = newPeer(t)
		proxy.prefill[name] = peers[name].http.URL
		proxy.order = append(proxy.order, name)
	}
	register := func(name string, fields map[string]any) {
		t.Helper()
		if peers[name] == nil {
			peers[name] = newPeer(t)
		}
		body := map[string]any{
			"endpoint": peers[name].endpoint, "type": "vLLM", "modelname": "deepseek", "instance_id": name, "block_size": proxyBlock,
			"dp_rank": 0,
		}
		for k, v := range fields {
			body[k] = v
		}
		answer, err := post(server.URL+"/register", body)
		var got struct{ Status, Instance_ID string }
		if err != nil || json.Unmarshal(answer, &got) != nil || got.Status != "registered successfully" || got.Instance_ID != name {
			t.Fatalf("%s: %s %v", name, answer, err)
		}
	}
	// holds waits until the Conductor answers as if it had heard everything, and checks
	// what it says on the way there too.
	holds := func(prompt, want string) {
		t.Helper()
		got := ""
		waitFor(t, prompt+": "+want, func() bool {
			body, err := post(server.URL+"/query", map[string]any{
				"token_ids": tokensOf(prompt), "model": "deepseek", "block_size": proxyBlock,
			})
			var roots map[string]rowsInOrder
			if err != nil || json.Unmarshal(body, &roots) != nil || len(roots) > 1 {
				t.Fatalf("%s %v", body, err)
			}
			var names, rows []string
			for _, row := range roots["default"] {
				if proxy.prefill[row.name] == "" {
					t.Fatalf("a row of %q, which is nobody's instance: %s", row.name, body)
				}
				names, rows = append(names, row.name), append(rows, fmt.Sprint(row.name, row.Longest))
			}
			if len(roots) == 1 && roots["default"] == nil || !slices.IsSorted(names) {
				t.Fatalf("another root, or not sorted: %s", body)
			}
			got = strings.Join(rows, " ")
			return got == want
		})
	}
	goes := func(prompt string, want ...string) {
		t.Helper()
		for i, want := range want {
			if got, err := proxy.route(map[string]any{"prompt": prompt, "stream": true}); err != nil || got != want {
				t.Errorf("%q, time %d, goes to %q %v, want %q", prompt, i, got, err, want)
			}
		}
	}

	const short, long = "one two three four", "one two three four five six seven eight"
	holds(long, "")
	goes(long, "b", "c", "a", "b") // {} makes it take turns

	for _, name := range proxy.order {
		register(name, nil)
	}
	holds(long, "a0 b0 c0")
	goes(long, "a", "a") // zeros do not

	peers["c"].store("GPU", short)
	holds(long, "a0 b0 c4")
	goes(long, "c", "c")
	goes(short+" and more", "c")
	goes("one two three", "a") // no whole block

	peers["b"].store("cpu", long)
	holds(long, "a0 b8 c4")
	goes(long, "b", "b")
	goes(short, "b") // as long as c's, and before it

	// Who is not its own: a pool, other tenants, models, block sizes.
	register("pool", map[string]any{"type": "Mooncake"})
	register("theirs", map[string]any{"tenant_id": "theirs"})
	register("other", map[string]any{"modelname": "other"})
	register("wide", map[string]any{"block_size": 2 * proxyBlock})
	for _, name := range []string{"theirs", "other"} {
		peers[name].store("GPU", long+" nine ten eleven twelve")
	}
	const longer = long + " nine ten eleven twelve"
	peers["pool"].store("cpu", longer)
	holds(longer, "a12 b12 c12") // the pool serves them all, under their names
	goes(longer, "a", "a")
	if got, err := proxy.route(map[string]any{"prompt": longer, "model": "unheard"}); err != nil || got != "c" {
		t.Errorf("a model nobody has: %q %v, want the next in turn", got, err)
	}
	// Routers that share a tenant ask for different models. One that
	// passes on the name of another's model meets another's instance.
	if got, err := proxy.route(map[string]any{"prompt": longer, "model": "other"}); err == nil ||
		err.Error() != `no such instance: "other"` {
		t.Errorf("another's model: %q %v", got, err)
	}

	for _, name := range proxy.order {
		if answer, err := post(server.URL+"/unregister", map[string]any{"instance_id": name, "type": "vLLM", "modelname": "deepseek",
			"dp_rank": 0, "block_size": proxyBlock}); err != nil ||
			!strings.Contains(string(answer), "unregistered successfully") {
			t.Fatalf("%s %v", answer, err)
		}
	}
	holds(long, "")
	goes(long, "a", "b", "c")
}
