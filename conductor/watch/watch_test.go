package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// watched is a Conductor with publishers in memory, and a Hub.
type watched struct {
	t   testing.TB
	net *streamtest.Network
	c   *conductor.Conductor
	h   *Hub
}

func newWatched(t testing.TB, cfg Config) *watched {
	w := &watched{t: t, net: new(streamtest.Network)}
	w.c = conductor.New(conductor.Options{HashSeed: 1337, Log: zerolog.Nop(), Stream: stream.Config{Transport: w.net, Queue: 1024}})
	cfg.Conductor, cfg.Version = w.c, "test"
	w.h = New(cfg)
	return w
}

func (w *watched) close() {
	w.h.Close()
	w.c.Close()
}

func endpointOf(instance, tenant string) string { return "tcp://" + instance + "." + tenant + ":1" }

// engine registers an engine of a tenant.
func (w *watched) engine(instance, tenant string) registration.Key {
	r := registration.Registration{Endpoint: endpointOf(instance, tenant), Type: registration.TypeVLLM, Model: "m", Tenant: tenant,
		Instance: instance, BlockSize: 2, Salt: "pepper-" + tenant}
	must.Succeed(w.t, w.c.Register(r, ingest.RegisterOptions{}))
	return r.Key()
}

// store publishes a batch that stores one block.
func (w *watched) store(k registration.Key, medium string, block int) {
	w.net.PublisherAt(endpointOf(k.Instance, k.Tenant)).Publish(streamtest.EncodeBatch(0.5, 0, map[string]any{
		"type": "BlockStored", "block_hashes": []int{1000 + block}, "parent_block_hash": nil, "token_ids": []int{block, block},
		"block_size": 2, "lora_id": nil, "medium": medium,
	}))
}

// query asks for one block.
func (w *watched) query(k registration.Key, tokens ...uint32) {
	w.c.Answer(&match.Query{Tenant: k.Tenant, Model: "m", Salt: "pepper-" + k.Tenant, BlockSize: 2, Tokens: tokens},
		func(*match.Answer) {})
}

func (w *watched) join(tenants scope.Tenants, feed bool) *Viewer {
	w.t.Helper()
	v, err := w.h.Join(tenants, feed)
	must.Succeed(w.t, err)
	return v
}

// seen is an event of a stream.
type seen struct {
	event string
	text  string
	doc   struct {
		Version *string
		Totals  struct {
			Sources, Ranks, Instances, Blocks, Memberships int
			Duplication                                    float64
			Findings                                       findingsRow
			Bytes                                          *int64
			Events                                         float64 `json:"events_per_s"`
			Queries                                        float64 `json:"queries_per_s"`
			Asked                                          uint64  `json:"asked_tokens"`
			Cached                                         uint64  `json:"cached_tokens"`
		}
		Sources []struct {
			Source   string
			Severity string
			Events   float64 `json:"events_per_s"`
			Blocks   int
			Tiers    map[string]int
			Age      int `json:"age_ms"`
		}
		Gone    []string
		Point   []float64
		History *struct{ Points [][]float64 }
		ID      string
		Best    string
		Matched int `json:"matched_tokens"`
		Tokens  int
		Kept    bool
		Source  string
		Stored  int
		Skipped int
	}
}

// take reads what a viewer has.
func (w *watched) take(v *Viewer) (all []seen) {
	w.t.Helper()
	for frames := v.Take(); len(frames) > 0; frames = v.Take() {
		for _, f := range frames {
			head, data, ok := strings.Cut(strings.TrimSuffix(string(f), "\n\n"), "\ndata: ")
			s := seen{event: strings.TrimPrefix(head, "event: "), text: data}
			if err := json.Unmarshal([]byte(data), &s.doc); err != nil || !ok {
				w.t.Fatalf("%v: %s", err, f)
			}
			all = append(all, s)
		}
	}
	return all
}

func of(all []seen, event string) []seen {
	return slices.DeleteFunc(slices.Clone(all), func(s seen) bool { return s.event != event })
}

