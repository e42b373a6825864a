package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/harness"
	"example.com/conductor/lab/sim/workload"
)

func run(t *testing.T, s *server) *Report {
	t.Helper()
	r, err := s.f.run(t.Context())
	must.Succeed(t, err)
	return r
}

func TestRightAnswers(t *testing.T) {
	c := testConfig(t, 300)
	c.Clients, c.Samples = 1, true
	s := start(t, c)
	r := run(t, s)
	if err := r.Err(); err != nil {
		t.Errorf("a server that is always right fails: %v\n%s", err, strings.Join(r.Wrong, "\n"))
	}
	// One client compares before anything else is published, so every answer is settled.
	a := r.Answers
	asked := 300 - c.Warm
	if r.Requests != asked || a.Compared != 3*(asked+c.Audit) {
		t.Errorf("%d requests and %d answers, want %d and %d", r.Requests, a.Compared, asked, 3*(asked+c.Audit))
	}
	if a.Settled != a.Compared || a.Behind+a.Wrong+a.Partial > 0 || a.Timeouts > 0 {
		t.Errorf("answers %+v", a)
	}
	if r.True != r.Answered || r.True.Any <= 0 || r.True.Any > 100 || r.True.CPU <= 0 || r.True.Disk <= 0 {
		t.Errorf("hit rates %+v and %+v", r.True, r.Answered)
	}
	for name, n := range map[string]int{
		"device stores": r.Stored.Device, "host stores": r.Stored.Host, "disk stores": r.Stored.Disk,
		"removals from disk": r.Removed.Disk, "copies": r.Copies, "clears": r.Clears, "reused": r.Reused,
	} {
		if n == 0 {
			t.Errorf("the workload made no %s", name)
		}
	}
	for _, k := range s.f.ranks {
		if err := k.engine.Check(); err != nil {
			t.Errorf("%s: %v", k.key, err)
		}
	}
	if len(s.registered) != 0 || s.leftovers != 0 {
		t.Errorf("%d ranks stay registered", len(s.registered))
	}
	if len(r.Samples) != 3 {
		t.Fatalf("%d samples, want 3", len(r.Samples))
	}
	if q := r.Samples[2]; !strings.Contains(q.Command, `/query_by_hash --json '{"model":"m"`) ||
		!strings.Contains(q.Answer, `,"seq_hashes":[`) {
		t.Errorf("sample %+v", q)
	}
	if q := r.Samples[1]; !strings.Contains(q.Command, `--json '{"model":"m"`) || !strings.Contains(q.Answer, `"longest_matched":128`) {
		t.Errorf("sample %+v", q)
	}
}

// TestManyClients: while others publish, an answer may be behind and is never wrong.
func TestManyClients(t *testing.T) {
	c := testConfig(t, 200)
	c.Clients = 8
	r := run(t, start(t, c))
	if err := r.Err(); err != nil {
		t.Errorf("%v\n%s", err, strings.Join(r.Wrong, "\n"))
	}
	if a := r.Answers; a.Settled < 3*(200/c.SettleEvery-c.Warm) || a.Settled > a.Compared-a.Behind {
		t.Errorf("answers %+v", a)
	}
}

// TestLookAhead: engines with and without a look-ahead are in one fleet, each compared
// with what it holds. Blocks of the pool count for those without.
func TestLookAhead(t *testing.T) {
	c := testConfig(t, 300)
	c.BlockSize, c.Instances, c.Clients = 16, len(Families), 1
	c.Pool, c.PoolHost, c.PoolDisk = true, 200, 150
	s := start(t, c)
	r := run(t, s)
	if err := r.Err(); err != nil {
		t.Errorf("%v\n%s", err, strings.Join(r.Wrong, "\n"))
	}
	if a := r.Answers; a.Settled != a.Compared || a.Compared != len(Families)*(300-c.Warm+c.Audit) {
		t.Errorf("answers %+v", a)
	}
	if r.True != r.Answered || r.Pool.Loaded == 0 {
		t.Errorf("hit rates %+v and %+v, %d tokens loaded from the pool", r.True, r.Answered, r.Pool.Loaded)
	}
	if want := []string{"inst-0", "inst-1", "inst-2"}; !slices.Equal(s.serves, want) {
		t.Errorf("the pool serves %q, want %q", s.serves, want)
	}
	var table bytes.Buffer
	r.Table(&table)
	blocks := map[int]int{} // by look-ahead
	for i, k := range s.f.ranks {
		if err := k.engine.Check(); err != nil {
			t.Errorf("%s: %v", k.key, err)
		}
		stats := k.engine.Stats()
		blocks[k.ahead] += stats.Stored[0]
		if lower := stats.Stored[1] + stats.Stored[2]; k.deviceOnly != (lower == 0) || k.ahead > 0 && stats.Reused[3] > 0 {
			t.Errorf("%s: %+v", k.describe, stats)
		}
		if k.ahead != k.instance.tree.Ahead() || k.ahead > 0 &&
			!strings.HasSuffix(r.Instances[i].Publisher, fmt.Sprint("look-ahead ", k.ahead)) {
			t.Errorf("%s has a look-ahead of %d, its truth of %d", r.Instances[i].Publisher, k.ahead, k.instance.tree.Ahead())
		}
	}
	for _, ahead := range []int{0, 1, 4} {
		if blocks[ahead] == 0 {
			t.Errorf("no block was stored with look-ahead %d", ahead)
		}
	}
	if !strings.Contains(table.String(), "SGLang maps, write through, EAGLE, look-ahead 1") {
		t.Errorf("the table does not show the look-ahead:\n%s", table.String())
	}
}

