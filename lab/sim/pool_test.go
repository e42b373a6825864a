package sim

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim/truth"
)

func pooledConfig(t *testing.T, requests int) Config {
	t.Helper()
	c := testConfig(t, requests)
	c.Pool, c.PoolHost, c.PoolDisk = true, 200, 150
	return c
}

// TestPooledAnswers: with one client every answer is settled, and with many none
// that is settled is wrong.
func TestPooledAnswers(t *testing.T) {
	c := pooledConfig(t, 300)
	c.Clients = 1
	s := start(t, c)
	r := run(t, s)
	if err := r.Err(); err != nil {
		t.Errorf("%v\n%s", err, strings.Join(r.Wrong, "\n"))
	}
	if a := r.Answers; a.Settled != a.Compared || a.Behind+a.Wrong+a.Partial > 0 {
		t.Errorf("answers %+v", a)
	}
	p := r.Pool
	if r.True != r.Answered || p.Only.Any <= 0 || p.Only.CPU <= 0 || p.Only.Disk <= 0 || p.Only.GPU != 0 || p.Loaded == 0 {
		t.Errorf("hit rates %+v and %+v, %+v of the pool, %d tokens loaded", r.True, r.Answered, p.Only, p.Loaded)
	}
	if p.Holds.Host == 0 || p.Holds.Disk == 0 || p.Removed.Disk == 0 || p.State != "synced" || p.WireTokens != 0 {
		t.Errorf("pool %+v", p)
	}
	must.Report(t, s.f.pool.Check())
	for _, k := range s.f.ranks {
		if err := k.engine.Check(); err != nil {
			t.Errorf("%s: %v", k.key, err)
		}
	}
	if len(s.registered) != 0 || s.leftovers != 0 {
		t.Errorf("%d sources stay registered", len(s.registered))
	}

	c = pooledConfig(t, 200)
	c.Clients = 8
	if r = run(t, start(t, c)); r.Err() != nil || r.Answers.Settled == 0 {
		t.Errorf("%v\n%s\n%+v", r.Err(), strings.Join(r.Wrong, "\n"), r.Answers)
	}
}

var objectKey = regexp.MustCompile(`^(?:m@tp_rank:([01])@pcp0@dcp0@pp_rank:0@([0-9a-f]{64})|m_([0-9a-f]{64})_0_([kv]))$`)

// TestPoolStreamTellsAll: the bytes the master published have no tokens, name
// blocks that engines announced, and add up to what the pool holds.
func TestPoolStreamTellsAll(t *testing.T) {
	c := pooledConfig(t, 80)
	c.PoolHost, c.PoolDisk, c.ClearEvery = 100, 80, 0
	s := start(t, c)
	run(t, s)

	announced := map[uint64]string{} // engine hash to the tokens of the prefix
	for _, r := range s.f.ranks {
		f := newFollower(announced)
		for _, payload := range replayed(t, r.pub.ReplayEndpoint()) {
			d := msgpack.NewDecoder(bytes.NewReader(payload))
			d.UseLooseInterfaceDecoding(true)
			batch, err := d.DecodeSlice()
			must.Succeed(t, err)
			for _, ev := range batch[1].([]any) {
				f.apply(ev)
			}
		}
	}

	type shard struct{ key, medium string }
	held := map[shard]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(len(s.wire)) != s.f.pool.pub.LastSeq() || len(s.wire) == 0 {
		t.Fatalf("%d batches came of %d", len(s.wire), s.f.pool.pub.LastSeq())
	}
	for i, msg := range s.wire {
		if len(msg.Frames) != 3 || len(msg.Frames[0]) != 0 || binary.BigEndian.Uint64(msg.Frames[1]) != uint64(i+1) {
			t.Fatalf("message %d: %q", i, msg.Frames)
		}
		var batch []any
		if err := msgpack.Unmarshal(msg.Frames[2], &batch); err != nil || len(batch[1].([]any)) > 64 {
			t.Fatalf("batch %v: %v", batch, err)
		}
		for _, v := range batch[1].([]any) {
			ev := v.(map[string]any)
			for _, key := range []string{"model_name", "block_size", "dp_rank", "token_ids", "parent_hash", "parent_block_hash"} {
				if ev[key] != nil {
					t.Fatalf("%s is %v", key, ev[key])
				}
			}
			if len(ev["seq_hashes"].([]any)) != 0 {
				t.Fatalf("event %v", ev)
			}
			at := shard{ev["object_key"].(string), ev["medium"].(string)}
			if stored := ev["type"] == "BlockStored"; stored == held[at] {
				t.Fatalf("stored %t, and held before %t: %v", stored, held[at], at)
			}
			if held[at] = !held[at]; !held[at] {
				delete(held, at)
			}
		}
	}

	got := map[string]truth.Tier{}
	for at := range held {
		m := objectKey.FindStringSubmatch(at.key)
		if m == nil {
			t.Fatalf("object key %q", at.key)
		}
		other := strings.Replace(at.key, "@tp_rank:1", "@tp_rank:0", 1)
		if m[1] == "0" {
			other = strings.Replace(at.key, "@tp_rank:0", "@tp_rank:1", 1)
		} else if m[4] == "k" {
			other = strings.TrimSuffix(at.key, "k") + "v"
		} else if m[4] == "v" {
			other = strings.TrimSuffix(at.key, "v") + "k"
		}
		if !held[shard{other, at.medium}] {
			continue
		}
		digest, err := hex.DecodeString(m[2] + m[3])
		must.Succeed(t, err)
		hash := binary.BigEndian.Uint64(digest[24:])
		if m[3] != "" {
			hash = binary.BigEndian.Uint64(digest)
		}
		prefix, ok := announced[hash]
		if !ok {
			t.Fatalf("no engine announced %q", at.key)
		}
		got[prefix] |= tierOf(at.medium)
	}
	want := 0
	tree := s.f.instances[0].tree
	seen := map[truth.ID]bool{}
	for i := range s.f.pool.families {
		tree.Each(len(s.f.ranks)+i, func(id truth.ID, _ truth.Tier) {
			if seen[id] {
				return
			}
			seen[id] = true
			want++
			if tiers := got[prefixOf(tree, id)]; tiers != tree.Pooled(id) {
				t.Errorf("the stream says %v of a block on %v", tiers, tree.Pooled(id))
			}
		})
	}
	if len(got) != want || want == 0 {
		t.Errorf("the stream tells of %d blocks, the pool holds %d", len(got), want)
	}
}