// second lets a second pass.
func second() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// TestChangesAlone holds that a stream begins with everything, and that later only changed rows come.
func TestChangesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, Config{Viewers: 2})
		defer w.close()
		a, b := w.engine("a", "x"), w.engine("b", "x")
		synctest.Wait()
		w.store(a, "GPU", 1)
		w.store(b, "CPU", 1)
		time.Sleep(2 * time.Second)
		v := w.join(nil, false)
		synctest.Wait()
		got := w.take(v)
		if len(got) != 1 || got[0].doc.Version == nil || len(got[0].doc.Sources) != 2 || got[0].doc.History != nil {
			t.Fatalf("the beginning: %+v", got)
		}
		if x := got[0].doc.Totals; x.Sources != 2 || x.Instances != 2 || x.Blocks != 1 || x.Memberships != 2 || x.Duplication != 2 ||
			x.Bytes == nil {
			t.Errorf("totals: %+v", x)
		}
		if tiers := got[0].doc.Sources[1].Tiers; tiers["host"] != 1 || tiers["device"] != 0 {
			t.Errorf("tiers: %v", tiers)
		}
		w.take(v)
		second()
		w.take(v) // rates fall to 0
		for i := range 4 {
			w.store(b, "GPU", 10+i)
		}
		w.query(b, 1, 1, 7, 7)
		second()
		got = w.take(v)
		if len(got) != 2 || got[0].event != "query" || got[1].doc.Version != nil || len(got[1].doc.Sources) != 1 {
			t.Fatalf("a change: %+v", got)
		}
		if s := got[1].doc.Sources[0]; s.Source != "b|x|0" || s.Events != 4 || s.Blocks != 5 {
			t.Errorf("the changed row: %+v", s)
		}
		if x := got[1].doc.Totals; x.Events != 4 || x.Queries != 1 || x.Asked != 4 || x.Cached != 2 {
			t.Errorf("totals: %+v", x)
		}
		second() // the rate falls to 0
		w.take(v)
		second()
		if got = w.take(v); len(got) != 1 || len(got[0].doc.Sources)+len(got[0].doc.Gone) != 0 {
			t.Errorf("nothing has changed: %s", got[0].text)
		}
		_, err := w.c.Unregister(a)
		must.Succeed(t, err)
		second()
		if got = w.take(v); len(got) != 1 || len(got[0].doc.Sources) != 0 || !slices.Equal(got[0].doc.Gone, []string{"a|x|0"}) {
			t.Errorf("a source has gone: %+v", got)
		}
	})
}

// TestSeverities counts findings by how much they matter, and gives each source the worst of its own: of an engine with
// blocks of another size, one with another seed, and one that discovery waits for.
func TestSeverities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		targets := []Target{{Instance: "deaf", Tenant: "x", State: "waiting"}, {Instance: "told", Tenant: "x", State: "found"}}
		w := newWatched(t, Config{Viewers: 2, Targets: func() []Target { return targets }})
		defer w.close()
		var all []registration.Key
		for _, name := range []string{"well", "sized", "seeded"} { // no salt, whose hashes are not compared
			r := registration.Registration{Endpoint: endpointOf(name, "x"), Type: registration.TypeVLLM, Model: "m", Tenant: "x",
				Instance: name, BlockSize: 2}
			must.Succeed(t, w.c.Register(r, ingest.RegisterOptions{}))
			all = append(all, r.Key())
		}
		well, sized, seeded, other := all[0], all[1], all[2], w.engine("other", "y")
		synctest.Wait()
		w.store(well, "GPU", 1)
		w.store(other, "GPU", 1)
		synctest.Wait()
		publish := func(k registration.Key, hash, size int) {
			w.net.PublisherAt(endpointOf(k.Instance, k.Tenant)).Publish(streamtest.EncodeBatch(0.5, 0, map[string]any{
				"type": "BlockStored", "block_hashes": []int{hash}, "parent_block_hash": nil, "token_ids": []int{1, 1, 1}[:size],
				"block_size": size, "lora_id": nil, "medium": "GPU",
			}))
		}
		for i := range 4 {
			publish(sized, i, 3)
		}
		publish(seeded, 7, 2)
		time.Sleep(2 * time.Second)
		v := w.join(scope.Tenants{"x"}, false)
		synctest.Wait()
		doc := of(w.take(v), "stats")[0].doc
		of := func(code string) doctor.Severity { return doctor.SeverityOf(code) }
		want := findingsRow{}
		for _, code := range []string{doctor.FindingBlockSize, doctor.FindingUnusable, doctor.FindingSeed, "discovery"} {
			want.add(of(code), 1)
		}
		if got := doc.Totals.Findings; got != want || got.Errors < 2 || got.Infos != 1 {
			t.Errorf("findings: %+v, want %+v", got, want)
		}
		if doc.Totals.Ranks != 3 {
			t.Errorf("%d ranks", doc.Totals.Ranks)
		}
		for _, s := range doc.Sources {
			want := map[string]doctor.Severity{"well|x|0": of("synced"), "sized|x|0": doctor.Error, "seeded|x|0": of("synced")}[s.Source]
			if doctor.Severity(s.Severity) != want {
				t.Errorf("%s is of severity %s, want %s", s.Source, s.Severity, want)
			}
		}
	})
}

