package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	kv "example.com/conductor/client"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/engine"
	"example.com/conductor/lab/sim/publisher"
)

// programBefore is the program of an older build, which tests that go back and forth between two builds need.
func programBefore(t *testing.T) string {
	t.Helper()
	path := os.Getenv("WAY_BACK_PROGRAM")
	if path == "" {
		t.Skip("WAY_BACK_PROGRAM names no older program, as make way-back does")
	}
	return path
}

// serveWith is serveProcess with another program, "" for this one.
func serveWith(t *testing.T, program, settings string) *process {
	t.Helper()
	cmd := serveCommandLine(t, settings)
	if program != "" {
		cmd.Path = program
	}
	return startCommand(t, cmd)
}

// twoWayEngine is an engine that servers of both builds follow.
type twoWayEngine struct {
	recordedEngine
	told   kv.Registration // to the server that a client has registered it at last
	blocks int             // that it holds of the one prompt
}

// newTwoWayEngine starts an engine. fill sets the fields that its registration has next to the ones of all.
func newTwoWayEngine(t *testing.T, number int, fill func(*kv.Registration)) *twoWayEngine {
	t.Helper()
	pub, err := publisher.Listen(publisher.Options{Host: "127.0.0.1", BlockSize: recordedBlock, Wire: publisher.VLLMMap{}, Ring: 10_000})
	must.Succeed(t, err)
	t.Cleanup(func() { pub.Close() })
	e := &twoWayEngine{recordedEngine: recordedEngine{pub, t, uint64(1000 * (number + 1))}, told: kv.Registration{
		Endpoint: pub.Endpoint(), ReplayEndpoint: pub.ReplayEndpoint(), Type: "vLLM", Model: "m", Tenant: "default",
		Instance: fmt.Sprintf("engine-%d", number), BlockSize: recordedBlock}}
	fill(&e.told)
	return e
}

// work stores two blocks. It stores the second of them once more, and then removes it once. What is left shows how the server
// counts copies.
func (e *twoWayEngine) work() {
	e.t.Helper()
	end := e.blocks + 2
	e.publish(engine.Stored, e.blocks, end)
	e.publish(engine.Stored, end-1, end)
	e.publish(engine.Removed, end-1, end)
	if e.blocks = end; e.told.Copies == "set" || e.told.Reports == "full" {
		e.blocks--
	}
}

// twoWayFleet is the engines that are registered, and a client of each server.
type twoWayFleet struct {
	t       *testing.T
	engines map[string]*twoWayEngine // by name
	clients map[*process]*kv.Client
}

func newTwoWayFleet(t *testing.T) *twoWayFleet {
	return &twoWayFleet{t, make(map[string]*twoWayEngine), make(map[*process]*kv.Client)}
}

func (f *twoWayFleet) client(p *process) *kv.Client {
	f.t.Helper()
	if f.clients[p] == nil {
		c, err := kv.New(p.url)
		must.Succeed(f.t, err)
		f.clients[p] = c
	}
	return f.clients[p]
}

// register registers an engine at a server, or registers it again.
func (f *twoWayFleet) register(p *process, e *twoWayEngine) {
	f.t.Helper()
	must.Succeed(f.t, f.client(p).Register(f.t.Context(), e.told))
	f.engines[e.told.Instance] = e
}

func (f *twoWayFleet) unregister(p *process, e *twoWayEngine) {
	f.t.Helper()
	must.Succeed(f.t, f.client(p).Unregister(f.t.Context(), e.told.Instance, "", 0))
	delete(f.engines, e.told.Instance)
}

// behind returns in words how what a server says of its sources differs from the truth, "" if it does not: which there are,
// all that was told of each, and that all batches are applied. It returns the engines whose batches are not all applied.
func (f *twoWayFleet) behind(p *process) (said string, late []*twoWayEngine) {
	rows, err := f.client(p).Services(f.t.Context())
	must.Succeed(f.t, err)
	there := make(map[string]bool)
	for _, s := range rows {
		e := f.engines[s.InstanceID]
		if there[s.InstanceID] = true; e == nil {
			said += s.InstanceID + " is followed; "
			continue
		}
		if got := registrationOf(&s); !reflect.DeepEqual(got, e.told) {
			said += fmt.Sprintf("it has %+v, want %+v; ", got, e.told)
		} else if s.State != "synced" || s.LastSeq == nil || int64(*s.LastSeq) != e.LastSeq() {
			said += fmt.Sprintf("%s is %s %s, not at batch %d; ", s.InstanceID, s.State, s.Reason, e.LastSeq())
			late = append(late, e)
		}
	}
	for name := range f.engines {
		if !there[name] {
			said += name + " is missing; "
		}
	}
	return said, late
}

// registrationOf returns what a row of /services says of a registration, as far as those here have it.
func registrationOf(s *kv.Service) kv.Registration {
	return kv.Registration{Endpoint: s.Endpoint, ReplayEndpoint: s.ReplayEndpoint, Type: s.Type, Model: s.ModelName, Tenant: s.TenantID,
		Instance: s.InstanceID, BlockSize: s.BlockSize, Rank: s.DPRank, Aliases: s.Aliases, Copies: s.Copies, Reports: s.Reports,
		Owned: s.Owned, Clear: s.Clear}
}

