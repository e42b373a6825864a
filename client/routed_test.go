package client

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/internal/must"
)

// answering is a client of a server that answers everything in one way, and notes what it was asked.
type answering struct {
	*Client
	status              int
	answer              string
	method, path, asked string
}

func newAnswering(t *testing.T, status int, answer string, options ...Option) *answering {
	a := &answering{status: status, answer: answer}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		must.Succeed(t, err)
		a.method, a.path, a.asked = r.Method, r.URL.RequestURI(), string(text)
		w.WriteHeader(a.status)
		io.WriteString(w, a.answer)
	}))
	t.Cleanup(s.Close)
	c, err := New(s.URL, options...)
	must.Succeed(t, err)
	a.Client = c
	return a
}

// TestRoutedSaysEverything reads reports of random values back from their bodies.
func TestRoutedSaysEverything(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	text := func() string { return []string{"", "a", "ü/?", `"`}[rnd.IntN(4)] }
	random := func() (r Routed) {
		r = Routed{Target: "i" + text(), Rank: rnd.IntN(4) - 1, TTL: time.Duration(rnd.IntN(3)) * 1500 * time.Millisecond,
			RequestID: text()}
		r.Model, r.BlockSize, r.Tenant, r.Adapter, r.Salt = "m"+text(), 1+rnd.IntN(64), text(), text(), text()
		n := rnd.IntN(20)
		if rnd.IntN(2) == 0 {
			r.SeqHashes, r.HashKind = make([]uint64, n), []HashKind{Canonical, Engine, VLLM}[rnd.IntN(3)]
			for i := range r.SeqHashes {
				r.SeqHashes[i] = rnd.Uint64()
			}
		} else {
			r.Tokens = make([]uint32, n)
			for i := range r.Tokens {
				r.Tokens[i] = rnd.Uint32()
			}
		}
		return r
	}
	type report struct {
		Model     string   `json:"model"`
		BlockSize int      `json:"block_size"`
		Tenant    string   `json:"tenant_id"`
		Adapter   string   `json:"lora_name"`
		Salt      string   `json:"cache_salt"`
		Target    string   `json:"instance_id"`
		Rank      *int     `json:"dp_rank"`
		TTL       string   `json:"ttl"`
		ID        string   `json:"request_id"`
		Tokens    *string  `json:"token_ids_b64"`
		Hashes    []uint64 `json:"seq_hashes"`
		Kind      HashKind `json:"hash"`
	}
	read := func(in report) (r Routed) {
		r = Routed{Target: in.Target, Rank: AnyRank, RequestID: in.ID}
		r.Model, r.BlockSize, r.Tenant, r.Adapter, r.Salt, r.SeqHashes, r.HashKind = in.Model, in.BlockSize, in.Tenant, in.Adapter, in.Salt,
			in.Hashes, in.Kind
		if in.Rank != nil {
			r.Rank = *in.Rank
		}
		var err error
		if in.TTL != "" {
			r.TTL, err = time.ParseDuration(in.TTL)
			must.Succeed(t, err)
		}
		if in.Tokens != nil {
			raw, err := base64.StdEncoding.DecodeString(*in.Tokens)
			must.Succeed(t, err)
			r.Tokens = make([]uint32, len(raw)/4)
			_, err = binary.Decode(raw, binary.LittleEndian, r.Tokens)
			must.Succeed(t, err)
		}
		return r
	}
	c := newAnswering(t, http.StatusNoContent, "")
	for range 50 {
		want := random()
		must.Succeed(t, c.Routed(t.Context(), want))
		var got report
		must.Succeed(t, json.Unmarshal([]byte(c.asked), &got))
		if r := read(got); c.path != "/conductor/v1/routed" || !reflect.DeepEqual(r, want) {
			t.Fatalf("seed %d, %s: %+v, want %+v", seed, c.path, r, want)
		}
	}
	all := []Routed{random(), random(), random()}
	answer, err := c.RoutedBatch(t.Context(), all)
	if err != nil || answer.Errors != nil || answer.Warnings != nil {
		t.Errorf("%+v, %v", answer, err)
	}
	var batch struct{ Prompts []report }
	must.Succeed(t, json.Unmarshal([]byte(c.asked), &batch))
	for i, p := range batch.Prompts {
		if r := read(p); !reflect.DeepEqual(r, all[i]) {
			t.Errorf("seed %d, report %d: %+v, want %+v", seed, i, r, all[i])
		}
	}
}

