package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
	"example.com/conductor/events/reach"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/events/wire"
	"example.com/conductor/internal/must"
)

// fleet is HTTP servers of engines at addresses of loopback, one port for all, a Conductor, and
// a clock.
type fleet struct {
	t       *testing.T
	c       *conductor.Conductor
	m       *Manager
	net     streamtest.Network
	port    string
	mu      sync.Mutex
	answers map[string]string // by address and path
	asked   map[string]int
	tokens  map[string]bool
	names   []netip.Addr
	now     time.Time
}

func newFleet(t *testing.T, change func(*Options), addresses ...string) *fleet {
	f := &fleet{t: t, answers: make(map[string]string), asked: make(map[string]int), tokens: make(map[string]bool), now: time.Unix(1e9, 0)}
	f.net.Prepare = func(_ string, p *streamtest.Publisher) { p.ID = events.PublisherID{1} }
	var o Options
	f.c = conductor.New(conductor.Options{Stream: stream.Config{Transport: &f.net}, Reaches: func(endpoint string) error {
		if o.Reaches == nil {
			return nil
		}
		return o.Reaches(endpoint)
	}})
	o = Options{
		Registry: f.c.Sources(), Now: func() time.Time { return f.now },
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			if len(f.names) == 0 {
				return nil, errors.New("no such name")
			}
			return f.names, nil
		},
		Learn: func(ctx context.Context, _ *Target, r Rank, _ bool) (int, error) {
			return LearnBlockSize(ctx, &f.net, r, func(p []byte) (events.Batch, error) { return wire.Decode(p, wire.DefaultLimits) })
		},
	}
	if change != nil {
		change(&o)
	}
	f.m = New(o)
	f.port = "0"
	for _, address := range addresses {
		ln, err := net.Listen("tcp", address+":"+f.port)
		must.Succeed(t, err)
		_, f.port, _ = net.SplitHostPort(ln.Addr().String())
		s := &httptest.Server{Listener: ln,
			Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(w, r, address) })}}
		s.Start()
		t.Cleanup(s.Close)
	}
	t.Cleanup(func() {
		f.m.stop()
		f.m.tasks.Wait()
		f.c.Close()
	})
	return f
}

func (f *fleet) serve(w http.ResponseWriter, r *http.Request, address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[address]++
	f.tokens[r.Header.Get("Authorization")] = true
	answer, ok := f.answers[address+r.URL.Path]
	switch {
	case !ok:
		http.NotFound(w, r)
	case strings.HasPrefix(answer, "http"):
		http.Redirect(w, r, answer, http.StatusFound)
	default:
		fmt.Fprint(w, answer)
	}
}

func (f *fleet) answer(address, path, body string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[address+path] = body
}

func (f *fleet) add(host string, change func(*Target)) {
	f.t.Helper()
	target := Target{URL: "http://" + host + ":" + f.port, Registration: registration.Registration{Instance: "e", BlockSize: 16}}
	if change != nil {
		change(&target)
	}
	must.Succeed(f.t, f.m.Add(target, false))
	f.m.tasks.Wait()
}

// pass lets time go by, and looks at the targets.
func (f *fleet) pass(d time.Duration) {
	f.now = f.now.Add(d)
	f.m.lookAtTargets()
	f.m.tasks.Wait()
}

func (f *fleet) want(sources ...string) {
	f.t.Helper()
	var got []string
	for _, s := range f.c.Services() {
		got = append(got, fmt.Sprintf("%s %s %s %s %d %s", s.Key(), s.Endpoint, s.Type, s.Model, s.BlockSize, s.ReplayEndpoint))
	}
	if g, w := strings.Join(got, "\n"), strings.Join(sources, "\n"); g != w {
		f.t.Errorf("got\n%s\nwant\n%s\nstate %+v", g, w, f.m.List())
	}
}

const twoRanks = `{"0":{"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":null,"topic":""},"1":{"publisher":"zmq",` +
	`"endpoint":"tcp://*:%d","replay_endpoint":null,"topic":""}}`

