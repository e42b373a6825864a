package discovery

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream"
	"example.com/conductor/internal/must"
)

// vllmTells is an answer of /kv_event_sources with ranks from 0 on.
func vllmTells(ports ...int) string {
	var ranks []string
	for rank, port := range ports {
		ranks = append(ranks, fmt.Sprintf(`"%d":{"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":null,"topic":""}`, rank, port))
	}
	return "{" + strings.Join(ranks, ",") + "}"
}

// sourcesAt are the sources that want expects of an engine that is followed at ports.
func sourcesAt(ports ...int) (all []string) {
	for rank, port := range ports {
		all = append(all, fmt.Sprintf("e|default|%d tcp://127.0.0.1:%d vLLM llama 16 ", rank, port))
	}
	return all
}

// awaitLive waits until all sources have a connection.
func (f *fleet) awaitLive() {
	f.t.Helper()
	until(f.t, func() bool {
		for _, r := range f.c.Registrations() {
			if state, _, _ := f.c.Sources().Health(r.Key()); state == stream.Connecting {
				return false
			}
		}
		return true
	})
}

// An engine is asked again within a minute while all its sources are well. Ranks that it has by then are followed, and those
// that it has no more go. One that was unregistered stays away.
func TestRanksComeAndGo(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	for _, ports := range [][]int{{7000, 7001}, {7000, 7001, 7002, 7003}, {7000}, {7000, 7001, 7002}, {7000, 7001}} {
		f.answer("127.0.0.1", "/kv_event_sources", vllmTells(ports...))
		if len(f.m.List()) == 0 {
			f.add("127.0.0.1", nil)
		}
		f.pass(50 * time.Second)
		f.want(sourcesAt(ports...)...)
		f.pass(interval)
		if s := l0(f); s.Sources != len(ports) || s.Error != "" {
			t.Errorf("%d ranks: %+v", len(ports), s)
		}
		f.awaitLive()
	}
	gone, err := f.c.Unregister(registration.Key{Instance: "e", Rank: 1})
	must.Succeed(t, err)
	f.m.Withdrawn(gone)
	f.pass(time.Minute)
	f.want(sourcesAt(7000)...)
}

func TestSGLangRanksComeAndGo(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	for _, ranks := range []int{1, 3, 2} {
		f.answer("127.0.0.1", "/server_info", fmt.Sprintf(`{"served_model_name":"q","kv_events":{"endpoint_host":"*",`+
			`"endpoint_port_base":5557,"block_size":64,"dp_size":%d}}`, ranks))
		if len(f.m.List()) == 0 {
			f.add("127.0.0.1", func(t *Target) { t.BlockSize = 0 })
		}
		f.pass(time.Minute)
		var want []string
		for rank := range ranks {
			want = append(want, fmt.Sprintf("e|default|%d tcp://127.0.0.1:%d SGLang q 64 ", rank, 5557+rank))
		}
		f.want(want...)
		f.awaitLive()
	}
}

// An engine that answers badly while its sources are well keeps them. What is wrong shows once it lasts.
func TestBadRefreshCostsNoSource(t *testing.T) {
	for _, bad := range []string{"", "no JSON", "<html>", "{}", "[]", "null", `{"error":{"message":"busy"}}`, `{"sources":null}`,
		"http://127.0.0.1:1/", `{"-1":{"endpoint":"tcp://*:7000"}}`, `{"0":{"publisher":"null"},"1":{"endpoint":""}}`,
		`[{"endpoint":"tcp://*:7000"},{"data_parallel_rank":1,"endpoint":"tcp://*:1"},{"data_parallel_rank":1,"endpoint":"tcp://*:2"}]`,
	} {
		t.Run(bad, func(t *testing.T) {
			f := newFleet(t, nil, "127.0.0.1")
			f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
			f.answer("127.0.0.1", "/kv_event_sources", vllmTells(7000, 7001))
			f.add("127.0.0.1", nil)
			f.awaitLive()
			if bad == "" { // 404, as from a proxy whose engine starts
				delete(f.answers, "127.0.0.1/kv_event_sources")
			} else {
				f.answer("127.0.0.1", "/kv_event_sources", bad)
			}
			for i, pause := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, maxSilence, maxSilence} {
				before := f.asked["127.0.0.1"]
				f.pass(pause)
				f.pass(interval)
				if f.asked["127.0.0.1"] == before {
					t.Errorf("it was not asked a time %d", i+2)
				}
				f.want(sourcesAt(7000, 7001)...)
				if s := l0(f); (s.Error != "") != (i+1 >= manySilences) {
					t.Errorf("after %d bad answers the error is %q", i+1, s.Error)
				}
			}
			f.answer("127.0.0.1", "/kv_event_sources", vllmTells(7000, 7001, 7002))
			f.pass(maxSilence)
			f.pass(interval)
			f.want(sourcesAt(7000, 7001, 7002)...)
			if s := l0(f); s.Error != "" {
				t.Errorf("after a good answer the error is %q", s.Error)
			}
		})
	}
}

