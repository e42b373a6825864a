package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/blake3"

	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
)

const (
	chunkTokens = 256
	// lmcacheEngine is the ranks of an engine that never answers; lmcachePushed also has what LMCache keeps for it.
	lmcacheEngine = "  - {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, instance_id: vllm-0, block_size: 16}\n" +
		"  - {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, instance_id: vllm-1, block_size: 16, dp_rank: 1}\n"
	lmcachePushed = "sources:\n" + lmcacheEngine +
		"  - {endpoint: 'push:', type: LMCache, modelname: m, instance_id: 'node:n1', block_size: 16, serves: [vllm-0]}\n" +
		"  - {endpoint: 'push:', type: LMCache, modelname: m, instance_id: 'pool:fs', block_size: 16}\n"
)

// chunkOf is one chunk of a prompt as LMCache hashes it.
type chunkOf struct {
	hash   string // hexadecimal digits
	tokens []uint32
}

// chunksOf cuts a prompt into chunks. before is what the first of a prompt hashes in front.
func chunksOf(tokens []uint32) (all []chunkOf) {
	prefix := []byte("none")
	for i := 0; i+chunkTokens <= len(tokens); i += chunkTokens {
		buf := bytes.Clone(prefix)
		for _, t := range tokens[i : i+chunkTokens] {
			buf = binary.BigEndian.AppendUint32(buf, t)
		}
		sum := blake3.Sum256(buf)
		prefix = sum[:]
		all = append(all, chunkOf{hex.EncodeToString(prefix), tokens[i : i+chunkTokens]})
	}
	return all
}

// lmcacheReport is a batch as LMCache 0.5.6 sends it.
type lmcacheReport struct {
	Instance    string         `json:"instance_id"`
	Incarnation int            `json:"incarnation"`
	Seq         int            `json:"seq"`
	Type        string         `json:"event_type"`
	Tier        string         `json:"tier"`
	Backend     string         `json:"backend"`
	Entries     []lmcacheEntry `json:"entries"`
	Shared      bool           `json:"shared"`
	Time        float64        `json:"ts"`
	Capacity    int            `json:"capacity_bytes"`
	Revision    int            `json:"capacity_revision"`
}

type lmcacheEntry struct {
	Key    lmcacheKey `json:"key"`
	Size   int        `json:"size_bytes"`
	Tokens []uint32   `json:"token_ids"`
	Offset int        `json:"token_offset"`
}

type lmcacheKey struct {
	Hash  string `json:"chunk_hash_hex"`
	Model string `json:"model_name"`
	Rank  int    `json:"kv_rank"`
	Group int    `json:"object_group_id"`
	Salt  string `json:"cache_salt"`
}

// entriesOf returns the entries of chunks from one on, each once for every rank.
func entriesOf(chunks []chunkOf, from, world int, salt string, ranks ...int) (all []lmcacheEntry) {
	for i, c := range chunks[from:] {
		for _, rank := range ranks {
			all = append(all, lmcacheEntry{
				Key: lmcacheKey{Hash: c.hash, Model: "m", Rank: world<<24 | rank<<16 | world<<8 | rank, Salt: salt}, Size: 1 << 20,
				Tokens: c.tokens, Offset: (from + i) * chunkTokens,
			})
		}
	}
	return all
}

// report sends batches and returns the answer.
func report(t *testing.T, p *process, batches ...any) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"batches": batches})
	must.Succeed(t, err)
	status, answer := askAs(t, "POST", p.url+"/lmcache/events", "", "application/json", body)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, answer)
	}
	return answer
}

// asked returns the tokens on host and disk of an instance.
func asked(t *testing.T, p *process, instance, salt string, tokens []uint32) (host, disk int) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "m", "block_size": 16, "token_ids": tokens, "cache_salt": salt})
	must.Succeed(t, err)
	_, answer := askAs(t, "POST", p.url+"/query", "", "application/json", body)
	var rows map[string]map[string]struct{ CPU, DISK int }
	must.Succeed(t, json.Unmarshal([]byte(answer), &rows))
	row := rows["default"][instance]
	return row.CPU, row.DISK
}

// lmcacheService is a row of /services.
type lmcacheService struct {
	InstanceID, Endpoint, Type, State, Reason string
	Gaps                                      uint64
	Blocks                                    int
	Findings                                  []struct{ Code string }
}