func TestDiscoverVLLM(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.add("127.0.0.1", nil)
	// An older vLLM knows no /kv_event_sources: the port is a convention.
	f.want("e|default|0 tcp://127.0.0.1:5557 vLLM llama 16 ")
	var refuses atomic.Bool
	f.net.PublisherAt("tcp://127.0.0.1:7001").OnSubscribe = func(context.Context) error {
		if refuses.Load() {
			return errors.New("refused")
		}
		return nil
	}
	f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, 7000, 7001))
	must.Succeed(t, f.m.Add(Target{URL: "http://127.0.0.1:" + f.port + "/",
		Registration: registration.Registration{Instance: "e", BlockSize: 16}}, true))
	f.m.tasks.Wait()
	f.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 16 ", "e|default|1 tcp://127.0.0.1:7001 vLLM llama 16 ")
	// A source that stays dead, as its port is another one since a restart.
	f.pass(time.Minute)
	asked := f.asked["127.0.0.1"]
	f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, 7000, 7009))
	refuses.Store(true)
	f.net.PublisherAt("tcp://127.0.0.1:7001").CutConnections()
	until(t, func() bool {
		f.pass(time.Second)
		return f.asked["127.0.0.1"] > asked
	})
	f.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 16 ", "e|default|1 tcp://127.0.0.1:7009 vLLM llama 16 ")
	// A source that was unregistered stays away, and so do all once the target is removed.
	_, err := f.c.Unregister(registration.Key{Instance: "e", Rank: 1})
	must.Succeed(t, err)
	f.pass(time.Minute)
	f.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 16 ")
	if !f.m.Remove(registration.Key{Instance: "e", Rank: AllRanks}) || f.m.Remove(registration.Key{Instance: "e", Rank: AllRanks}) {
		t.Error("the target is removed once")
	}
	f.m.tasks.Wait()
	f.want()
}

// A target that is removed, and added again at once, waits until the old one has dropped its sources.
func TestAddAfterRemove(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.add("127.0.0.1", nil)
	name := registration.Key{Instance: "e", Tenant: scope.DefaultTenant, Rank: AllRanks}
	old := f.m.targets[name]
	old.mu.Lock() // it is worked on
	f.m.Remove(name)
	must.Succeed(t, f.m.Add(old.Target, false))
	if next := f.m.targets[name]; next.after != old.done {
		t.Error("the new target does not wait for the old one")
	}
	old.mu.Unlock()
	f.pass(interval)
	f.want("e|default|0 tcp://127.0.0.1:5557 vLLM llama 16 ")
	if len(f.m.ending) != 0 {
		t.Errorf("%d targets are still ending", len(f.m.ending))
	}
	f.m.Close()
	if err := f.m.Add(Target{URL: "http://127.0.0.1:1", Registration: registration.Registration{Instance: "late"}}, false); !errors.Is(err,
		ingest.ErrClosed) {
		t.Errorf("a closed manager takes targets: %v", err)
	}
}

// A client may remove a target of the configuration, as it may its sources, and not replace it.
func TestClientsAndStaticTargets(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.add("127.0.0.1", nil)
	name := registration.Key{Instance: "e", Tenant: scope.DefaultTenant, Rank: AllRanks}
	f.m.targets[name].Static = true
	other := f.m.targets[name].Target
	other.URL, other.Static = "http://127.0.0.1:1", false
	var conflict *registration.ConflictError
	if err := f.m.Add(other, true); !errors.As(err, &conflict) {
		t.Errorf("a client's target takes the place: %v", err)
	}
	same := f.m.targets[name].Target
	same.Static = false
	must.Succeed(t, f.m.Add(same, false)) // the same target again
	f.want("e|default|0 tcp://127.0.0.1:5557 vLLM llama 16 ")
	if !f.m.Remove(name) {
		t.Error("the target is not removed")
	}
	f.m.tasks.Wait()
	f.want()
}

// The fault of an engine shows until the engine answers, also while it is not asked.
func TestFaultStays(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/kv_event_sources", "no JSON")
	f.add("127.0.0.1", nil)
	for range 3 {
		if l := f.m.List(); len(l) != 1 || !strings.HasPrefix(l[0].Error, "GET ") {
			t.Errorf("not asked again yet: %+v", l)
		}
		f.pass(time.Millisecond)
	}
	f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(twoRanks, 7000, 7001))
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.pass(maxPause)
	if l := f.m.List(); l[0].Error != "" || l[0].Sources != 2 {
		t.Errorf("after an answer: %+v", l)
	}
}