// TestFleetFindsWrongFields: the fleet finds each wrong field of an answer and names it.
func TestFleetFindsWrongFields(t *testing.T) {
	type counts struct{ wrong, over, under, behind, partial int }
	const every = 10
	const lies = 60 / every // 40 requests are asked about, and 20 again
	f := func(name string, lie func(row object), want counts, text string) {
		t.Helper()
		c := testConfig(t, 46)
		c.Source, _ = workload.NewGenerator("chat", 1)
		c.Clients = 1 // with more, an answer may be behind by the time it is compared
		s := start(t, c)
		s.lie = func(n int, instance string, row object) {
			if n%every == 3 && instance == "inst-1" {
				lie(row)
			}
		}
		r := run(t, s)
		a := r.Answers
		if got := (counts{a.Wrong, a.Over, a.Under, a.Behind, a.Partial}); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if err := r.Err(); (err != nil) != (want.wrong > 0) {
			t.Errorf("%s: the verdict is %v", name, err)
		}
		if all := strings.Join(r.Wrong, "\n"); !strings.Contains(all, text) {
			t.Errorf("%s: %q is not in\n%s", name, text, all)
		}
	}
	add := func(o object, key string, n int) { o[key] = o[key].(int) + n }
	rank := func(row object, field, n string) object { return row[field].(object)[n].(object) }
	late := func(row object) {
		d := rank(row, "detail", "1")
		last, _ := d["watermark"].(int64) // nil before the first batch
		d["watermark"] = last - 1
		if last == 0 {
			d["watermark"] = 7
		}
	}

	f("truth", func(object) {}, counts{}, "")
	f("longest over", func(r object) {
		add(r, "longest_matched", 64)
	}, counts{lies, lies, 0, 0, 0}, "inst-1 (vllm-array): longest_matched: want ")
	f("GPU over", func(r object) { add(r, "GPU", 64) }, counts{lies, lies, 0, 0, 0}, " GPU: want ")
	f("CPU over", func(r object) { add(r, "CPU", 64) }, counts{lies, lies, 0, 0, 0}, " CPU: want ")
	f("DISK under", func(r object) { add(r, "DISK", -64) }, counts{lies, 0, lies, 0, 0}, " DISK: want ")
	f("DP under", func(r object) { add(r["DP"].(object), "1", -64) }, counts{lies, 0, lies, 0, 0}, " DP[1]: want ")
	f("cascade over", func(r object) {
		add(rank(r, "rank_matches", "0"), "disk", 64)
	}, counts{lies, lies, 0, 0, 0}, " rank_matches[0].disk: want ")
	f("both", func(r object) { add(r, "GPU", 64); add(r, "CPU", -64) }, counts{lies, lies, lies, 0, 0}, "; CPU: want ")
	f("no CPU", func(r object) { delete(r, "CPU") }, counts{lies, 0, lies, 0, 0}, "missing")
	f("no DP of a rank", func(r object) { delete(r["DP"].(object), "0") }, counts{lies, 0, lies, 0, 0}, "DP[0]: want ")
	f("no cascade", func(r object) { delete(r, "rank_matches") }, counts{lies, 0, lies, 0, 0}, "rank_matches[1].cpu: want ")
	f("an unknown rank", func(r object) { r["DP"].(object)["2"] = 0 }, counts{lies, lies, 0, 0, 0}, "DP[2]: want none, got 0")
	f("an odd rank", func(r object) {
		r["rank_matches"].(object)["00"] = object{"disk": 5}
	}, counts{lies, lies, 0, 0, 0}, "rank_matches[00]: want none, got 5")
	f("no row", func(r object) { clear(r) }, counts{lies, 0, lies, 0, 0}, "row: want ")
	f("late", late, counts{}, "")
	f("late and over", func(r object) { late(r); add(r, "GPU", 64) }, counts{0, 0, 0, lies, 0}, "")
	f("late and under", func(r object) { late(r); add(r, "longest_matched", -64) }, counts{0, 0, 0, lies, 0}, "")
	f("no detail", func(r object) { delete(r, "detail"); add(r, "GPU", 64) }, counts{0, 0, 0, lies, 0}, "")
	f("partial", func(r object) { rank(r, "detail", "0")["state"] = "partial" }, counts{0, 0, 0, 0, lies}, "")
	f("partial and over", func(r object) { rank(r, "detail", "0")["state"] = "partial"; add(r, "GPU", 64) }, counts{0, 0, 0, 0, lies}, "")
	f("stale", func(r object) { rank(r, "detail", "0")["state"] = "stale" }, counts{}, "")
	f("stale and over", func(r object) {
		rank(r, "detail", "0")["state"] = "stale"
		add(r, "GPU", 64)
	}, counts{lies, lies, 0, 0, 0}, "rank 0 stale at ")
}