// A rank that an engine names badly costs no other one.
func TestFaultyRankCostsItself(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", `{"0":{"endpoint":"tcp://*:7000"},"1":{"publisher":"null"}}`)
	f.add("127.0.0.1", nil)
	f.want(sourcesAt(7000)...)
	if s := l0(f); !strings.Contains(s.Error, `rank 1 is "null"`) {
		t.Errorf("the error is %q", s.Error)
	}
	// The same rank twice, alike, is one.
	f.answer("127.0.0.1", "/kv_event_sources", `[{"endpoint":"tcp://*:7000"},{"endpoint":"tcp://*:7001"},`+
		`{"data_parallel_rank":1,"endpoint":"tcp://*:7001"}]`)
	f.pass(time.Minute)
	f.want(sourcesAt(7000, 7001)...)
}

// An engine that names one rank in no way that can be read may mean any by it, so that none leaves.
func TestUnreadableRankCostsNoSource(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", vllmTells(7000, 7001))
	f.add("127.0.0.1", nil)
	f.awaitLive()
	f.answer("127.0.0.1", "/kv_event_sources", `{"0":{"endpoint":"tcp://*:7000"},"one":{"endpoint":"tcp://*:7001"},`+
		`"2":{"endpoint":"tcp://*:7002"}}`)
	f.pass(time.Minute)
	f.want(sourcesAt(7000, 7001, 7002)...)
	f.answer("127.0.0.1", "/kv_event_sources", vllmTells(7000))
	f.pass(time.Minute)
	f.pass(maxSilence)
	f.want(sourcesAt(7000)...)
}

// What an engine says of its model may change while it runs. A model that it still serves stays the one of its sources.
func TestNamesChangeWhileEngineRuns(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/kv_event_sources", vllmTells(7000))
	model := func(models, want string) {
		t.Helper()
		f.answer("127.0.0.1", "/v1/models", models)
		if len(f.m.List()) == 0 {
			f.add("127.0.0.1", nil)
		}
		f.pass(time.Minute)
		f.awaitLive()
		if r := f.c.Registrations(); len(r) != 1 || fmt.Sprint(r[0].Model, r[0].Aliases) != want {
			t.Errorf("%s: %+v, want %s", models, r, want)
		}
	}
	model(`{"data":[{"id":"a","root":"/m"}]}`, "a[]")
	model(`{"data":[{"id":"a","root":"/m"},{"id":"b","root":"/m"},{"id":"sql","root":"/sql","parent":"a"}]}`, "a[b]")
	model(`{"data":[{"id":"c","root":"/n"},{"id":"b","root":"/m"},{"id":"a","root":"/m"}]}`, "a[b]")
	model(`{"data":[{"id":"c","root":"/n"}]}`, "c[]")
}

// An endpoint for replays that moves while the engine runs is asked from then on.
func TestReplayEndpointMoves(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	for _, port := range []int{7100, 7200} {
		f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(`[{"endpoint":"tcp://*:7000","replay_endpoint":"tcp://*:%d"}]`, port))
		if len(f.m.List()) == 0 {
			f.add("127.0.0.1", nil)
		}
		f.pass(time.Minute)
		f.want(fmt.Sprintf("e|default|0 tcp://127.0.0.1:7000 vLLM llama 16 tcp://127.0.0.1:%d", port))
		f.awaitLive()
	}
}