// TestTenantsSeeTheirOwn floods one tenant while viewers of two tenants look.
func TestTenantsSeeTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, Config{Viewers: 4, KeepQueries: true})
		defer w.close()
		a, b := w.engine("engine-a", "ann"), w.engine("engine-b", "bob")
		second()
		ofA, ofB, all := w.join(scope.Tenants{"ann"}, true), w.join(scope.Tenants{"bob"}, true), w.join(nil, false)
		second()
		for i := range batchesPerSecond + 7 {
			w.store(b, "GPU", i)
			w.query(b, 1, 1)
		}
		w.store(a, "GPU", 1)
		synctest.Wait()
		w.query(a, 1, 1)
		second()
		gotA, gotB := w.take(ofA), w.take(ofB)
		for _, s := range gotA {
			for _, foreign := range []string{"bob", "engine-b", "pepper", "skipped", "bytes", "snapshots", "replicas"} {
				if strings.Contains(s.text, foreign) {
					t.Errorf("the viewer of ann sees %s: %s", foreign, s.text)
				}
			}
			if x := s.doc.Totals; s.event == "stats" && (x.Sources != 1 || x.Blocks > 1 || x.Asked > 2 || x.Events > 1 || x.Queries > 1) {
				t.Errorf("sums for ann: %+v", x)
			}
		}
		if feed := of(gotA, "feed"); len(feed) != 1 || feed[0].doc.Source != "engine-a|ann|0" || feed[0].doc.Stored != 1 {
			t.Errorf("the feed of ann: %+v", feed)
		}
		feed := of(gotB, "feed")
		if len(feed) != batchesPerSecond+1 || feed[len(feed)-1].doc.Skipped != 7 {
			t.Errorf("the feed of bob has %d events, the last %+v", len(feed), feed[len(feed)-1])
		}
		if queries := of(gotB, "query"); len(queries) != queriesPerSecond {
			t.Errorf("bob sees %d queries", len(queries))
		}
		got := w.take(all)
		if len(of(got, "feed")) != 0 || len(of(got, "query")) != queriesPerSecond {
			t.Errorf("a viewer without feed sees %d batches and %d queries", len(of(got, "feed")), len(of(got, "query")))
		}

		shown := of(gotA, "query")[0].doc
		if q, kept := w.h.Recent(scope.Tenants{"ann"}, shown.ID); !kept || q.Salt != "pepper-ann" ||
			!slices.Equal(q.Tokens, []uint32{1, 1}) || shown.Best != "engine-a" || shown.Matched != 2 {
			t.Errorf("a query of ann: %+v, %+v", q, shown)
		}
		for _, tenants := range []scope.Tenants{{"bob"}, {"carl"}, {}, {"ann", "bob"}} {
			if _, kept := w.h.Recent(tenants, shown.ID); kept || strings.Contains(string(w.h.Queries(tenants)), shown.ID) {
				t.Errorf("%v sees a query of ann", tenants)
			}
		}
		for want, tenants := range map[string]scope.Tenants{`"tenants":[]`: {}, `"tenants":["carl"]`: {"carl"}} {
			if text := string(w.h.Document(tenants, 0, "")); strings.Contains(text, "bob") || strings.Contains(text, "ann") ||
				!strings.Contains(text, `"sources":0`) || !strings.Contains(text, want) {
				t.Errorf("%v sees %s", tenants, text)
			}
		}
		if text := string(w.h.Document(scope.Tenants{"bob", "ann"}, 0, "")); !strings.Contains(text, `"sources":2`) ||
			strings.Contains(text, "pepper") {
			t.Errorf("both see %s", text)
		}
		text := string(w.h.Document(nil, 1, ""))
		if strings.Count(text, `"last_error"`) != 1 || !strings.Contains(text, "engine-b|bob|0") || strings.Contains(text, `"tenants":`) {
			t.Errorf("the busiest source: %s", text)
		}
	})
}