// TestPoolLies: the fleet finds errors in the pool's part of an answer, and an
// answer that cannot know what the pool holds is not blamed.
func TestPoolLies(t *testing.T) {
	const every, lies = 10, 6
	f := func(name string, lie func(s *server, row object), wrong, behind, partial int) {
		t.Helper()
		c := pooledConfig(t, 46)
		c.Clients = 1
		s := start(t, c)
		s.lie = func(n int, instance string, row object) {
			if n%every == 3 && instance == "inst-1" {
				lie(s, row)
			}
		}
		a := run(t, s).Answers
		if a.Wrong != wrong || a.Behind != behind || a.Partial != partial {
			t.Errorf("%s: %+v, want %d wrong, %d behind, %d partial", name, a, wrong, behind, partial)
		}
	}
	pool := func(row object) object { return row["pools"].(object)[poolID+"|default|0"].(object) }
	over := func(row object) { row["CPU"] = row["CPU"].(int) + 64 }
	f("truth", func(*server, object) {}, 0, 0, 0)
	f("over", func(_ *server, r object) { over(r) }, lies, 0, 0)
	f("late", func(_ *server, r object) { pool(r)["watermark"] = 0; over(r) }, 0, lies, 0)
	f("no pools", func(_ *server, r object) { delete(r, "pools"); over(r) }, 0, lies, 0)
	f("partial", func(_ *server, r object) { pool(r)["state"] = "partial"; over(r) }, 0, 0, lies)
}

// TestRowWaitsForAnnouncement: a row of one instance is not settled while what names the
// pool's blocks may not have come from another.
func TestRowWaitsForAnnouncement(t *testing.T) {
	c := pooledConfig(t, 46)
	c.Clients = 1
	s := start(t, c)
	// The other instances are said to be before their first batch, and inst-1 to
	// have too much.
	s.lie = func(_ int, instance string, row object) {
		if instance == "inst-1" {
			row["CPU"] = row["CPU"].(int) + 64
			return
		}
		for _, d := range row["detail"].(object) {
			d.(object)["watermark"] = nil
		}
	}
	a := run(t, s).Answers
	if a.Behind < 50 || a.Wrong > 5 {
		t.Errorf("answers %+v", a)
	}
}

// TestUnfollowedPool: a server that does not follow the pool ends the run before
// anything is published.
func TestUnfollowedPool(t *testing.T) {
	c := pooledConfig(t, 20)
	c.SettleTimeout = 10 * time.Millisecond
	s := start(t, c)
	s.deaf = true
	_, err := s.f.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the server has not subscribed to pool-0|default|0 at tcp://127.0.0.1:") {
		t.Errorf("error %v", err)
	}
	if len(s.registered) != 0 || s.leftovers != 0 || s.f.pool.pub.LastSeq() != -1 {
		t.Errorf("%d sources stay registered, the pool is at batch %d", len(s.registered), s.f.pool.pub.LastSeq())
	}
}

func TestPoolReport(t *testing.T) {
	r := run(t, start(t, pooledConfig(t, 60)))
	var table, text bytes.Buffer
	r.Table(&table)
	for _, want := range []string{"pool-0    Mooncake master, keys alone", "pool objects", "true, in the pool alone  0.00 %"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is not in the table\n%s", want, table.String())
		}
	}
	if !regexp.MustCompile(`pool tokens +0 +with its events; engines loaded [0-9,]+ prompt tokens`).Match(table.Bytes()) {
		t.Errorf("the table does not say that there were no tokens:\n%s", table.String())
	}
	must.Succeed(t, harness.Print(&text, r, true))
	var back Report
	if err := json.Unmarshal(text.Bytes(), &back); err != nil || *back.Pool != *r.Pool {
		t.Errorf("the object does not hold the pool: %v\n%s", err, text.String())
	}
	r.Pool.WireTokens = 1
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "published tokens") {
		t.Errorf("tokens on the wire are passed over: %v", err)
	}
}

func TestPoolCheck(t *testing.T) {
	c := pooledConfig(t, 1)
	c.PoolHost, c.PoolDisk, c.Faults = 0, -1, true
	err := c.Check()
	if err == nil {
		t.Fatal("a bad configuration was accepted")
	}
	for _, want := range []string{"pool host blocks 0 is less than 1", "pool disk blocks -1", "a pool cannot be simulated with faults"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}

	c = pooledConfig(t, 1)
	c.Families = []string{"vllm-mtp", "sglang-eagle"}
	if err = c.Check(); err == nil || !strings.Contains(err.Error(), "a pool serves no engine with a look-ahead") {
		t.Errorf("a pool that serves no engine: %v", err)
	}
}