// TestAnswerFromBeforeRestart holds that an answer that was under way while a rank was restarted is
// not settled: the new life may have come to the sequence of the old one.
func TestAnswerFromBeforeRestart(t *testing.T) {
	c := testConfig(t, 20)
	c.Clients = 1
	s := start(t, c)
	s.lie = func(_ int, instance string, row object) {
		if instance == "inst-1" {
			s.f.instances[1].restarts.Add(1)
			row["GPU"] = row["GPU"].(int) + 64
		}
	}
	if a := run(t, s).Answers; a.Wrong != 0 || a.Behind == 0 {
		t.Errorf("answers: %+v", a)
	}
}

// TestServerTroubles: what keeps answers from being compared fails the run.
func TestServerTroubles(t *testing.T) {
	f := func(name string, trouble func(s *server), want string) {
		t.Helper()
		c := testConfig(t, 60)
		c.SettleTimeout = 20 * time.Millisecond
		s := start(t, c)
		trouble(s)
		r, err := s.f.run(t.Context())
		if err == nil {
			err = r.Err()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", name, err, want)
		}
	}
	f("never catches up", func(s *server) { s.lag = 1 }, "the server never caught up: 6 sources lag behind")
	f("no details", func(s *server) {
		s.lie = func(_ int, _ string, row object) { delete(row, "detail") }
	}, "none of 222 answers was settled")
	f("refuses", func(s *server) { s.refuse = 500 },
		"20 queries failed in a row, the last with: POST /query?detail=1: status 500: out of order")
	f("is gone", func(s *server) { s.f.Server = "http://127.0.0.1:1" }, "no server listens at 127.0.0.1:1: start one with conductor serve")
	f("is something else", func(s *server) { s.f.Server += "/other" }, "cannot use the server at http://")
}

// TestRefusedRegistration: the ranks accepted before are unregistered.
func TestRefusedRegistration(t *testing.T) {
	s := start(t, testConfig(t, 20))
	s.places = 4
	_, err := s.f.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "cannot register inst-2|default|0: POST /register: status 409: no place") {
		t.Errorf("error %v", err)
	}
	if len(s.registered) != 0 || s.leftovers != 0 {
		t.Errorf("%d ranks stay registered, %d were unregistered without need", len(s.registered), s.leftovers)
	}
}