// TestSlowViewer holds that a viewer that does not read loses its queue and gets everything again,
// and that no other viewer notices.
func TestSlowViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, Config{Viewers: 2})
		defer w.close()
		w.engine("a", "x")
		slow, quick := w.join(nil, true), w.join(nil, true)
		second()
		w.take(quick)
		if got := slow.Take(); len(got) == 0 { // and it never asks again: it is still sending
			t.Fatal("no beginning")
		}
		for range maxQueued + 10 {
			second()
			if len(w.take(quick)) != 1 {
				t.Fatal("the quick viewer waits")
			}
		}
		slow.mu.Lock()
		if len(slow.frames) != 0 || !slow.lacks {
			t.Errorf("the slow viewer has %d frames", len(slow.frames))
		}
		slow.mu.Unlock()
		w.take(slow)
		second()
		if got := w.take(slow); len(got) != 1 || got[0].doc.Version == nil {
			t.Errorf("the slow viewer gets %+v", got)
		}
		if n := w.h.resets.Load(); n != 1 {
			t.Errorf("%d resets", n)
		}
		w.take(quick)
		large := make([]byte, maxQueuedBytes)
		if !quick.pushFrame(large) || quick.pushFrame(large) || len(quick.frames) != 0 {
			t.Error("bytes have no bound")
		}
	})
}

// TestHistory holds that the history is bounded, and that it has tenants apart.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		refused := func() uint64 { return uint64(time.Since(began) / step * 3) } // three in each
		w := newWatched(t, Config{Viewers: 1, Refused: refused})
		defer w.close()
		a, b := w.engine("a", "ann"), w.engine("b", "bob")
		synctest.Wait()
		points := func(tenants scope.Tenants) [][]float64 {
			var s seen
			must.Succeed(t, json.Unmarshal(w.h.Document(tenants, 0, ""), &s.doc))
			return s.doc.History.Points
		}
		for i := range 300 {
			w.store(a, "GPU", i)
			w.store(b, "CPU", i)
			w.store(b, "GPU", i)
			w.query(b, 1, 1)
			time.Sleep(step)
			synctest.Wait()
		}
		for _, want := range []struct {
			tenants      scope.Tenants
			device, host float64
			events       float64
			queries      float64
		}{{nil, 600, 300, 0.2, 0.1}, {scope.Tenants{"ann"}, 300, 0, 0.1, 0}, {scope.Tenants{"bob"}, 300, 300, 0.1, 0.1},
			{scope.Tenants{"bob", "ann"}, 600, 300, 0.2, 0.1}} {
			all := points(want.tenants)
			last := all[len(all)-1]
			if len(all) != maxPoints || last[0]-all[0][0] != float64(maxPoints-1)*step.Seconds() {
				t.Errorf("%v: %d points from %v to %v", want.tenants, len(all), all[0], last)
			}
			if last[1] != want.device || last[2] != want.host || last[3] != 0 || last[4] != want.events || last[5] != want.queries {
				t.Errorf("%v: the last point is %v, want %+v", want.tenants, last, want)
			}
			refused, tokens := 0.0, 0.0
			if want.tenants.All() {
				refused = 0.2 // the times of queries go with it
			}
			if want.queries > 0 {
				tokens = 2
			}
			if last[6] != tokens || last[7] != tokens || last[8] != refused || (last[9] > 0) != (refused > 0) || last[10] < last[9] {
				t.Errorf("%v: the last point is %v, want %v tokens and %v refused", want.tenants, last, tokens, refused)
			}
		}
		tenants := func() int {
			synctest.Wait()
			w.h.mu.Lock()
			defer w.h.mu.Unlock()
			return len(w.h.history.byTenant)
		}
		_, err := w.c.Unregister(b)
		must.Succeed(t, err)
		time.Sleep(span / 2)
		if n := len(points(scope.Tenants{"bob"})); n < 100 || n > maxPoints/2+1 {
			t.Errorf("half an hour after its last source a tenant has %d points", n)
		}
		time.Sleep(span/2 + 2*step)
		if n := len(points(scope.Tenants{"bob"})); n != 0 || tenants() != 1 {
			t.Errorf("an hour later it has %d, and %d tenants have a history", n, tenants())
		}
		for i := range maxSeries + 10 {
			w.engine("e", fmt.Sprint("t", i))
		}
		time.Sleep(2 * step)
		if n := tenants(); n != maxSeries {
			t.Errorf("%d tenants have a history", n)
		}
		v := w.join(nil, false)
		time.Sleep(step)
		synctest.Wait()
		if got := w.take(v); !slices.ContainsFunc(got, func(s seen) bool { return len(s.doc.Point) == 11 }) {
			t.Error("no point in the stream")
		}
	})
}