func lmcacheServiceOf(t *testing.T, p *process, instance string) lmcacheService {
	t.Helper()
	rows, body := servicesOf[lmcacheService](t, p.url)
	for _, s := range rows {
		if s.InstanceID == instance {
			return s
		}
	}
	t.Fatalf("%s is not in %s", instance, body)
	return lmcacheService{}
}

// TestLMCacheEvents reports to a server process as LMCache does, over a life of an instance.
func TestLMCacheEvents(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, lmcachePushed)
	tokens := make([]uint32, 4*chunkTokens+100)
	for i := range tokens {
		tokens[i] = uint32(i * 7 % 50000)
	}
	chunks := chunksOf(tokens)
	seq := 0
	next := func(r lmcacheReport) lmcacheReport {
		seq++
		r.Instance, r.Seq, r.Time = "node:n1", seq, 1700000000.5
		if r.Incarnation == 0 {
			r.Incarnation = 1790000000
		}
		return r
	}
	holds := func(instance, salt string, host, disk int) {
		t.Helper()
		if h, d := asked(t, p, instance, salt, tokens); h != host || d != disk {
			t.Errorf("%s with salt %q has %d tokens on the host and %d on disk, want %d and %d", instance, salt, h, d, host, disk)
		}
	}
	says := func(answer, want string) {
		t.Helper()
		if answer != want {
			t.Errorf("the answer is %s, want %s", answer, want)
		}
	}
	const applied = `{"applied":1,"duplicates":0,"stale":0}`

	// The release names no parents: the hash tells them.
	first := next(lmcacheReport{Type: "store", Tier: "l1", Backend: "dram", Entries: entriesOf(chunks[:3], 0, 1, "", 0)})
	says(report(t, p, first), applied)
	holds("vllm-0", "", 3*chunkTokens, 0)
	holds("vllm-1", "", 0, 0) // the instance serves vllm-0 alone
	says(report(t, p, first), `{"applied":0,"duplicates":1,"stale":0}`)
	if s := lmcacheServiceOf(t, p, "node:n1"); s.State != "synced" || s.Type != "LMCache" || s.Endpoint != "push:" || s.Blocks != 48 {
		t.Errorf("the source is %+v, want it synced with 48 blocks", s)
	}

	// A chunk of two shards counts with both.
	says(report(t, p, next(lmcacheReport{Type: "store", Tier: "l2", Backend: "fs", Shared: true, Entries: entriesOf(chunks, 0, 2, "", 1)})),
		applied)
	holds("vllm-1", "", 0, 0)
	says(report(t, p, next(lmcacheReport{Type: "store", Tier: "l2", Backend: "fs", Shared: true, Entries: entriesOf(chunks, 0, 2, "", 0)})),
		applied)
	holds("vllm-1", "", 0, 4*chunkTokens)
	holds("vllm-0", "", 3*chunkTokens, 4*chunkTokens)
	says(report(t, p, next(lmcacheReport{Type: "delete", Tier: "l2", Backend: "fs", Shared: true,
		Entries: entriesOf(chunks, 2, 2, "", 1)})), applied)
	holds("vllm-1", "", 0, 2*chunkTokens)

	// A salt has chunks of its own under the same hashes.
	says(report(t, p, next(lmcacheReport{Type: "store", Tier: "l1", Backend: "dram", Entries: entriesOf(chunks[:2], 0, 1, "pepper", 0)})),
		applied)
	holds("vllm-0", "pepper", 2*chunkTokens, 0)
	says(report(t, p, next(lmcacheReport{Type: "delete", Tier: "l1", Backend: "dram", Entries: entriesOf(chunks[:2], 1, 1, "", 0)})),
		applied)
	holds("vllm-0", "pepper", 2*chunkTokens, 0)
	holds("vllm-0", "", 2*chunkTokens, 2*chunkTokens) // chunk 1 is on the shared disk alone, chunk 2 behind it on the host

	// Storage that no source is registered for, and faults of single batches and entries.
	odd := next(lmcacheReport{Type: "store", Tier: "l2", Backend: "S3", Shared: true, Entries: entriesOf(chunks[:1], 0, 1, "", 0)})
	says(report(t, p, odd), `{"applied":1,"duplicates":0,"stale":0,"unclaimed":1}`)
	bad := next(lmcacheReport{Type: "store", Tier: "l1", Backend: "dram", Entries: entriesOf(chunks[:1], 0, 1, "", 0)})
	bad.Entries[0].Key.Hash = "xy"
	answer := report(t, p, map[string]any{"instance_id": "node:n1"}, bad)
	for _, want := range []string{`"applied":1`, `"rejected":1`, `"field":"incarnation","index":0`,
		`"field":"entries[0].key.chunk_hash_hex","index":1`} {
		if !strings.Contains(answer, want) {
			t.Errorf("the answer %s lacks %s", answer, want)
		}
	}

	// A lost batch leaves the source partial. A restart empties the memory of the instance.
	seq++
	says(report(t, p, next(lmcacheReport{Type: "access", Tier: "l1", Entries: entriesOf(chunks[:1], 0, 1, "", 0)})), applied)
	if s := lmcacheServiceOf(t, p, "node:n1"); s.State != "partial" || s.Reason != "gap_unrecoverable" || s.Gaps != 1 {
		t.Errorf("the source is %+v, want it partial with one gap", s)
	}
	if s := lmcacheServiceOf(t, p, "pool:fs"); s.State != "partial" || s.Reason != "gap_unrecoverable" {
		t.Errorf("the shared storage is %+v, want it partial with a gap", s)
	}
	old := next(lmcacheReport{Type: "store", Tier: "l1", Backend: "dram", Entries: entriesOf(chunks, 0, 1, "", 0)})
	seq = 0
	says(report(t, p, next(lmcacheReport{Incarnation: 1790000100, Type: "config", Tier: "l1", Backend: "dram", Capacity: 1 << 30,
		Revision: 1})), applied)
	holds("vllm-0", "", 0, 2*chunkTokens)
	holds("vllm-0", "pepper", 0, 0)
	says(report(t, p, old), `{"applied":0,"duplicates":0,"stale":1}`)
	if s := lmcacheServiceOf(t, p, "node:n1"); s.State != "synced" || s.Blocks != 0 {
		t.Errorf("after the restart the source is %+v, want it synced and empty", s)
	}

	_, metrics := askAs(t, "GET", p.url+"/metrics", "", "", nil)
	for _, instance := range []string{"node:n1", "pool:fs"} {
		if s := lmcacheServiceOf(t, p, instance); len(s.Findings) > 0 {
			t.Errorf("%s is %+v, want no finding", instance, s)
		}
	}
	for _, want := range []string{`conductor_lmcache_batches_total{outcome="stale"} 1`,
		`conductor_lmcache_batches_total{outcome="duplicate"} 1`, "conductor_lmcache_unclaimed_entries_total 1"} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// TestLMCacheMissingShards asks why a prompt matches no further where ranks have not reported.
