package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"

	nethttp "net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/zmq"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
	"example.com/conductor/tiers"
)

const testBlock = 16

// handFilled is a Conductor that is filled by hand.
type handFilled struct {
	t testing.TB
	c *conductor.Conductor
	r *ingest.Recovery
}

func newFleet(t testing.TB) *handFilled {
	c := conductor.New(conductor.Options{
		HashSeed: hash.DefaultSeed, KeepClientHashes: true, ExpectedBytes: 1 << 20, Gate: make(chan struct{}), Log: zerolog.Nop(),
		Stream: stream.Config{Transport: zmq.Transport{}},
	})
	t.Cleanup(c.Close)
	return &handFilled{t: t, c: c, r: c.Sources().Snapshots().Recover(0)}
}

// source adds a source and returns its registration.
func (f *handFilled) source(instance string, rank int, typ string) registration.Registration {
	reg := registration.Registration{
		Endpoint: fmt.Sprintf("tcp://%x:%d", instance, 1000+rank), Tenant: scope.DefaultTenant, Model: "m", BlockSize: testBlock,
		Type: typ, Instance: instance, Rank: rank,
	}
	must.Succeed(f.t, f.r.Source(image.Source{Registration: reg, Mark: &ingest.Mark{}}))
	return reg
}

// store gives a source the prefix of a prompt.
func (f *handFilled) store(reg registration.Registration, medium string, prompt []uint32, blocks int) {
	if blocks == 0 {
		return
	}
	locals := hash.Scheme{Seed: hash.DefaultSeed}.AppendLocals(nil, prompt, testBlock)[:blocks]
	err := f.r.Stored(&ingest.Stored{
		Shard: scope.Shard{Tenant: reg.Tenant, Model: reg.Model}, BlockSize: reg.BlockSize, Source: reg, Rank: int32(reg.Rank),
		Medium:  tiers.ParseMedium(medium),
		Stretch: &index.Stretch{Root: true, Engine: locals, ClientHashes: locals},
	})
	must.Succeed(f.t, err)
}

// routed reports a prompt, if its target is there.
func (f *handFilled) routed(instance string, rank int, prompt []uint32) {
	r := match.Routed{Query: match.Query{Model: "m", BlockSize: testBlock, Tokens: prompt}, Target: instance, Rank: rank}
	if _, err := f.c.For(conductor.Reader{}).Routed(&r); err != nil && !errors.As(err, new(*match.UnknownNameError)) {
		f.t.Fatal(err)
	}
}

func promptOf(seed uint32, blocks int) []uint32 {
	prompt := make([]uint32, blocks*testBlock)
	for i := range prompt {
		prompt[i] = seed + uint32(i*31)
	}
	return prompt
}