// A block size that events told is learned again when the engine has been started again.
func TestBlockSizeChangesWithRestart(t *testing.T) {
	var size atomic.Int64
	f := newFleet(t, func(o *Options) {
		o.Learn = func(context.Context, *Target, Rank, bool) (int, error) { return int(size.Load()), nil }
	}, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", vllmTells(7000))
	size.Store(32)
	f.add("127.0.0.1", func(t *Target) { t.BlockSize = 0 })
	f.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 32 ")
	f.awaitLive()
	size.Store(64)
	f.pass(time.Minute) // nothing says that it was started again
	f.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 32 ")
	f.restart()
	f.pass(interval)
	f.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 64 ")
}

// The questions of a fleet are spread, and an engine that does not answer is asked less and less often.
func TestPauseOfRefresh(t *testing.T) {
	now := time.Unix(1e9, 0)
	var pauses []time.Duration
	for range 100 {
		var e engine
		e.planRefresh(now)
		pauses = append(pauses, e.refresh.Sub(now))
	}
	slices.Sort(pauses)
	if pauses[0] < minRefresh || pauses[99] >= maxRefresh || len(slices.Compact(pauses)) < 50 {
		t.Errorf("pauses are %v", pauses)
	}
	for silences, least := range []time.Duration{minRefresh, 2 * minRefresh, 4 * minRefresh, 8 * minRefresh, maxSilence, maxSilence} {
		e := engine{silences: silences}
		if e.planRefresh(now); e.refresh.Sub(now) < least || e.refresh.Sub(now) > maxSilence {
			t.Errorf("after %d silences: %v", silences, e.refresh.Sub(now))
		}
	}
	e := engine{silences: 1 << 40}
	if e.planRefresh(now); e.refresh.Sub(now) != maxSilence {
		t.Errorf("after many silences: %v", e.refresh.Sub(now))
	}
}

// However many engines are refreshed, one that waits for its first answer is not behind them.
func TestRefreshHoldsUpNoOther(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", vllmTells(7000))
	f.add("127.0.0.1", nil)
	f.awaitLive()
	for range workers {
		f.m.refreshers <- struct{}{}
	}
	f.answer("127.0.0.1", "/kv_event_sources", vllmTells(7000, 7001))
	f.now = f.now.Add(time.Minute)
	f.m.lookAtTargets()
	target := f.m.targets[registration.Key{Instance: "e", Tenant: "default", Rank: AllRanks}]
	until(t, target.refreshing.Load)
	must.Succeed(t, f.m.Add(Target{URL: "http://127.0.0.1:" + f.port,
		Registration: registration.Registration{Instance: "other", BlockSize: 16}}, false))
	until(t, func() bool {
		_, _, ok := f.c.Sources().Health(registration.Key{Instance: "other", Tenant: "default", Rank: 1})
		return ok
	})
	if _, _, ok := f.c.Sources().Health(registration.Key{Instance: "e", Tenant: "default", Rank: 1}); ok {
		t.Error("the engine was refreshed without a place")
	}
	for range workers {
		<-f.m.refreshers
	}
	f.m.tasks.Wait()
	if _, _, ok := f.c.Sources().Health(registration.Key{Instance: "e", Tenant: "default", Rank: 1}); !ok {
		t.Error("the engine was not refreshed")
	}
}

// An engine of a fleet that is silent costs the others one turn at most.
func TestSilentEngineOfFleet(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1", "127.0.0.2")
	for _, a := range []string{"127.0.0.1", "127.0.0.2"} {
		f.answer(a, "/v1/models", `{"data":[{"id":"llama"}]}`)
		f.answer(a, "/kv_event_sources", vllmTells(7000))
	}
	f.names = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}
	f.add("engines", nil)
	f.awaitLive()
	f.answer("127.0.0.1", "/kv_event_sources", "no JSON")
	f.answer("127.0.0.2", "/kv_event_sources", vllmTells(7000, 7001))
	f.pass(50 * time.Second)
	f.pass(interval)
	f.want("e@127.0.0.1|default|0 tcp://127.0.0.1:7000 vLLM llama 16 ", "e@127.0.0.2|default|0 tcp://127.0.0.2:7000 vLLM llama 16 ",
		"e@127.0.0.2|default|1 tcp://127.0.0.2:7001 vLLM llama 16 ")
}