// TestRoutedAnswers reads what a server says of reports.
func TestRoutedAnswers(t *testing.T) {
	c := newAnswering(t, http.StatusOK, `{"warnings":["a"]}`)
	must.Succeed(t, c.Routed(t.Context(), Routed{}))
	c.answer = `{"kept":2,"warnings":["a","b"],"errors":[
		{"prompt":1,"error":"no rank 7","reason":"not_found","field":"dp_rank","known":["0","1"]},
		{"prompt":3,"error":"bad","reason":"out_of_range","field":"token_ids","index":5},
		{"prompt":9,"error":"of no report","reason":"x"}]}`
	answer, err := c.RoutedBatch(t.Context(), make([]Routed, 4))
	must.Succeed(t, err)
	var one, three *Error
	if len(answer.Errors) != 4 || !errors.As(answer.Errors[1], &one) || !errors.As(answer.Errors[3], &three) || answer.Errors[0] != nil ||
		answer.Errors[2] != nil || !slices.Equal(answer.Warnings, []string{"a", "b"}) {
		t.Fatalf("%+v", answer)
	}
	if one.Status != 404 || one.Field != "dp_rank" || fmt.Sprint(one.Known) != "[0 1]" || one.Message != "no rank 7" ||
		three.Status != 400 || *three.Index != 5 {
		t.Errorf("%+v, %+v", one, three)
	}
	c.status, c.answer = http.StatusNotFound, `{"error":"no instance","reason":"not_found","field":"instance_id","known":["e1"]}`
	for _, err := range []error{c.Routed(t.Context(), Routed{}), func() error {
		_, err := c.RoutedBatch(t.Context(), nil)
		return err
	}(), c.TakeBack(t.Context(), "", "x")} {
		var refused *Error
		if !errors.As(err, &refused) || refused.Status != 404 || refused.Field != "instance_id" || refused.Known[0] != "e1" {
			t.Errorf("%v", err)
		}
	}
	c.status, c.answer = http.StatusOK, `no JSON`
	if err := c.Routed(t.Context(), Routed{}); !errors.Is(err, errAnswer) {
		t.Errorf("an answer of others: %v", err)
	}
}

// TestTakeBackNames holds that any request id and tenant fits into a path.
func TestTakeBackNames(t *testing.T) {
	c := newAnswering(t, http.StatusNoContent, "")
	for _, f := range []struct{ tenant, id, path string }{
		{"", "a-1", "a-1"}, {"t", "a/b", "a%2Fb?tenant_id=t"}, {"t&x=é", "?#% ü", "%3F%23%25%20%C3%BC?tenant_id=t%26x%3D%C3%A9"},
	} {
		must.Succeed(t, c.TakeBack(t.Context(), f.tenant, f.id))
		if want := "DELETE /conductor/v1/routed/" + f.path; c.method+" "+c.path != want {
			t.Errorf("%s %s, want %s", c.method, c.path, want)
		}
	}
}

// TestExpectedRows reads rows with expected blocks.
func TestExpectedRows(t *testing.T) {
	c := newAnswering(t, http.StatusOK,
		`{"default":{"a":{"longest_matched":16,"expected":48,"approximate":true,"GPU":16,"rank_matches":{"1":{"gpu":16,"cpu":16,`+
			`"disk":16,"expected":32}}}}}`)
	rows, err := c.Query(t.Context(), Query{Expected: true, SeqHashes: []uint64{1}})
	must.Succeed(t, err)
	want := Row{Instance: "a", Longest: 16, Expected: 48, Approximate: true, Media: map[string]int{"GPU": 16},
		Ranks: []Rank{{Rank: 1, GPU: 16, CPU: 16, Disk: 16, Expected: 32}}}
	var asked struct{ Expected bool }
	must.Succeed(t, json.Unmarshal([]byte(c.asked), &asked))
	if !reflect.DeepEqual(rows[0], want) || !asked.Expected || c.path != "/conductor/v1/query_by_hash" {
		t.Errorf("%s %s: %+v", c.path, c.asked, rows[0])
	}
	if _, err := c.QueryBatch(t.Context(), []Query{{Expected: true}}); err == nil {
		t.Error("a row is an answer of a batch")
	}
	var batch struct{ Queries []struct{ Expected bool } }
	must.Succeed(t, json.Unmarshal([]byte(c.asked), &batch))
	if !batch.Queries[0].Expected {
		t.Errorf("a batch asks %s", c.asked)
	}
}

