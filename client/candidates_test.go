package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// TestCandidates reads an answer, and what the client has asked.
func TestCandidates(t *testing.T) {
	a := newAnswering(t, 200, `{"id":"00000000000000ff","tenant_id":"default","model":"m","lora_name":"sql","block_size":16,"later":1,
		"candidates":{"b":{"address":"","state":"partial","longest_matched":0,"expected":0,"approximate":true,"rank_matches":{}},
		"a":{"address":"http://a:8000","state":"synced","longest_matched":16,"expected":32,"upper_bound":true,"later":{},
		"rank_matches":{"1":{"gpu":16,"cpu":16,"disk":16,"expected":16},"0":{"gpu":0,"cpu":0,"disk":0,"expected":32}}}}}`)
	got, err := a.Candidates(t.Context(), Query{Model: "sql", Tokens: []uint32{1}, Top: 2, Detail: true, Expected: true})
	must.Succeed(t, err)
	want := Candidates{ID: "00000000000000ff", Model: "m", Adapter: "sql", BlockSize: 16, Rows: []Candidate{
		{Address: "http://a:8000", State: "synced", Row: Row{Instance: "a", Longest: 16, Expected: 32, UpperBound: true,
			Ranks: []Rank{{Expected: 32}, {1, 16, 16, 16, 16}}}},
		{State: "partial", Row: Row{Instance: "b", Approximate: true}},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	var asked map[string]any
	must.Succeed(t, json.Unmarshal([]byte(a.asked), &asked))
	if a.path != "/conductor/v1/candidates" || !reflect.DeepEqual(asked, map[string]any{"model": "sql", "token_ids_b64": "AQAAAA==",
		"top": 2.0}) {
		t.Errorf("%s %s", a.path, a.asked)
	}

	a.status, a.answer = 204, ""
	must.Succeed(t, a.Routed(t.Context(), Routed{AnswerID: got.ID, Target: "a", Rank: 1, RequestID: "r"}))
	asked = nil
	must.Succeed(t, json.Unmarshal([]byte(a.asked), &asked))
	if !reflect.DeepEqual(asked, map[string]any{"answer_id": got.ID, "instance_id": "a", "dp_rank": 1.0, "request_id": "r"}) {
		t.Errorf("%s", a.asked)
	}
	a.status, a.answer = 404, `{"error":"no","reason":"unknown_model","field":"model","known":["m"]}`
	_, err = a.Candidates(t.Context(), Query{Model: "x"})
	if e, is := err.(*Error); !is || e.Reason != "unknown_model" || !reflect.DeepEqual(e.Known, []string{"m"}) {
		t.Errorf("%#v", err)
	}
}

// TestWatchInstances watches a server whose connections break, that refuses for a while, and then for ever.
func TestWatchInstances(t *testing.T) {
	const a = `{"tenant_id":"t","model":"m","block_size":4,"instance_id":"a","ranks":[0]}`
	const b = `{"tenant_id":"t","model":"m","block_size":4,"instance_id":"b","state":"synced","ranks":[0]}`
	steps := []string{
		": hello\n\nevent: instances\ndata: {\"instances\":[" + b + "," + a + "]}\n\nevent: later\ndata: nothing\n\n" +
			"event: changes\n" +
			`data: {"changed":[],"gone":[{"tenant_id":"t","model":"m","block_size":4,"instance_id":"a"}]}` + "\n\n",
		"503",
		"event: instances\ndata: null\n\n",
		"event: instances\ndata: {\"instances\":[" + a + "]}\n\nevent: changes\ndata: {\n\n",
		"403",
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		step := steps[0]
		steps = steps[1:]
		var status int
		if _, err := fmt.Sscan(step, &status); err == nil {
			w.WriteHeader(status)
			return
		}
		io.WriteString(w, step)
	}))
	defer s.Close()
	c, err := New(s.URL)
	must.Succeed(t, err)
	c.pause = time.Millisecond
	var seen, failed []string
	err = c.WatchInstances(t.Context(), func(all []Instance) {
		text := ""
		for _, i := range all {
			text += i.Instance + i.State + " "
		}
		seen = append(seen, text)
	}, func(err error) { failed = append(failed, err.Error()) })
	if e, is := err.(*Error); !is || e.Status != 403 {
		t.Errorf("the watch ends with %v", err)
	}
	if want := []string{"a bsynced ", "bsynced ", "a "}; !reflect.DeepEqual(seen, want) || len(failed) != 4 {
		t.Errorf("%q, failed %q", seen, failed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.WatchInstances(ctx, nil, nil); err != context.Canceled {
		t.Errorf("a watch that is cancelled ends with %v", err)
	}
}