// TestProcess holds that the use of CPUs is since the collection before, and that only viewers of every tenant see the process.
func TestProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := newWatched(t, Config{Viewers: 4, Process: func() Process {
			return Process{CPUs: 4, CPUTime: 3 * time.Since(began) / 2, Memory: 7, Auth: Auth{File: "secret-place"}}
		}})
		defer w.close()
		w.engine("a", "ann")
		whole, ann := w.join(nil, false), w.join(scope.Tenants{"ann"}, false)
		for range 3 {
			second()
		}
		for _, s := range w.take(ann) {
			if strings.Contains(s.text, "process") || strings.Contains(s.text, "secret-place") {
				t.Errorf("a tenant sees the process: %s", s.text)
			}
		}
		all := w.take(whole)
		var doc struct{ Process *Process }
		must.Succeed(t, json.Unmarshal([]byte(all[len(all)-1].text), &doc))
		if p := doc.Process; p == nil || p.CPU != 1.5 || p.CPUs != 4 || p.Memory != 7 || p.Viewers != 2 || p.Auth.File != "secret-place" {
			t.Errorf("the process: %+v", p)
		}
	})
}

// TestHistoryOfModels holds that a model has a history of its own, that tenants see their part of it, and that the models
// are bounded.
func TestHistoryOfModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, Config{})
		defer w.close()
		register := func(instance, tenant, model string) registration.Key {
			r := registration.Registration{Endpoint: endpointOf(instance, tenant), Type: registration.TypeVLLM, Model: model,
				Tenant: tenant, Instance: instance, BlockSize: 2}
			must.Succeed(t, w.c.Register(r, ingest.RegisterOptions{}))
			return r.Key()
		}
		small, large, other := register("a", "ann", "small"), register("b", "ann", "large"), register("c", "bob", "small")
		synctest.Wait()
		for i := range 3 {
			w.store(small, "GPU", i)
			w.store(large, "CPU", i)
			w.store(other, "GPU", i)
			asked := match.Query{Tenant: "ann", Model: "small", BlockSize: 2, Tokens: []uint32{1, 1, 7, 7}}
			w.c.Answer(&asked, func(*match.Answer) {})
			time.Sleep(step)
			synctest.Wait()
		}
		last := func(tenants scope.Tenants, model string) []float64 {
			var s seen
			must.Succeed(t, json.Unmarshal(w.h.Document(tenants, 0, model), &s.doc))
			if len(s.doc.History.Points) == 0 {
				return nil
			}
			return s.doc.History.Points[len(s.doc.History.Points)-1][1:8]
		}
		for _, f := range []struct {
			tenants scope.Tenants
			model   string
			want    []float64 // of a point, from the blocks on devices to the tokens that were found
		}{
			{nil, "small", []float64{6, 0, 0, 0.2, 0.1, 4, 2}}, {nil, "large", []float64{0, 3, 0, 0.1, 0, 0, 0}},
			{scope.Tenants{"ann"}, "small", []float64{3, 0, 0, 0.1, 0.1, 4, 2}}, {scope.Tenants{"bob"}, "large", nil},
			{nil, "unknown", nil}, {nil, "", []float64{6, 3, 0, 0.2, 0.1, 4, 2}},
		} {
			if got := last(f.tenants, f.model); !slices.Equal(got, f.want) {
				t.Errorf("%v, %q: %v, want %v", f.tenants, f.model, got, f.want)
			}
		}
		for i := range maxSeries + 10 {
			register("e", "ann", fmt.Sprint("m", i))
			_, err := w.c.Unregister(registration.Key{Instance: "e", Tenant: "ann"})
			must.Succeed(t, err)
			w.h.Document(nil, 1, "")
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if n := len(w.h.history.byModel); n > maxSeries {
			t.Errorf("%d models have a history", n)
		}
		time.Sleep(span + 2*step)
		synctest.Wait()
		if n := len(w.h.history.byModel); n != 2+1 {
			t.Errorf("%d models have a history an hour after the others are gone", n)
		}
	})
}