// TestStatusOfReasons holds that faults of the server are not taken for those of the input, in reports and
// in batches.
func TestStatusOfReasons(t *testing.T) {
	c := newAnswering(t, http.StatusOK, "")
	f := func(reason string, want int) {
		t.Helper()
		c.answer = `{"errors":[{"prompt":0,"error":"no","reason":"` + reason + `"}],"answers":[{"error":"no","reason":"` + reason + `"}]}`
		reports, err := c.RoutedBatch(t.Context(), make([]Routed, 1))
		must.Succeed(t, err)
		answers, err := c.QueryBatch(t.Context(), make([]Query, 1))
		must.Succeed(t, err)
		for _, err := range []error{reports.Errors[0], answers[0].Err} {
			var refused *Error
			if !errors.As(err, &refused) || refused.Status != want || refused.Temporary() != (want == 429 || want == 503) {
				t.Errorf("%s: %v, want status %d", reason, err, want)
			}
		}
	}
	f("missing", 400)
	f("", 400)
	f("forbidden", 403)
	f("not_found", 404)
	f("too_many_requests", 429)
	f("internal", 500)
	for _, reason := range []string{"busy", "memory", "replicas", "shutting_down", "unserved"} {
		f(reason, 503)
	}
}

// TestPackedReports reads rows, warnings and errors in msgpack.
func TestPackedReports(t *testing.T) {
	pack := func(v any) string {
		text, err := msgpack.Marshal(v)
		must.Succeed(t, err)
		return string(text)
	}
	rank := map[string]any{"gpu": 16, "cpu": 16, "disk": 16, "expected": 32}
	c := newAnswering(t, http.StatusOK,
		pack(map[string]any{"instances": map[string]any{"a": map[string]any{"longest_matched": 16, "expected": 48, "approximate": true,
			"rank_matches": map[string]any{"1": rank}}}}), WithMsgpack())
	rows, err := c.Query(t.Context(), Query{Expected: true})
	must.Succeed(t, err)
	if want := (Row{Instance: "a", Longest: 16, Expected: 48, Approximate: true,
		Ranks: []Rank{{Rank: 1, GPU: 16, CPU: 16, Disk: 16, Expected: 32}}}); !reflect.DeepEqual(rows[0], want) ||
		c.path != "/conductor/v1/query?expected=1" {
		t.Errorf("%s: %+v", c.path, rows[0])
	}
	var asked map[string]any
	must.Succeed(t, msgpack.Unmarshal([]byte(c.asked), &asked))
	if _, has := asked["expected"]; has {
		t.Errorf("the body has %v", asked)
	}
	c.answer = pack(map[string]any{"kept": 1, "warnings": []string{"w"},
		"errors": []any{map[string]any{"prompt": 1, "error": "no", "reason": "not_found", "field": "model", "known": []string{"m"}}}})
	answer, err := c.RoutedBatch(t.Context(), []Routed{{Query: Query{Tokens: []uint32{1, 2}}}, {}})
	must.Succeed(t, err)
	var refused *Error
	if !errors.As(answer.Errors[1], &refused) || refused.Status != 404 || refused.Message != "no" || refused.Field != "model" ||
		refused.Known[0] != "m" || answer.Warnings[0] != "w" {
		t.Errorf("%+v", answer)
	}
	var batch struct {
		Prompts []struct {
			Tokens []byte `msgpack:"token_ids"`
		} `msgpack:"prompts"`
	}
	must.Succeed(t, msgpack.Unmarshal([]byte(c.asked), &batch))
	if got := batch.Prompts[0].Tokens; string(got) != "\x01\x00\x00\x00\x02\x00\x00\x00" {
		t.Errorf("the tokens are %v", got)
	}
}