// plainAnswer is the answer as it is written one field after the other.
func plainAnswer(ans *match.Answer) string {
	text := func(s string) string {
		b, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	list := func(n int, f func(i int) string) string {
		var parts []string
		for i := range n {
			parts = append(parts, f(i))
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	detail := func(d *match.SourceDetail) string {
		mark, age := "null", "null"
		if d.HasMark {
			mark = fmt.Sprint(d.Watermark)
		}
		if d.Age >= 0 {
			age = fmt.Sprint(d.Age.Milliseconds())
		}
		stay := list(len(d.Lives), func(i int) string {
			l := d.Lives[i]
			return fmt.Sprintf(`%s:{"1s":%v,"10s":%v}`, text(l.Medium), math.Round(l.Stay(time.Second)*1e4)/1e4,
				math.Round(l.Stay(10*time.Second)*1e4)/1e4)
		})
		return fmt.Sprintf(`{"state":%s,"reason":%s,"epoch":%d,"watermark":%s,"age_ms":%s,"stay":%s}`, text(string(d.State)),
			text(d.Reason), d.Epoch, mark, age, stay)
	}
	if len(ans.Rows) == 0 {
		return "{}"
	}
	rows := list(len(ans.Rows), func(i int) string {
		row := &ans.Rows[i]
		var b strings.Builder
		fmt.Fprintf(&b, `%s:{"longest_matched":%d`, text(row.Instance), row.Longest*ans.BlockSize)
		if ans.Expected {
			fmt.Fprintf(&b, `,"expected":%d`, row.Expected*ans.BlockSize)
		}
		if row.Approximate {
			b.WriteString(`,"approximate":true`)
		}
		if row.UpperBound {
			b.WriteString(`,"upper_bound":true`)
		}
		for _, m := range row.Media {
			name := m.Name
			if name == "DP" {
				name = "MEDIUM_DP"
			}
			fmt.Fprintf(&b, `,%s:%d`, text(name), m.Blocks*ans.BlockSize)
		}
		b.WriteString(`,"DP":` + list(len(row.Ranks), func(i int) string {
			return fmt.Sprintf(`"%d":%d`, row.Ranks[i].Rank, row.Ranks[i].Blocks*ans.BlockSize)
		}))
		b.WriteString(`,"rank_matches":` + list(len(row.Ranks), func(i int) string {
			r := row.Ranks[i]
			soon := ""
			if ans.Expected {
				soon = fmt.Sprintf(`,"expected":%d`, r.Expected*ans.BlockSize)
			}
			return fmt.Sprintf(`"%d":{"gpu":%d,"cpu":%d,"disk":%d%s}`, r.Rank, r.Device*ans.BlockSize, r.Host*ans.BlockSize,
				r.Disk*ans.BlockSize, soon)
		}))
		if ans.Truncated {
			b.WriteString(`,"truncated":true`)
		}
		if row.Window > 0 {
			fmt.Fprintf(&b, `,"window":%d`, row.Window)
		}
		if row.Detail != nil {
			b.WriteString(`,"detail":` + list(len(row.Detail), func(i int) string {
				return fmt.Sprintf(`"%d":%s`, row.Detail[i].Rank, detail(&row.Detail[i]))
			}))
		}
		pools := slices.DeleteFunc(slices.Clone(ans.Pools), func(p match.SourceDetail) bool { return !p.Serves(row.Instance) })
		if len(pools) > 0 {
			b.WriteString(`,"pools":` + list(len(pools), func(i int) string {
				return text(pools[i].Key.String()) + ":" + detail(&pools[i])
			}))
		}
		return b.String() + "}"
	})
	return "{" + text(ans.Tenant) + ":" + rows + "}"
}

// TestAnswersFromPreparedPieces compares answers from prepared pieces with answers written in full,
// for fleets made up at random.
func TestAnswersFromPreparedPieces(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	names := []string{
		"a", "b1", "<html>&", "quo\"te", "back\\slash", "tab\t", "é", "\u2028", "x\x7f", "a-rather-long-name.of-an.instance:8000", "~",
		"0",
	}
	media := []string{"gpu", "gpu", "cpu", "disk", "remote", "dp", "<tape>"}
	for range 60 {
		f := newFleet(t)
		prompt := promptOf(uint32(rng.Uint64()), 8)
		for _, name := range names[:rng.IntN(len(names)+1)] {
			for rank := range 1 + rng.IntN(3) {
				reg := f.source(name, rank, registration.TypeVLLM)
				if rng.IntN(3) == 0 {
					f.store(reg, media[rng.IntN(len(media))], prompt, rng.IntN(9))
				}
			}
		}
		if rng.IntN(2) == 0 {
			f.store(f.source("pool", 0, registration.TypeMooncake), "cpu", prompt, rng.IntN(9))
		}
		for range rng.IntN(4) {
			f.routed(names[rng.IntN(len(names))], rng.IntN(3)-1, prompt[:testBlock*rng.IntN(9)])
		}
		for range 12 {
			q := match.Query{
				Model: "m", BlockSize: testBlock, Tokens: prompt, Detail: rng.IntN(4) == 0, Expected: rng.IntN(2) == 0,
				MinMatched: rng.IntN(3) * rng.IntN(60), Top: rng.IntN(3) * rng.IntN(4),
			}
			if rng.IntN(4) == 0 {
				q.Instance = &names[rng.IntN(len(names))]
			}
			if rng.IntN(6) == 0 {
				q.Tokens = promptOf(1, 8)
			}
			f.c.Answer(&q, func(ans *match.Answer) {
				ans.Truncated = rng.IntN(5) == 0
				got := string(appendAnswer(nil, ans))
				if want := plainAnswer(ans); got != want || !json.Valid([]byte(got)) {
					t.Fatalf("seed %d\n got %s\nwant %s", seed, got, want)
				}
				without := *ans // as written by hand
				without.Roster = nil
				if again := string(appendAnswer(nil, &without)); again != got {
					t.Fatalf("seed %d: without its roster\n got %s\nwant %s", seed, again, got)
				}
				for _, ans := range []*match.Answer{ans, &without} {
					e := body.Encoder{Codec: body.Msgpack}
					writeAnswer(&e, ans, nil)
					if packed := unpacked(t, e.Out); !reflect.DeepEqual(packed, parsed(t, []byte(got))) {
						t.Fatalf("seed %d: in msgpack\n got %v\nwant %s", seed, packed, got)
					}
				}
			})
		}
	}
}

// TestLimitedAnswers compares limited answers with whole ones cut short.
func TestLimitedAnswers(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	hits := 0
	for range 40 {
		f := newFleet(t)
		prompt := promptOf(uint32(rng.Uint64()), 6)
		for i := range 1 + rng.IntN(12) {
			f.store(f.source(fmt.Sprintf("i%d", i), 0, registration.TypeVLLM), "gpu", prompt, max(0, rng.IntN(10)-4))
		}
		if rng.IntN(2) == 0 {
			f.store(f.source("pool", 0, registration.TypeMooncake), "cpu", prompt, rng.IntN(4))
		}
		q := match.Query{Model: "m", BlockSize: testBlock, Tokens: prompt}
		whole := f.c.Query(q)
		for _, row := range whole.Rows {
			hits += min(row.Longest, 1)
		}
		for range 20 {
			q.MinMatched, q.Top = rng.IntN(7*testBlock)*rng.IntN(2), rng.IntN(14)
			var want []match.Row
			for _, row := range whole.Rows {
				if row.Longest*testBlock >= q.MinMatched {
					want = append(want, row)
				}
			}
			slices.SortStableFunc(want, func(a, b match.Row) int { return b.Longest - a.Longest })
			if q.Top > 0 && len(want) > q.Top {
				want = want[:q.Top]
			}
			slices.SortFunc(want, func(a, b match.Row) int { return strings.Compare(a.Instance, b.Instance) })
			limited := whole
			limited.Rows = want
			got := f.c.Query(q)
			if a, b := plainAnswer(&got), plainAnswer(&limited); a != b {
				t.Fatalf("seed %d: min_matched %d, top %d of %s\n got %s\nwant %s", seed, q.MinMatched, q.Top, plainAnswer(&whole), a, b)
			}
		}
	}
	if hits == 0 {
		t.Error("no instance held anything")
	}
}

// TestStringsAreWrittenAsEncodingJSONDoes tries every byte and some runes.
func TestStringsAreWrittenAsEncodingJSONDoes(t *testing.T) {
	texts := []string{"", "plain", "\u2028\u2029", "é", "\U0001f600", "a\xffb", "\xed\xa0\x80"}
	for c := range 256 {
		texts = append(texts, "x"+string([]byte{byte(c)})+"y")
	}
	for _, s := range texts {
		want, err := json.Marshal(s)
		must.Succeed(t, err)
		if got := body.AppendString(nil, s, true); string(got) != string(want) {
			t.Errorf("%q: got %s, want %s", s, got, want)
		}
	}
}

// TestAnswerOnTheWire: one piece, its length told, whatever the buffer was used for
// before.
func TestAnswerOnTheWire(t *testing.T) {
	f := newFleet(t)
	prompt := promptOf(3, 4)
	for i := range 60 {
		f.store(f.source(fmt.Sprintf("i%02d", i), 0, registration.TypeVLLM), "gpu", prompt, i%3)
	}
	engine := gin.New()
	Mount(engine, f.c, Options{MaxBody: 1 << 16, MaxTokens: 1 << 10})
	server := httptest.NewServer(engine)
	defer server.Close()
	for i := range 50 {
		top := 1 + i*7%60
		body, err := json.Marshal(map[string]any{"model": "m", "block_size": testBlock, "token_ids": prompt, "top": top})
		must.Succeed(t, err)
		resp, err := nethttp.Post(server.URL+"/query", "application/json", bytes.NewReader(body))
		must.Succeed(t, err)
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		must.Succeed(t, err)
		ans := f.c.Query(match.Query{Model: "m", BlockSize: testBlock, Tokens: prompt, Top: top})
		if string(got) != plainAnswer(&ans) || resp.ContentLength != int64(len(got)) ||
			resp.Header.Get("Content-Type") != "application/json" {
			t.Fatalf("length %d, type %q\n got %s\nwant %s", resp.ContentLength, resp.Header.Get("Content-Type"), got, plainAnswer(&ans))
		}
	}
}

// BenchmarkAnswer asks for a prompt of 1,024 tokens in blocks of 16 whose first half 8
// instances hold, and writes the answer.
func BenchmarkAnswer(b *testing.B) {
	const blocks, holders = 64, 8
	run := func(b *testing.B, instances int, q match.Query, write bool) {
		f := newFleet(b)
		prompt := promptOf(7, blocks)
		for i := range instances {
			reg := f.source(fmt.Sprintf("engine-%d:8000", i), 0, registration.TypeVLLM)
			if i%(instances/holders) == 0 {
				f.store(reg, "gpu", prompt, blocks/2)
			}
		}
		q.Model, q.BlockSize, q.Tokens = "m", testBlock, prompt
		var dst []byte
		ask := func() {
			f.c.Answer(&q, func(ans *match.Answer) {
				if write {
					dst = appendAnswer(dst[:0], ans)
				}
			})
		}
		ask()
		if n := f.c.Query(match.Query{Model: "m", BlockSize: testBlock, Tokens: prompt, MinMatched: 1}); len(n.Rows) != holders {
			b.Fatalf("%d hits", len(n.Rows))
		}
		b.ReportAllocs()
		b.SetBytes(int64(len(dst)))
		for b.Loop() {
			ask()
		}
	}
	for _, n := range []int{128, 1000} {
		b.Run(fmt.Sprintf("%d/fold", n), func(b *testing.B) { run(b, n, match.Query{}, false) })
		b.Run(fmt.Sprintf("%d/fold+write/all", n), func(b *testing.B) { run(b, n, match.Query{}, true) })
		b.Run(fmt.Sprintf("%d/fold+write/top=8", n), func(b *testing.B) { run(b, n, match.Query{Top: 8}, true) })
		b.Run(fmt.Sprintf("%d/fold+write/min_matched=1", n), func(b *testing.B) { run(b, n, match.Query{MinMatched: 1}, true) })
	}
}

// appendAnswer appends an answer in JSON.
func appendAnswer(dst []byte, ans *match.Answer) []byte {
	e := body.Encoder{Out: dst, HTML: true}
	writeAnswer(&e, ans, nil)
	return e.Out
}

// unpacked returns a value in msgpack as parsed returns it in JSON.
func unpacked(t testing.TB, packed []byte) any {
	t.Helper()
	var v any
	if err := msgpack.Unmarshal(packed, &v); err != nil {
		t.Fatalf("%x: %v", packed, err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return parsed(t, text)
}

func parsed(t testing.TB, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}