// TestInterruptedRunReports: a cancelled run reports what it did and unregisters.
func TestInterruptedRunReports(t *testing.T) {
	c := testConfig(t, 0)
	s := start(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	s.lie = func(n int, _ string, _ object) {
		if n == 50 {
			cancel()
		}
	}
	r, err := s.f.run(ctx)
	must.Succeed(t, err)
	if !r.Interrupted || r.Requests < 40 || len(r.Instances) != 6 || r.Instances[0].State != "synced" {
		t.Errorf("report %+v", r)
	}
	if len(s.registered) != 0 {
		t.Errorf("%d ranks stay registered", len(s.registered))
	}
}

func TestDurationAndKeep(t *testing.T) {
	c := testConfig(t, 0)
	c.Duration, c.Keep = time.Second, true
	s := start(t, c)
	r := run(t, s)
	if err := r.Err(); err != nil || r.Interrupted || r.Requests == 0 {
		t.Errorf("%d requests, interrupted %t: %v", r.Requests, r.Interrupted, err)
	}
	if len(s.registered) != 6 {
		t.Errorf("%d ranks stay registered, want 6", len(s.registered))
	}
}

func TestRunKeepsPace(t *testing.T) {
	c := testConfig(t, 26)
	c.QPS, c.Clients = 100, 3
	r := run(t, start(t, c))
	if r.Requests != 20 || r.Elapsed < 190*time.Millisecond {
		t.Errorf("%d requests at 100/s took %v", r.Requests, r.Elapsed)
	}
}

func TestTraceRun(t *testing.T) {
	const lines = `{"timestamp":0,"input_length":700,"output_length":100,"hash_ids":[0,1]}
{"timestamp":1,"input_length":1500,"output_length":10,"hash_ids":[0,2,3]}
{"timestamp":2,"input_length":1300,"output_length":10,"hash_ids":[0,2,4]}
{"timestamp":3,"input_length":20,"output_length":0,"hash_ids":[9]}
`
	source, err := workload.ReadTrace("t", strings.NewReader(lines))
	must.Succeed(t, err)
	c := testConfig(t, 0)
	c.Source, c.Warm, c.Clients, c.SettleEvery = source, 1, 1, 1
	r := run(t, start(t, c))
	must.Report(t, r.Err())
	// The first line is the warm-up; 512 and 1024 tokens of the others are known
	// somewhere, whichever instance they went to.
	if r.Requests != 3 || r.PromptTokens != 2820 || r.OutputTokens != 20 || r.True.Any > 55 {
		t.Errorf("report %+v", r)
	}
}

func TestConfigCheck(t *testing.T) {
	c := testConfig(t, 1)
	must.Succeed(t, c.Check())
	c.Instances, c.Chunk, c.QPS, c.Families = 0, 63, -1, []string{"sglang", "tgi"}
	err := c.Check()
	if err == nil {
		t.Fatal("a bad configuration was accepted")
	}
	for _, want := range []string{"instances 0", "chunk 63 is less than 64", "qps -1",
		`family "tgi" is none of vllm-map, vllm-array, sglang`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestReportNamesWrongAnswers(t *testing.T) {
	c := testConfig(t, 40)
	c.Samples = true
	s := start(t, c)
	s.lie = func(n int, _ string, row object) {
		if n == 8 {
			row["GPU"] = 1 << 20
		}
	}
	var progress bytes.Buffer
	s.f.Progress = LineProgress(&progress, time.Nanosecond)
	r := run(t, s)

	var table bytes.Buffer
	r.Table(&table)
	for _, want := range []string{
		"workload mixed, seed 1, 64 tokens a block", "inst-2/1", "SGLang maps", "hit rate", "answered",
		"answers compared", "wrong: ", "GPU: want ", "got 1048576", "$ curl -s http://", "/query_by_hash",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is not in the table\n%s", want, table.String())
		}
	}
	var object bytes.Buffer
	must.Succeed(t, harness.Print(&object, r, true))
	var back Report
	if err := json.Unmarshal(object.Bytes(), &back); err != nil || back.Answers != r.Answers || back.Requests != r.Requests {
		t.Errorf("the object does not hold the report: %v\n%s", err, object.String())
	}
	if lines := strings.Count(progress.String(), " of 34 requests, "); lines < 30 {
		t.Errorf("%d lines of progress\n%s", lines, progress.String())
	}
}

func TestReportNumbers(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -999: "-999"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is written %s", n, got)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0 µs", 950 * time.Microsecond: "950 µs", time.Millisecond: "1 ms", 1500 * time.Microsecond: "1.5 ms",
		2 * time.Second: "2000 ms",
	} {
		if got := short(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
}

func TestAppendTokens(t *testing.T) {
	for want, tokens := range map[string][]uint32{
		"":                     nil,
		"0":                    {0},
		"0,9,10,99,100,999":    {0, 9, 10, 99, 100, 999},
		"1000,9999,10000":      {1000, 9999, 10000},
		"99999,0,99999":        {99999, 0, 99999},
		"5,5,5,12345,1,54321,": append([]uint32{5, 5, 5, 12345, 1, 54321}, make([]uint32, 0)...),
	} {
		if got := string(appendTokens(nil, tokens)); got != strings.TrimSuffix(want, ",") {
			t.Errorf("%v is written %q", tokens, got)
		}
	}
}