// TestRecentQueries holds the bounds of the queries that are kept.
func TestRecentQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, Config{Viewers: 2, KeepQueries: true})
		defer w.close()
		k := w.engine("a", "x")
		synctest.Wait()
		w.query(k, 1, 1)
		v := w.join(nil, false)
		second()
		if got := w.take(v); len(of(got, "query")) != 0 {
			t.Error("a query before the viewer is shown")
		}
		ask := func(seconds, tokens int) {
			for range seconds {
				for range queriesPerSecond {
					w.query(k, make([]uint32, tokens)...)
				}
				second()
			}
		}
		listed := func() int { return strings.Count(string(w.h.Queries(nil)), `"id"`) }
		ask(10, 2)
		if n := listed(); n != maxRecent {
			t.Errorf("%d queries are kept", n)
		}
		w.take(v)
		ask(2, 40_000) // 160 KB each
		if n, bytes := listed(), w.h.audienceOf(nil).recent.bytes; n != 6 || bytes > maxRecentBytes {
			t.Errorf("%d queries of %d bytes are kept", n, bytes)
		}
		w.take(v)
		ask(1, maxRecentBytes)
		if got := of(w.take(v), "query"); len(got) != queriesPerSecond || got[0].doc.Kept || listed() != 6 {
			t.Errorf("a giant query is kept: %d, %d listed", len(got), listed())
		}
		w.c.Answer(&match.Query{Tenant: "x", Model: "m", BlockSize: 2, ByHash: true, Hashes: []uint64{1, 2, 3}},
			func(*match.Answer) {})
		if got := of(w.take(v), "query"); len(got) != 1 || got[0].doc.Kept || got[0].doc.Tokens != 6 {
			t.Errorf("a query by hashes: %+v", got)
		}
		other := w.join(scope.Tenants{"x"}, false)
		ask(1, 40_000)
		n, m := w.h.audienceOf(nil).recent.bytes, w.h.audienceOf(scope.Tenants{"x"}).recent.bytes
		if n+m > maxRecentBytes || n == 0 || m == 0 {
			t.Errorf("two audiences keep %d and %d bytes", n, m)
		}
		w.h.Leave(other)
		time.Sleep(maxRecentAge)
		synctest.Wait()
		if a := w.h.audienceOf(nil); len(a.recent.shown) != 0 || a.recent.bytes != 0 {
			t.Errorf("%d queries stay", len(a.recent.shown))
		}
		w.take(v)
		w.query(k, 1, 1)
		id := of(w.take(v), "query")[0].doc.ID
		if _, kept := w.h.Recent(nil, id); !kept {
			t.Error("a query is not kept")
		}
		w.h.Leave(v)
		if _, kept := w.h.Recent(nil, id); kept || w.h.audiences.Load() != nil {
			t.Error("a query outlives the viewers")
		}
		v = w.join(nil, false)
		w.h.cfg.KeepQueries = false
		second()
		w.query(k, 1, 1)
		if got := of(w.take(v), "query"); len(got) != 1 || got[0].doc.Kept || got[0].doc.ID == id || listed() != 0 {
			t.Errorf("with ui.recent_queries: false: %+v", got)
		}
	})
}