// Nothing waits for the events of an address that is gone, nor at an endpoint of before.
func TestLearningEnds(t *testing.T) {
	endpoints := make(chan string, 8)
	over := make(chan string, 8)
	f := newFleet(t, func(o *Options) {
		o.Learn = func(ctx context.Context, _ *Target, r Rank, _ bool) (int, error) {
			endpoints <- r.Endpoint
			<-ctx.Done()
			over <- r.Endpoint
			return 0, ctx.Err()
		}
	}, "127.0.0.1", "127.0.0.2")
	for _, a := range []string{"127.0.0.1", "127.0.0.2"} {
		f.answer(a, "/v1/models", `{"data":[{"id":"llama"}]}`)
	}
	one, two := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	f.names = []netip.Addr{one, two}
	must.Succeed(t, f.m.Add(Target{URL: "http://engines:" + f.port, Registration: registration.Registration{Instance: "e"}}, false))
	<-endpoints
	<-endpoints
	target := f.m.targets[registration.Key{Instance: "e", Tenant: scope.DefaultTenant, Rank: AllRanks}]
	look := func(d time.Duration) {
		target.mu.Lock() // nothing else works on it
		f.now = f.now.Add(d)
		target.mu.Unlock()
		f.m.updateTarget(target)
	}
	f.answer("127.0.0.1", "/kv_event_sources", `{"0":{"endpoint":"tcp://*:7000"}}`)
	look(time.Minute)
	if ended, next := <-over, <-endpoints; ended != "tcp://127.0.0.1:5557" || next != "tcp://127.0.0.1:7000" {
		t.Errorf("%s ended, %s is next", ended, next)
	}
	f.names = []netip.Addr{one}
	look(time.Second)
	look(graceTime)
	if ended := <-over; ended != "tcp://127.0.0.2:5557" {
		t.Errorf("%s ended", ended)
	}
}

func TestDiscoverSGLang(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/server_info",
		`{"served_model_name":"q","kv_events":{"publisher":"zmq","endpoint_host":"0.0.0.0","endpoint_port_base":5557,"block_size":64,`+
			`"dp_size":1}}`)
	f.add("127.0.0.1", func(t *Target) { t.BlockSize = 0 })
	f.want("e|default|0 tcp://127.0.0.1:5557 SGLang q 64 ")
	if s := f.c.Services()[0]; len(s.Findings) != 1 || !strings.Contains(s.Findings[0].Message, "block size 64") {
		t.Errorf("findings are %v", s.Findings)
	}
}