// settle waits until servers have heard of everything. Then their answers must be right. A subscription may take
// effect behind the last batch, so that nothing tells the server of it: now and then there is one more.
func (f *twoWayFleet) settle(when string, servers ...*process) {
	f.t.Helper()
	for i, p := range servers {
		tries := 0
		eventually(f.t, fmt.Sprintf("%s: server %d", when, i), func() (string, bool) {
			said, late := f.behind(p)
			if tries++; tries%50 == 0 {
				for _, e := range late {
					_, err := e.Publish(nil)
					must.Report(f.t, err)
				}
			}
			return said, said == ""
		})
	}
	for i, p := range servers {
		f.answers(fmt.Sprintf("%s: server %d", when, i), p)
	}
}

// answers compares what a server answers about the one prompt with what the engines hold, by all names of the model.
func (f *twoWayFleet) answers(when string, p *process) {
	f.t.Helper()
	names, want := map[string]bool{"m": true}, make(map[string]int)
	for _, e := range f.engines {
		want[e.told.Instance] = e.blocks * recordedBlock
		for _, name := range e.told.Aliases {
			names[name] = true
		}
	}
	for name := range names {
		rows, err := f.client(p).Query(f.t.Context(), kv.Query{Model: name, BlockSize: recordedBlock, Tokens: recordedTokens(200)})
		must.Succeed(f.t, err)
		got := make(map[string]int)
		for i := range rows {
			got[rows[i].Instance] = rows[i].Longest
		}
		if !maps.Equal(got, want) {
			f.t.Errorf("%s: %s is answered by %v, want %v", when, name, got, want)
		}
	}
}

const unusable = "a snapshot cannot be used"

// TestWayBackAndForth lets two builds take over from each other with one snapshot.dir, and registrations that both know: each
// has what the other left. That includes the blocks, which the engines do not replay.
func TestWayBackAndForth(t *testing.T) {
	t.Parallel()
	before := programBefore(t)
	f := newTwoWayFleet(t)
	settings := fmt.Sprintf("snapshot: {dir: %q, interval: 0s}\nshutdown: {drain: 0s}\n", filepath.Join(t.TempDir(), "snapshots"))
	all := []*twoWayEngine{newTwoWayEngine(t, 0, func(*kv.Registration) {})}
	for i, program := range []string{before, "", before, "", "", before} {
		when := fmt.Sprintf("start %d, older build: %t", i, program != "")
		p := serveWith(t, program, settings)
		f.settle(when, p)
		all = append(all, newTwoWayEngine(t, i+1, func(r *kv.Registration) {
			if i%2 == 0 {
				r.Copies, r.Owned, r.Clear = "set", "drop", "device"
			}
		}))
		if i == 0 {
			f.register(p, all[0])
		}
		if f.register(p, all[i+1]); i > 1 {
			f.unregister(p, all[i-1])
		}
		for _, e := range f.engines {
			e.work()
		}
		f.settle(when+", at its end", p)
		for _, e := range f.engines {
			e.Forget()
		}
		if stop(t, p); strings.Contains(p.log(), unusable) {
			t.Errorf("%s: %s", when, p.log())
		}
	}
}

// TestWayBackOfNewFields goes back with registrations that programs from before format version 3 would keep in part only. The older
// build has all of them, or refuses by the name of the version what it finds. The newer one has everything when it is
// started again.
func TestWayBackOfNewFields(t *testing.T) {
	t.Parallel()
	before := programBefore(t)
	f := newTwoWayFleet(t)
	dir := filepath.Join(t.TempDir(), "snapshots")
	settings := fmt.Sprintf("snapshot: {dir: %q, interval: 0s}\nshutdown: {drain: 0s}\n", dir)
	plain := newTwoWayEngine(t, 0, func(*kv.Registration) {})
	p := serveWith(t, before, settings)
	f.register(p, plain)
	plain.work()
	f.settle("the older build", p)
	plain.Forget()
	stop(t, p)

	p = serveWith(t, "", settings)
	for i, fill := range []func(*kv.Registration){
		func(r *kv.Registration) { r.Aliases = []string{"n", "o"} },
		func(r *kv.Registration) { r.Reports = "full" },
	} {
		f.register(p, newTwoWayEngine(t, i+1, fill))
	}
	for _, e := range f.engines {
		e.work()
	}
	f.settle("the newer build", p)
	for _, e := range f.engines {
		e.Forget()
	}
	stop(t, p)
	// The older build would go on with what it has written itself.
	files, err := filepath.Glob(filepath.Join(dir, "*.snapshot"))
	must.Succeed(t, err)
	slices.Sort(files)
	for _, file := range files[:len(files)-1] {
		must.Succeed(t, os.Remove(file))
	}

	p = serveWith(t, before, settings)
	if rows, err := f.client(p).Services(t.Context()); err != nil || len(rows) > 0 {
		must.Succeed(t, err)
		f.settle("the older build again", p)
	} else {
		refusal := regexp.MustCompile(`it has format version \d+; this program knows \d+`)
		eventually(t, "nothing is said of the snapshot and of the registrations", func() (string, bool) {
			return p.log(), len(refusal.FindAllString(p.log(), -1)) == 2
		})
		t.Logf("the older build says that %s", refusal.FindString(p.log()))
	}
	must.Succeed(t, p.cmd.Process.Kill()) // a last snapshot would be newer, and have less
	p.cmd.Wait()

	p = serveWith(t, "", settings)
	f.settle("the newer build again", p)
	if stop(t, p); strings.Contains(p.log(), unusable) {
		t.Error(p.log())
	}
}