// TestViewers holds the bound, that a frame is encoded once, and that all ends with the Hub.
func TestViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, Config{Viewers: 2})
		defer w.close()
		w.engine("a", "x")
		one, two := w.join(scope.Tenants{"x", "y"}, false), w.join(scope.Tenants{"y", "x", "x"}, false)
		if _, err := w.h.Join(nil, false); err != ErrBusy || w.h.refused.Load() != 1 {
			t.Errorf("one too many: %v", err)
		}
		for range 2 {
			second()
			a, b := one.Take(), two.Take()
			if len(a) == 0 || len(a) != len(b) || &a[0][0] != &b[0][0] {
				t.Error("what viewers of the same tenants see is encoded for each")
			}
			one.Take()
			two.Take()
		}
		w.h.Leave(one)
		one = w.join(nil, false)
		w.h.Close()
		for _, v := range []*Viewer{one, two} {
			select {
			case <-v.Over():
			default:
				t.Error("a viewer outlives the Hub")
			}
			w.h.Leave(v)
		}
		if _, err := w.h.Join(nil, false); err != ingest.ErrClosed {
			t.Errorf("a viewer after the end: %v", err)
		}
		if text := string(w.h.Document(nil, 0, "")); !strings.Contains(text, `"sources":1`) {
			t.Errorf("after the end: %s", text)
		}
		off := New(Config{Conductor: w.c})
		defer off.Close()
		if _, err := off.Join(nil, false); err != ErrDisabled {
			t.Errorf("without viewers: %v", err)
		}
	})
}

// TestTenantsLeaveRoom holds that a tenant has half of the places while there are others, and all
// while there are none.
func TestTenantsLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, Config{Viewers: 5})
		defer w.close()
		w.engine("a", "x")
		refused := func(tenants scope.Tenants) {
			t.Helper()
			if _, err := w.h.Join(tenants, false); !errors.Is(err, ErrBusy) {
				t.Errorf("a viewer of %v too many: %v", tenants, err)
			}
		}
		x := scope.Tenants{"x"}
		var all []*Viewer
		for range 5 {
			all = append(all, w.join(x, false)) // alone
		}
		refused(x)
		for _, v := range all[2:] {
			w.h.Leave(v)
		}
		w.engine("b", "y")
		second()
		w.join(x, false)
		refused(x)
		refused(scope.Tenants{"x", "z"})
		w.join(scope.Tenants{"y"}, false)
		w.join(nil, false)
		refused(scope.Tenants{"y"})
		if n := w.h.refused.Load(); n != 4 {
			t.Errorf("%d viewers count as refused, want 4", n)
		}
	})
}

// TestPace holds that collecting waits as long as it takes, a hundred times.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, Config{Viewers: 1})
		defer w.close()
		v := w.join(nil, false)
		second()
		w.take(v)
		w.h.mu.Lock()
		w.h.took = 50 * time.Millisecond
		w.h.mu.Unlock()
		for i, want := range []int{0, 0, 0, 0, 1, 1} {
			if second(); len(w.take(v)) != want {
				t.Errorf("after %d s: want %d frames", i+1, want)
			}
		}
	})
}

// BenchmarkSecond is what a second costs with a viewer: 128 and 2,000 sources, where all have
// changed, or none.
func BenchmarkSecond(b *testing.B) {
	for _, sources := range []int{128, 2000} {
		now := time.Now()
		w := newWatched(b, Config{Viewers: 16, Now: func() time.Time { return now }})
		for i := range sources {
			k := w.engine(fmt.Sprint("instance-", i), "x")
			w.store(k, "GPU", i)
			w.store(k, "CPU", i)
		}
		for _, all := range []bool{true, false} {
			for _, viewers := range []int{1, 16} {
				var look []*Viewer
				for range viewers {
					look = append(look, w.join(nil, true))
				}
				name := fmt.Sprintf("sources=%d/changed=%t/viewers=%d", sources, all, viewers)
				b.Run(name, func(b *testing.B) {
					b.ReportAllocs()
					bytes := 0
					for b.Loop() {
						w.h.mu.Lock()
						for i := range w.h.now.rows {
							if all {
								w.h.now.rows[i].text = nil
							}
						}
						w.h.took = 0
						w.h.mu.Unlock()
						now = now.Add(time.Second)
						w.h.takeTurn()
						for _, v := range look {
							for frames := v.Take(); len(frames) > 0; frames = v.Take() {
								bytes += len(frames[0])
							}
						}
					}
					b.ReportMetric(float64(bytes)/float64(b.N*viewers), "B/viewer")
				})
				for _, v := range look {
					w.h.Leave(v)
				}
			}
		}
		w.close()
	}
}
