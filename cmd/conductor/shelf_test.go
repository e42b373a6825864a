package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
	"example.com/conductor/history"
	"example.com/conductor/history/peer"
	historystore "example.com/conductor/history/store"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/store"
)

// sharing are the settings of servers that share a store and write it often.
func sharing(shared *redistest.Server) string {
	return "store: {url: '" + shared.URL() + "'}\nsnapshot: {interval: 200ms}\n"
}

// sharingProcess starts a server of the Conductor dialect, whose port is open from the start. Its URL
// is that of Dynamo's dialect, as that of a server with a listener of it.
func sharingProcess(t *testing.T, config string) *process {
	t.Helper()
	p := serveProcess(t, config)
	eventually(t, "not ready", func() (string, bool) { status, body := get(p.url + "/ready"); return body, status == 200 })
	p.url += dynamoPrefix
	return p
}

const dynamoPrefix = "/dynamo/v1"

// base is where a server has the routes that are in no dialect.
func (p *process) base() string { return strings.TrimSuffix(p.url, dynamoPrefix) }

// metricFrom waits until a metric of a server is at least so large, and returns it.
func metricFrom(t *testing.T, p *process, name string, least float64) (value float64) {
	t.Helper()
	eventually(t, name+" stays small", func() (string, bool) {
		_, text := get(p.base() + "/metrics")
		_, rest, found := strings.Cut(text, "\n"+name+" ")
		line, _, _ := strings.Cut(rest, "\n")
		_, err := fmt.Sscan(line, &value)
		return line, found && err == nil && value >= least
	})
	return value
}

// origins requires that all sources of a server say the same of where their blocks come from.
func origins(t *testing.T, p *process, want string) {
	t.Helper()
	rows, body := servicesOf[struct{ HistoryFrom string }](t, p.base()+"/conductor/v1")
	for _, r := range rows {
		if r.HistoryFrom != want {
			t.Errorf("a source has its blocks from %s, want %s: %s", r.HistoryFrom, want, body)
			break
		}
	}
	if len(rows) == 0 {
		t.Error("no source")
	}
}

// connected waits until a server follows all ranks, before they publish.
func (f *liveFleet) connected(p *process) {
	f.t.Helper()
	eventually(f.t, "not connected", func() (string, bool) {
		_, body := get(p.url + "/workers")
		return body, strings.Count(body, `"state":"synced"`) == len(f.ranks)
	})
}

// shelvedRing is how many batches ranks replay in the tests of the shelf.
const shelvedRing = 1 << 8

// past lets the fleet work until no rank can replay its beginning.
func (f *liveFleet) past() {
	f.t.Helper()
	stop := f.work()
	defer stop()
	eventually(f.t, "the fleet does not work", func() (string, bool) {
		return "", !slices.ContainsFunc(f.ranks, func(r *liveRank) bool { return r.pub.LastSeq() < shelvedRing*3/2 })
	})
}

// someSteps lets the fleet work for fewer steps than any rank replays. The function returned waits
// for the last one.
func (f *liveFleet) someSteps() (rest func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		pace := time.NewTicker(time.Millisecond)
		defer pace.Stop()
		for range shelvedRing / 2 {
			<-pace.C
			f.step()
		}
	})
	return wg.Wait
}

// shelved waits until a server has put a snapshot on the shelf with all that was published.
func (f *liveFleet) shelved(p *process) {
	f.t.Helper()
	f.caughtUp(p)
	written := metricFrom(f.t, p, "conductor_shelf_written_total", 1)
	metricFrom(f.t, p, "conductor_shelf_written_total", written+2)
}

// TestFreshServerRecoversFromTheShelf kills a server while a fleet works whose ranks cannot replay
// what they announced at first. A server that knows no peer gets it from the store.
func TestFreshServerRecoversFromTheShelf(t *testing.T) {
	t.Parallel()
	f, shared := newLiveFleet(t, shelvedRing), redistest.Start(t)
	truth := serveProcess(t, f.config(""), "127.0.0.1:0=dynamo") // it follows from the beginning
	a := sharingProcess(t, sharing(shared)+f.config(""))
	f.connected(truth)
	f.connected(a)
	f.past()
	f.shelved(a)
	must.Succeed(t, a.cmd.Process.Kill())
	a.cmd.Wait()
	rest := f.someSteps()
	b := sharingProcess(t, sharing(shared)+f.config(""))
	origins(t, b, ingest.FromShelf)
	rest()
	f.someSteps()()
	f.alike("recovered from the shelf", truth, b)

	// The other replica that shares the store is a peer without being named.
	rest = f.someSteps()
	c := sharingProcess(t, sharing(shared)+f.config(""))
	recovered(t, c)
	origins(t, c, ingest.FromPeer)
	rest()
	f.someSteps()()
	f.alike("recovered from a replica of the store", truth, c)

	// The store loses all: the shelf is written again at once.
	shared.Kill()
	shared.Run()
	metricFrom(t, b, "conductor_store_lost_total", 1)
	metricFrom(t, b, "conductor_shelf_snapshots", 1)
	if got := metricFrom(t, b, "conductor_shelf_loaded_blocks_total", 1); got < 6*replicaDevice/2 {
		t.Errorf("%g blocks came from the shelf", got)
	}
}