func TestLMCacheMissingShards(t *testing.T) {
	t.Parallel()
	p, doc := serveProcess(t, lmcachePushed), apitest.Load(t)
	tokens := make([]uint32, 4*chunkTokens)
	for i := range tokens {
		tokens[i] = uint32(i % 1000)
	}
	chunks := chunksOf(tokens)
	seq := 0
	stores := func(kind string, entries []lmcacheEntry) {
		t.Helper()
		seq++
		answer := report(t, p, lmcacheReport{Instance: "node:n1", Incarnation: 1, Seq: seq, Type: kind, Tier: "l1", Backend: "dram",
			Entries: entries})
		if answer != `{"applied":1,"duplicates":0,"stale":0}` {
			t.Fatal(answer)
		}
	}
	explains := func(tokens []uint32, salt, want, text string) {
		t.Helper()
		a := askExplain(t, p, doc, map[string]any{"model": "m", "block_size": 16, "token_ids": tokens, "cache_salt": salt})
		for _, h := range a.Pools {
			if !strings.HasPrefix(h.Source, "node:n1|") {
				continue
			}
			if h.text() != want || !strings.Contains(fmt.Sprint(h.End.Reasons), text) {
				t.Errorf("%s %v\nwant %s, %s", h.text(), h.End.Reasons, want, text)
			}
		}
	}
	lacking := func(blocks int) {
		t.Helper()
		_, metrics := askAs(t, "GET", p.url+"/metrics", "", "", nil)
		if want := fmt.Sprintf(`conductor_source_incomplete_blocks{dp_rank="0",instance_id="node:n1",tenant_id="default"} %d`,
			blocks); !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	stores("store", entriesOf(chunks[:1], 0, 2, "", 0, 1))
	stores("store", entriesOf(chunks[:2], 1, 2, "", 1))
	stores("store", entriesOf(chunks[:4], 2, 4, "pepper", 0, 2)) // places that no salted chunk before them has
	explains(tokens, "", "CPU[[0 16]] | 16 [256 272] shards_missing", "1 of 2 objects of block 16")
	explains(tokens[:300], "", "CPU[[0 16]] | 16 [256 272] shards_missing", "1 of 2 objects of block 16") // the prompt ends in the chunk
	other := append(slices.Clone(tokens[:300]), 7, 7, 7, 7)
	explains(other, "", "CPU[[0 16]] | 16 [256 272] never_announced", "no")
	explains(tokens, "pepper", "| 0 [0 16] other_salt never_announced", "")
	lacking(16 + 2*16)

	stores("store", entriesOf(chunks[:1], 0, 2, "pepper", 0))
	stores("store", entriesOf(chunks[:2], 1, 4, "pepper", 0, 1, 2))
	explains(tokens, "pepper", "| 0 [0 16] shards_missing other_salt", "1 of 2 objects of block 0 on lmcache-l1")
	lacking(16 + 4*16)
	stores("store", entriesOf(chunks[:1], 0, 2, "pepper", 1))
	explains(tokens, "pepper", "CPU[[0 16]] | 16 [256 272] shards_missing", "3 of 4 objects of block 16")
	stores("delete", entriesOf(chunks[:1], 0, 2, "", 1))
	lacking(16 + 4*16)
	stores("delete", entriesOf(chunks[:1], 0, 2, "", 0))
	stores("store", entriesOf(chunks[:2], 1, 2, "", 0))
	stores("delete", entriesOf(chunks[:4], 1, 4, "pepper", 0, 1, 2))
	lacking(0)
}

// TestLMCacheTenants reports as the client of one tenant: sources of another hear nothing, and the
// answer does not tell whether there are any.
func TestLMCacheTenants(t *testing.T) {
	t.Parallel()
	file := credentialsFile(t, "register-a register a", "register-b register b", "operator admin '*'")
	source := "  - {endpoint: 'push:', type: LMCache, modelname: m, instance_id: n, block_size: 16, tenant_id: b}\n"
	p := serveProcess(t, "auth: {file: "+file+"}\nsources:\n"+source)
	chunks := chunksOf(make([]uint32, chunkTokens))
	body, err := json.Marshal(map[string]any{"batches": []any{lmcacheReport{Instance: "n", Incarnation: 1, Seq: 1, Type: "store",
		Tier: "l1", Backend: "dram", Entries: entriesOf(chunks, 0, 1, "", 0)}}})
	must.Succeed(t, err)
	f := func(token, want string, blocks int) {
		t.Helper()
		if _, answer := askAs(t, "POST", p.url+"/lmcache/events", token, "application/json", body); answer != want {
			t.Errorf("%s is answered %s, want %s", token, answer, want)
		}
		_, answer := askAs(t, "GET", p.url+"/services", "operator", "", nil)
		if !strings.Contains(answer, fmt.Sprintf(`"Blocks":%d,`, blocks)) {
			t.Errorf("after %s the services are %s, want %d blocks", token, answer, blocks)
		}
	}
	f("register-a", `{"applied":1,"duplicates":0,"stale":0,"unclaimed":1}`, 0)
	f("register-b", `{"applied":1,"duplicates":0,"stale":0}`, 16)
	f("register-a", `{"applied":1,"duplicates":0,"stale":0,"unclaimed":1}`, 16)
}

// coordinator is testdata/lmcache_coordinator.py: a libzmq publisher in another process.
type coordinator struct {
	t   *testing.T
	in  *json.Encoder
	out *json.Decoder
	seq uint64 // of the last batch

	live, replay int // ports
}

func startCoordinator(t *testing.T) *coordinator {
	t.Helper()
	python := ""
	for _, name := range []string{os.Getenv("CONDUCTOR_PYTHON"), "/usr/bin/python3", "python3"} {
		if python == "" && name != "" && exec.Command(name, "-c", "import zmq, msgpack").Run() == nil {
			python = name
		}
	}
	if python == "" {
		must.Skip(t, "no python3 with zmq and msgpack (Debian: python3-zmq python3-msgpack; or set CONDUCTOR_PYTHON)")
	}
	cmd := exec.Command(python, "testdata/lmcache_coordinator.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must.Succeed(t, err)
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	c := &coordinator{t: t, in: json.NewEncoder(in), out: json.NewDecoder(io.Reader(out))}
	var ports [2]int
	must.Succeed(t, c.out.Decode(&ports))
	c.live, c.replay = ports[0], ports[1]
	return c
}

// publish sends a batch of an emitter; a lost one is in the ring alone.
func (c *coordinator) publish(emitter string, lost bool, events ...any) {
	c.t.Helper()
	line := []any{"kv@" + emitter + "@m", events}
	if lost {
		line = append(line, true)
	}
	must.Succeed(c.t, c.in.Encode(line))
	must.Succeed(c.t, c.out.Decode(&c.seq))
}

// TestLMCacheCoordinator follows a coordinator by its layout, over libzmq: no peer publishes it yet.
func TestLMCacheCoordinator(t *testing.T) {
	t.Parallel()
	c := startCoordinator(t)
	tokens := make([]uint32, 3*chunkTokens)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	chunks := chunksOf(tokens)
	store := func(i int, medium string) []any {
		e := []any{"BlockStored", chunks[i].hash, nil, chunks[i].tokens, medium}
		if i > 0 {
			e[2] = chunks[i-1].hash
		}
		return e
	}
	shard := func(i int, medium string) []any { return []any{store(i, medium), store(i, medium)} } // one event a rank
	c.publish("node:n1", true, shard(0, "lmcache-l1")...)
	source := fmt.Sprintf("  - {endpoint: 'tcp://127.0.0.1:%d', replay_endpoint: 'tcp://127.0.0.1:%d', type: LMCache, modelname: m, "+
		"block_size: 16, ", c.live, c.replay)
	p := serveProcess(t, "sources:\n"+lmcacheEngine+
		source+"instance_id: 'node:n1', serves: [vllm-0]}\n"+source+"instance_id: 'pool:fs'}\n")
	settled := func(instance string) (s struct {
		InstanceID, State, Reason string
		Gaps                      uint64
		LastSeq                   *uint64
		Findings                  []struct{ Code string }
	}) {
		t.Helper()
		eventually(t, instance+" never settled", func() (string, bool) {
			rows, body := servicesOf[struct {
				InstanceID, State, Reason string
				Gaps                      uint64
				LastSeq                   *uint64
				Findings                  []struct{ Code string }
			}](t, p.url)
			for _, s = range rows {
				if s.InstanceID == instance {
					return body, s.LastSeq != nil && *s.LastSeq == c.seq && s.State == "synced"
				}
			}
			return body, false
		})
		return s
	}
	holds := func(instance string, host, disk int) {
		t.Helper()
		settled("node:n1")
		settled("pool:fs")
		if h, d := asked(t, p, instance, "", tokens); h != host || d != disk {
			t.Errorf("%s has %d tokens on the host and %d on disk, want %d and %d", instance, h, d, host, disk)
		}
	}
	c.publish("node:n1", false, shard(1, "lmcache-l1")...)
	c.publish("pool:fs", false, shard(0, "lmcache-l2-fs")...)
	c.publish("node:n2", false, shard(2, "lmcache-l1")...) // no source
	holds("vllm-0", 2*chunkTokens, chunkTokens)
	holds("vllm-1", 0, chunkTokens)

	c.publish("pool:fs", true, shard(1, "lmcache-l2-fs")...)
	c.publish("node:n1", false, []any{"BlockRemoved", []string{chunks[1].hash}, "lmcache-l1"})
	holds("vllm-0", chunkTokens, 2*chunkTokens)
	for _, instance := range []string{"node:n1", "pool:fs"} {
		if s := settled(instance); s.Gaps != 1 || len(s.Findings) > 0 {
			t.Errorf("%s is %+v, want one gap and no finding", instance, s)
		}
	}
	c.publish("node:n1", false, []any{"AllBlocksCleared"})
	holds("vllm-0", 0, 2*chunkTokens)
}