// Further names of the model are aliases, and names of its adapters adapters, unless the registration names them or another model. They
// stay while the engine does not tell them. The address is that of the registration, else where the engine was asked.
func TestDiscoverAliases(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.net.PublisherAt("tcp://127.0.0.1:7000").OnSubscribe = func(context.Context) error { return errors.New("refused") }
	f.answer("127.0.0.1", "/kv_event_sources", `{"0":{"endpoint":"tcp://*:7000"}}`)
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"a","root":"/m"},{"id":"b","root":"/m"},{"id":"sql","root":"/sql","parent":"a"}]}`)
	f.add("127.0.0.1", nil)
	f.add("127.0.0.1", func(t *Target) { t.Instance, t.Model = "second", "b" })
	f.add("127.0.0.1", func(t *Target) { t.Instance, t.Model, t.Address = "other", "canary", "http://front" })
	f.add("127.0.0.1", func(t *Target) { t.Instance, t.Aliases = "given", []string{"x"} })
	want := func(all string) {
		t.Helper()
		var got []string
		for _, r := range f.c.Registrations() {
			got = append(got, fmt.Sprint(r.Instance, " ", r.Model, r.Aliases)+fmt.Sprint(r.Adapters))
			want := "http://127.0.0.1:" + f.port
			if r.Instance == "other" {
				want = "http://front"
			}
			if r.Address != want {
				t.Errorf("%s has the address %q", r.Instance, r.Address)
			}
		}
		slices.Sort(got)
		if text := strings.Join(got, ", "); text != all {
			t.Errorf("got %s\nwant %s", text, all)
		}
	}
	want("e a[b][sql], given a[x][sql], other canary[][], second b[a][sql]")

	// The engine is asked again, as no source reaches its publisher.
	again := func(models string) {
		t.Helper()
		f.answer("127.0.0.1", "/v1/models", models)
		before := f.asked["127.0.0.1"]
		for range 5 {
			f.pass(deadAfter)
		}
		if f.asked["127.0.0.1"] < before+8 {
			t.Errorf("the engine was asked %d times", f.asked["127.0.0.1"]-before)
		}
	}
	again(`broken`)
	want("e a[b][sql], given a[x][sql], other canary[][], second b[a][sql]")
	again(`{"data":[{"id":"a","root":"/m"},{"id":"c","root":"/m"}]}`)
	want("e a[c][], given a[x][], other canary[][], second b[][]")
}

// Without a block size in the answers the first events tell it.
func TestBlockSizeFromEvents(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.answer("127.0.0.1", "/kv_event_sources", `{"0":{"endpoint":"tcp://*:7000"}}`)
	target := Target{URL: "http://127.0.0.1:" + f.port, Registration: registration.Registration{Instance: "e"}}
	p := f.net.PublisherAt("tcp://127.0.0.1:7000")
	must.Succeed(t, f.m.Add(target, false))
	until(t, func() bool { return p.CountAttempts() > 0 })
	f.want()
	until(t, func() bool {
		l := f.m.List()
		return len(l) == 1 && l[0].Learning && l[0].Error == errLearning.Error() &&
			WordFor(&l[0], conductor.Reader{Causes: true}) == "learning" && WordFor(&l[0], conductor.Reader{}) == "waiting"
	})
	stored := streamtest.EncodeBatch(1.5, 0, streamtest.Scope{Medium: "GPU"}.StoredEvent(0, []uint64{1}, make([]uint32, 32), 32))
	until(t, func() bool { return p.Publish(stored) > 0 })
	f.m.tasks.Wait()
	f.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 32 ")
	// The same for endpoints without a block size: the last target's publisher tells it.
	until(t, func() bool {
		p.Publish(stored)
		return len(f.c.Services()) > 0
	})
	auto := Target{Registration: registration.Registration{Instance: "f", Endpoint: "tcp://127.0.0.1:7000", Type: "vLLM", Model: "m",
		Rank: 3}}
	must.Succeed(t, f.m.Add(auto, false))
	until(t, func() bool {
		p.Publish(stored)
		_, _, ok := f.c.Sources().Health(registration.Key{Instance: "f", Tenant: "default", Rank: 3})
		return ok
	})
	f.want("e|default|0 tcp://127.0.0.1:7000 vLLM llama 32 ", "f|default|3 tcp://127.0.0.1:7000 vLLM m 32 ")
}

func TestNameOfFleet(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1", "127.0.0.2")
	for _, a := range []string{"127.0.0.1", "127.0.0.2"} {
		f.answer(a, "/v1/models", `{"data":[{"id":"llama"}]}`)
	}
	f.add("engines", nil)
	if l := f.m.List(); len(l) != 1 || !strings.Contains(l[0].Error, "no such name") {
		t.Errorf("before the name is known: %+v", l)
	}
	one, two := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	f.names = []netip.Addr{one, netip.MustParseAddr("::1")}
	f.pass(interval)
	f.want("e|default|0 tcp://127.0.0.1:5557 vLLM llama 16 ")
	f.names = []netip.Addr{two, one}
	f.pass(interval)
	both := []string{"e@127.0.0.1|default|0 tcp://127.0.0.1:5557 vLLM llama 16 ",
		"e@127.0.0.2|default|0 tcp://127.0.0.2:5557 vLLM llama 16 "}
	f.want(both...)
	for _, r := range f.c.Registrations() {
		if want := "http://" + strings.TrimPrefix(r.Instance, "e@") + ":" + f.port; r.Address != want {
			t.Errorf("%s has the address %q, want %s", r.Instance, r.Address, want)
		}
	}
	f.names = []netip.Addr{two}
	f.pass(interval)
	f.want(both...) // not at once
	f.names = nil
	f.pass(time.Hour)
	f.want(both...) // a resolver that fails says nothing
	f.names = []netip.Addr{two}
	f.pass(graceTime)
	f.want(both[1])
}

func TestClientsReachAllowedEnginesOnly(t *testing.T) {
	rules, err := reach.Parse([]string{"tcp://127.0.0.2"}, false)
	must.Succeed(t, err)
	token := filepath.Join(t.TempDir(), "token")
	must.Succeed(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	f := newFleet(t, func(o *Options) { o.Rules, o.TokenFile = func() *reach.Rules { return rules }, token }, "127.0.0.1", "127.0.0.2")
	f.answer("127.0.0.2", "/kv_event_sources", "http://127.0.0.1:"+f.port+"/kv_event_sources")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	f.add("127.0.0.1", func(t *Target) { t.Instance = "refused" })
	f.add("127.0.0.2", func(t *Target) { t.Instance = "redirects" })
	if l := f.m.List(); !strings.Contains(l[1].Error, "register.allow") || !strings.Contains(l[0].Error, "302") {
		t.Errorf("%+v", l)
	}
	if f.asked["127.0.0.1"] != 0 || f.asked["127.0.0.2"] == 0 || f.tokens["Bearer secret"] {
		t.Errorf("asked %v, tokens %v", f.asked, f.tokens)
	}
	f.add("127.0.0.1", func(t *Target) { t.Instance, t.Static = "static", true })
	f.want("static|default|0 tcp://127.0.0.1:5557 vLLM llama 16 ")
	if !f.tokens["Bearer secret"] {
		t.Error("an engine of the configuration gets no token")
	}
}

// TestEnginesNameAllowedEndpoints lets an engine of the configuration name sockets and other machines. Only its own
// machine, under any of its addresses, needs no permission, because the configuration has named that.
func TestEnginesNameAllowedEndpoints(t *testing.T) {
	learned := make(chan string, 10)
	f := newFleet(t, func(o *Options) {
		o.Reaches = func(endpoint string) error {
			if endpoint == "tcp://10.0.0.9:5557" || endpoint == "" {
				return nil
			}
			return errors.New("is not allowed")
		}
		o.Learn = func(_ context.Context, _ *Target, r Rank, exempt bool) (int, error) {
			learned <- fmt.Sprint(r.Endpoint, " ", exempt)
			return 0, errors.New("nothing comes")
		}
	}, "127.0.0.1")
	f.answer("127.0.0.1", "/v1/models", `{"data":[{"id":"llama"}]}`)
	tell := func(endpoint, replay string, blockSize int) (told, fault string) {
		t.Helper()
		f.answer("127.0.0.1", "/kv_event_sources", fmt.Sprintf(`[{"endpoint":%q,"replay_endpoint":%q}]`, endpoint, replay))
		f.add("127.0.0.1", func(target *Target) { target.Static, target.BlockSize = true, blockSize })
		for _, s := range f.c.Services() {
			told += s.Endpoint + " " + s.ReplayEndpoint
		}
		fault = f.m.List()[0].Error
		f.m.Remove(registration.Key{Instance: "e", Rank: AllRanks})
		f.m.tasks.Wait()
		return told, fault
	}
	for _, e := range [][3]string{
		{"tcp://*:7000", "", "tcp://127.0.0.1:7000 "},
		{"tcp://127.0.0.1:7000", "tcp://localhost:7001", "tcp://127.0.0.1:7000 tcp://localhost:7001"},
		{"tcp://[::ffff:127.0.0.1]:7000", "", "tcp://[::ffff:127.0.0.1]:7000 "},
		{"tcp://127.0.0.2:7000", "", "tcp://127.0.0.2:7000 "}, {"tcp://[::1]:7000", "", "tcp://[::1]:7000 "},
		{"tcp://10.0.0.9:5557", "", "tcp://10.0.0.9:5557 "},
		{"ipc:///run/docker.sock", "", ""}, {"bind:tcp://*:7000", "", ""}, {"bind:tcp://127.0.0.1:7000", "", ""},
		{"tcp://169.254.169.254:80", "", ""}, {"tcp://metadata:80", "", ""},
		{"tcp://*:7000", "ipc:///run/docker.sock", ""}, {"tcp://*:7000", "tcp://169.254.169.254:80", ""},
	} {
		if told, fault := tell(e[0], e[1], 16); told != e[2] || (fault == "") != (e[2] != "") {
			t.Errorf("%s and %s: followed at %q, %q", e[0], e[1], told, fault)
		}
		tell(e[0], e[1], 0)
		got := ""
		if len(learned) > 0 {
			got = <-learned
		}
		if endpoint, _, _ := strings.Cut(e[2], " "); (got == "") != (e[2] == "") || !strings.HasPrefix(got, endpoint) ||
			strings.HasSuffix(got, "true") != (e[2] != "" && !strings.Contains(e[2], "10.0.0.9")) {
			t.Errorf("%s and %s: the block size is learned at %q", e[0], e[1], got)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1")
	f.answer("127.0.0.1", "/kv_event_sources", strings.Repeat("x", maxBody+1))
	f.add("127.0.0.1", nil)
	if l := f.m.List(); !strings.Contains(l[0].Error, "more than") {
		t.Errorf("%+v", l)
	}
}

func TestTargetsAreChecked(t *testing.T) {
	f := newFleet(t, func(o *Options) {
		o.Bounds = func() (int, int) { return 1, 0 }
		o.TooMany = func(bool) error { return ingest.ErrTooManySources }
	})
	bad := func(field string, change func(*Target)) {
		t.Helper()
		target := Target{URL: "http://h", Registration: registration.Registration{Instance: "e"}}
		change(&target)
		err := f.m.Add(target, false)
		var fault *invalid.FieldError
		if !errors.As(err, &fault) || fault.Field != field {
			t.Errorf("got %v, want an error of %s", err, field)
		}
	}
	bad("discover", func(t *Target) { t.URL = "tcp://h" })
	bad("endpoint", func(t *Target) { t.Endpoint = "tcp://h:1" })
	bad("instance_id", func(t *Target) { t.Instance = "" })
	bad("type", func(t *Target) { t.Type = "x" })
	bad("block_size", func(t *Target) { t.BlockSize = -1 })
	bad("discover", func(t *Target) { t.Type = "Mooncake" })
	bad("discover", func(t *Target) { t.Events, t.CapacityBlocks = "None", 8 })
	bad("events", func(t *Target) { t.Events, t.CapacityBlocks = "some", 8 })
	bad("capacity_blocks", func(t *Target) { t.CapacityBlocks = 8 })
	bad("block_size", func(t *Target) { t.URL, t.Type, t.Model, t.Events, t.CapacityBlocks = "", "Standard", "m", "none", 8 })
	must.Succeed(t, f.m.Add(Target{URL: "http://h", Registration: registration.Registration{Instance: "e"}}, false))
	must.Succeed(t, f.m.Add(Target{URL: "http://h", Registration: registration.Registration{Instance: "e"}}, false))
	var conflict *registration.ConflictError
	if err := f.m.Add(Target{URL: "http://g", Registration: registration.Registration{Instance: "e"}}, false); !errors.As(err, &conflict) {
		t.Errorf("another URL: %v", err)
	}
	if err := f.m.Add(Target{URL: "http://h", Registration: registration.Registration{Instance: "e", Model: "m"}}, false); !errors.As(err,
		&conflict) || conflict.Field != "modelname" || conflict.Want != "m" {
		t.Errorf("another model: %v", err)
	}
	if err := f.m.Add(Target{URL: "http://h", Registration: registration.Registration{Instance: "e", Role: "decode"}}, false); !errors.As(
		err, &conflict) || conflict.Field != "role" || conflict.Want != "decode" {
		t.Errorf("another role: %v", err)
	}
	if err := f.m.Add(Target{URL: "http://g", Registration: registration.Registration{Instance: "f"}}, false); !errors.Is(err,
		ingest.ErrTooManySources) {
		t.Errorf("one too many: %v", err)
	}
}

// until waits for what other goroutines do.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("timed out")
		}
	}
}