// TestSlowStoreAtTheStart: a server whose store is not there starts all the same, and says so.
func TestSlowStoreAtTheStart(t *testing.T) {
	t.Parallel()
	e := newRuledEngine(t, "e", 0)
	p := serveProcess(t, "store: {url: 'redis://127.0.0.1:1'}\n"+e.settings())
	e.publish(ruledStored(0, 2))
	e.settled(p)
	metricFrom(t, p, "conductor_store_up", 0)
}

// settings are those of a server that follows the engine, which cannot replay.
func (e *ruledEngine) settings() string {
	return fmt.Sprintf("sources:\n- {endpoint: 'tcp://%s', type: vLLM, modelname: n, instance_id: '%s', block_size: %d}\n", e.pub.Addr(),
		e.name, recordedBlock)
}

// serveHere runs a server in this process, and returns its Conductor.
func serveHere(t *testing.T, text, dialect string) (*process, *conductor.Conductor) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	loaded, err := config.Load(config.Options{File: file, Env: []string{}})
	must.Succeed(t, err)
	loaded.Config.Listeners = []config.Listener{{Address: "127.0.0.1:0", Dialect: dialect}}
	loaded.Config.Shutdown.Drain = 0
	ctx, stop := context.WithCancel(context.Background())
	up, ended := make(chan struct{}), make(chan error, 1)
	p, c := new(process), (*conductor.Conductor)(nil)
	go func() {
		ended <- serve(ctx, loaded, nil, zerolog.Nop(), func(of *conductor.Conductor, web *server.Servers, _ *prometheus.Registry) {
			p.url, c = "http://"+web.Address(0), of
			close(up)
		})
	}()
	t.Cleanup(func() { stop(); must.Report(t, <-ended) })
	<-up
	eventually(t, "the server does not answer", func() (string, bool) {
		status, body := get(p.url + "/health")
		return body, status == 200
	})
	return p, c
}

// TestTakeoverWhileServing takes a deployment over from another server while a fleet works, and
// then registers its ranks: each goes on behind its mark, for the fleet cannot replay it all. The
// answers of another deployment stay as they are.
func TestTakeoverWhileServing(t *testing.T) {
	t.Parallel()
	f, shared := newLiveFleet(t, shelvedRing), redistest.Start(t)
	a := sharingProcess(t, sharing(shared)+f.config(""))
	f.connected(a)
	e := newRuledEngine(t, "99", 0)
	b, c := serveHere(t, e.settings(), config.Conductor)
	b.url += dynamoPrefix
	e.publish(ruledStored(0, 4))
	question := fmt.Sprintf(`{"model":"n","block_size":%d,"token_ids":%s}`, recordedBlock, asJSON(recordedTokens(4)))
	own := func() string { return post(t, b.base()+"/conductor/v1/query", question, 200) }
	eventually(t, "the own deployment is not there", func() (string, bool) {
		got := own()
		return got, strings.Contains(got, `"longest_matched":64`)
	})
	before := own()

	connected, err := store.Open(store.Config{URL: shared.URL(), Name: "default", Timeout: time.Minute})
	must.Succeed(t, err)
	defer connected.Close()
	members := membership.New(membership.Config{Store: connected, Log: zerolog.Nop()})
	members.Beat(t.Context())
	take := history.Takeover{Loader: &history.Loader{Conductor: c, TTL: time.Minute, Refill: true, Log: zerolog.Nop()}}
	kept := historystore.New(historystore.Config{
		Group: members, Conductor: c, Key: history.NoKey, MaxBytes: 1 << 30, TTL: time.Hour, Log: zerolog.Nop(),
	})
	takeOver := func(origin string, from ...string) {
		t.Helper()
		f.past()
		f.shelved(a)
		rest := f.someSteps()
		blocks, got, err := take.BringDeployment(t.Context(), scope.Deployment{Tenant: "default", Model: "m", BlockSize: replicaBlock},
			peer.Replicas{Client: peer.PlainClient(), URLs: from}, kept)
		if err != nil || got != origin || blocks < 6*replicaDevice/2 {
			t.Errorf("%d blocks from %q, want %s: %v", blocks, got, origin, err)
		}
		for _, r := range f.ranks {
			f.register(b.url, r)
		}
		rest()
		f.someSteps()()
		f.alike("taken over from "+origin, a, b)
		if got := own(); got != before {
			t.Errorf("the other deployment answers %s, and before %s", got, before)
		}
		for _, err := range c.Check() {
			t.Error(err)
		}
	}
	takeOver(ingest.FromPeer, "http://127.0.0.1:1", b.base(), a.base()) // one is dead, one does not have it
	for _, r := range f.ranks {
		post(f.t, b.url+"/unregister", fmt.Sprintf(`{"instance_id":%d,"dp_rank":%d,"model_name":"m"}`, r.worker, r.n), 200)
	}
	takeOver(ingest.FromShelf)
}
