package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/internal/clocktest"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/demo"
	"example.com/conductor/lab/sim"
	"example.com/conductor/lab/sim/proxy"
)

// arena is replicas that share a store, fleets of several models that ask them, and an oracle: a
// server without a store, which nothing disturbs.
type arena struct {
	t        *testing.T
	settings string                       // of each replica, but for its store
	kept     func(*runningReplica) string // what the settings of a replica say of snapshots
	shared   *sharedStore
	replicas []*runningReplica
	dead     []string // URLs of those that were killed
	oracle   *process
	asked    *sim.Servers
	stage    *sim.Stage
	done     chan struct{} // closed to end the fleets
	endOnce  sync.Once
	ended    chan struct{}
	reports  []*sim.Report // once ended is closed
	err      error
}

// runningReplica is one of the servers of an arena. What it tells others of its address, and what it knows of
// the store's, are proxies.
type runningReplica struct {
	*process
	store, peers *proxy.Proxy
	clock        *clocktest.Clock // nil where clocks cannot be moved
}

// nowhere is an address where nothing listens.
const nowhere = "127.0.0.1:1"

// newArena starts three replicas and lets fleets work.
func newArena(t *testing.T, settings string, shared *sharedStore, models int) *arena {
	t.Helper()
	return newArenaOf(t, settings, shared, models, func(*runningReplica) string { return "snapshot: {interval: 1s}\n" })
}

// newArenaOf is newArena with replicas whose snapshots are kept as kept says.
func newArenaOf(t *testing.T, settings string, shared *sharedStore, models int, kept func(*runningReplica) string) *arena {
	t.Helper()
	a := &arena{t: t, settings: settings, kept: kept, shared: shared, stage: sim.NewStage(), done: make(chan struct{}),
		ended: make(chan struct{})}
	a.oracle = serveProcess(t, "index: {ghost_bytes: 512MiB}\n")
	var err error
	a.asked, err = sim.NewServers()
	must.Succeed(t, err)
	for range 3 {
		a.join(0)
	}
	configs, err := demo.Fleets(a.asked, a.stage, models, uint64(time.Now().UnixNano()))
	must.Succeed(t, err)
	for i := range configs {
		c := &configs[i]
		c.Source = &until{Source: c.Source, done: a.done}
		// A dump has no place for the look-ahead of a drafter: its blocks cannot be counted.
		c.Families = []string{sim.Families[i%3], sim.Families[(i+1)%3]}
		c.Ways = true
		c.Device, c.Host, c.Disk, c.QPS, c.Audit = 512, 256, 512, 30, 25
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); <-a.ended })
	go func() {
		defer close(a.ended)
		a.reports, a.err = demo.RunFleets(ctx, configs)
	}()
	started := make(chan error, 1)
	go func() { started <- a.stage.Await(ctx, models) }()
	select {
	case err := <-started:
		must.Succeed(t, err)
	case <-a.ended:
		t.Fatalf("the fleets end before they begin: %v\n%s", a.err, a.logs())
	}
	for _, body := range a.stage.Registered() {
		post(t, a.oracle.url+"/register", string(body), 200)
	}
	return a
}

// join starts a replica whose clock is ahead. Clients ask it once it is ready.
func (a *arena) join(ahead time.Duration) *runningReplica {
	a.t.Helper()
	r := &runningReplica{}
	var err error
	r.peers, err = proxy.Open(nowhere)
	must.Succeed(a.t, err)
	a.t.Cleanup(r.peers.Close)
	r.store, err = proxy.Open(a.shared.Addr)
	must.Succeed(a.t, err)
	a.t.Cleanup(r.store.Close)
	cmd := serveCommandLine(a.t, fmt.Sprintf(
		"store: {%s, advertise: 'http://%s'}\n%sindex: {ghost_bytes: 512MiB}\n%s",
		a.shared.settings(r.store.Addr()), r.peers.Addr(), a.kept(r), a.settings))
	r.process = startBy(a.t, cmd, func() {
		if clocktest.Works {
			r.clock = clocktest.Start(a.t, cmd)
			r.clock.Set(ahead)
		} else {
			must.Succeed(a.t, cmd.Start())
		}
	})
	r.peers.Turn(strings.TrimPrefix(r.url, "http://"))
	eventually(a.t, "a replica never gets ready", func() (string, bool) {
		status, text := get(r.url + "/ready")
		return text, status == 200
	})
	if r.clock != nil {
		a.dated(r, ahead)
	}
	must.Succeed(a.t, a.asked.Add(r.url))
	for _, url := range a.dead {
		a.asked.Remove(url)
	}
	a.replicas = append(a.replicas, r)
	return r
}

// kill ends a replica by SIGKILL. Clients find out.
func (a *arena) kill(r *runningReplica) {
	a.t.Helper()
	must.Succeed(a.t, r.cmd.Process.Kill())
	r.cmd.Wait()
	r.peers.Close()
	a.dead = append(a.dead, r.url)
	a.replicas = slices.DeleteFunc(a.replicas, func(other *runningReplica) bool { return other == r })
}

// stopFor stops a process for a while.
func (a *arena) stopFor(p *process, d time.Duration) {
	a.t.Helper()
	must.Succeed(a.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	a.work(d)
	must.Succeed(a.t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// work lets the fleets work for a while.
func (a *arena) work(d time.Duration) {
	a.t.Helper()
	select {
	case <-time.After(d):
	case <-a.ended:
		a.t.Fatalf("the fleets ended: %v\n%s", a.err, a.logs())
	}
}

// logs is what the replicas have written.
func (a *arena) logs() string {
	var b strings.Builder
	for i, r := range a.replicas {
		fmt.Fprintf(&b, "replica %d at %s:\n", i, r.url)
		for line := range strings.Lines(r.log()) {
			if !strings.Contains(line, `"finding"`) && !strings.Contains(line, `"audit"`) && !strings.Contains(line, "source registered") {
				b.WriteString(line)
			}
		}
	}
	return b.String()
}

// whole stops the fleets and holds that every replica has what the oracle has, that the oracle has what
// the engines hold, and that no settled answer was wrong until now.
func (a *arena) whole(after string) {
	a.t.Helper()
	began := time.Now()
	partial := 0
	err := a.stage.Quiet(a.t.Context(), 20*time.Minute, func() error {
		held := make(map[string]int) // by model and tier
		for key, blocks := range a.stage.Holds() {
			model := key[:strings.LastIndex(key[:strings.Index(key, "|")], "-")]
			held[model+" device"] += blocks.Device
			held[model+" host_pinned"] += blocks.Host
			held[model+" disk"] += blocks.Disk
		}
		var fault string
		ok := comesTrue(func() (string, bool) {
			fault, partial = a.compare(held)
			return fault, fault == ""
		})
		if !ok {
			return errors.New(fault)
		}
		return nil
	})
	if err != nil {
		a.t.Fatalf("after %s: %v\n%s", after, err, a.logs())
	}
	a.t.Logf("after %s: whole, compared in %.1f s, but %d lists of blocks of partial sources", after, time.Since(began).Seconds(), partial)
	if partial > mostPartial {
		a.t.Fatalf("after %s: %d lists of blocks of partial sources differ\n%s", after, partial, a.logs())
	}
}

// mostPartial is how many lists of blocks may differ from the truth in one comparison, all of sources that are partial. A source has a
// list for each tier, in each replica that follows it.
const mostPartial = 60

// comesTrue waits until something is so, and reports false if it is not and what it says of that has been the same for minutes: a busy
// machine may take long, but it does not stand still. What goes on for half an hour does not end.
func comesTrue(so func() (says string, ok bool)) bool {
	begun := time.Now()
	last, since := "", begun
	for again := time.Tick(50 * time.Millisecond); ; <-again {
		says, ok := so()
		if ok {
			return true
		}
		if says != last {
			last, since = says, time.Now()
		}
		if time.Since(since) > 4*time.Minute || time.Since(begun) > 30*time.Minute {
			return false
		}
	}
}

// compare returns how the replicas differ from the oracle, or the oracle from the engines, "" if
// they do not, and how many lists of blocks differ where a replica says that its source is partial: a replay
// service that has not answered for seconds leaves a hole. held is the blocks of the engines by model and tier.
func (a *arena) compare(held map[string]int) (fault string, partial int) {
	want := blocksOf(a.oracle)
	have := make(map[string]int)
	for key, blocks := range want {
		model, slot, _ := strings.Cut(key, " ")
		_, tier, _ := strings.Cut(slot, " ")
		have[model+" "+tier] += len(blocks)
	}
	for key, n := range held {
		if have[key] != n {
			model, _, _ := strings.Cut(key, " ")
			return fmt.Sprintf("the oracle has %d blocks of %s, the engines hold %d\n%s", have[key], key, n, marks(a.oracle, model)), 0
		}
	}
	followed := make(map[string]bool)
	for _, r := range a.replicas {
		models, doubted := r.models()
		isDoubted := func(key string) bool { // model, source and tier, or model and source
			return slices.ContainsFunc(doubted, func(s string) bool { return strings.HasPrefix(key+" ", s+" ") })
		}
		got := blocksOf(r.process)
		for key, blocks := range want {
			model, _, _ := strings.Cut(key, " ")
			switch {
			case !models[model] || slices.Equal(got[key], blocks):
			case isDoubted(key):
				partial++
			default:
				return fmt.Sprintf("replica %s has %d blocks of %s, the oracle has %d; only there: %v, only here: %v\nreplica:\n%s\n"+
					"oracle:\n%s",
					r.url, len(got[key]), key, len(blocks), without(got[key], blocks), without(blocks, got[key]), marks(r.process, model),
					marks(a.oracle, model)), 0
			}
		}
		for key, blocks := range got {
			if model, _, _ := strings.Cut(key, " "); models[model] && len(want[key]) == 0 && !isDoubted(key) {
				return fmt.Sprintf("replica %s has %d blocks of %s, the oracle none", r.url, len(blocks), key), 0
			}
		}
		maps.Copy(followed, models)
	}
	for key := range want {
		if model, _, _ := strings.Cut(key, " "); !followed[model] {
			return fmt.Sprintf("no replica follows %s", model), 0
		}
	}
	return "", partial
}

// models returns the models that a replica follows, and the sources that it says are partial, as model and source.
func (r *runningReplica) models() (all map[string]bool, partial []string) {
	_, text := get(r.url + "/services")
	var answer struct {
		Services []struct {
			ModelName, InstanceID, TenantID, State string
			DPRank                                 int
		} `json:"services"`
	}
	all = make(map[string]bool)
	if json.Unmarshal([]byte(text), &answer) == nil {
		for _, s := range answer.Services {
			all[s.ModelName] = true
			if s.State == "partial" {
				partial = append(partial, fmt.Sprintf("%s %s:%d", s.ModelName, s.InstanceID, s.DPRank),
					fmt.Sprintf("%s %s|%s|%d", s.ModelName, s.InstanceID, s.TenantID, s.DPRank)) // of blocks, and of digests
			}
		}
	}
	return all, partial
}

// without returns the first blocks of one list that are not in another.
func without(all, others []string) []string {
	all = slices.DeleteFunc(slices.Clone(all), func(b string) bool { return slices.Contains(others, b) })
	return all[:min(len(all), 5)]
}

// marks is how far the sources of a model are at a server, and what it has found about them.
func marks(p *process, model string) string {
	_, text := get(p.url + "/services")
	var answer struct {
		Services []struct {
			InstanceID, ModelName, State, Reason, HistoryFrom, LastError string
			DPRank, Blocks, Gaps, Replayed, Restarts                     int
			LastSeq                                                      *int
			Findings                                                     []struct{ Code, Message string }
		} `json:"services"`
	}
	if json.Unmarshal([]byte(text), &answer) != nil {
		return text
	}
	var b strings.Builder
	for _, s := range answer.Services {
		if s.ModelName != model {
			continue
		}
		last := -1
		if s.LastSeq != nil {
			last = *s.LastSeq
		}
		s.LastSeq = nil
		fmt.Fprintf(&b, "batch %d, %+v\n", last, s)
	}
	return b.String()
}

// blocksOf is heldBlocks with the digest of each source and model behind the batch applied last.
func blocksOf(p *process) map[string][]string {
	all, err := heldBlocks(context.Background(), p)
	if err != nil {
		return make(map[string][]string)
	}
	_, body := get(p.url + "/admin/digest")
	var digests struct {
		Sources []struct {
			Source   string
			Missing  string
			Mark     *struct{ Seq int }
			Contexts []struct {
				Model         string `json:"model_name"`
				Blocks, Loose int
				Digest        string
			}
		}
	}
	if json.Unmarshal([]byte(body), &digests) == nil {
		for _, s := range digests.Sources {
			for _, c := range s.Contexts {
				if s.Mark != nil {
					all[c.Model+" "+s.Source] = []string{fmt.Sprintf("behind batch %d, missing %q: %+v", s.Mark.Seq, s.Missing, c)}
				}
			}
		}
	}
	return all
}

// end ends the fleets and reports them.
func (a *arena) end() {
	a.t.Helper()
	a.endOnce.Do(func() { close(a.done) })
	<-a.ended
	must.Succeed(a.t, a.err)
	var sum sim.Answers
	for _, r := range a.reports {
		if err := r.Err(); err != nil {
			a.t.Errorf("seed %d: %v\n%q\n%s", r.Seed, err, r.Wrong, a.logs())
		}
		sum.Add(r.Answers)
	}
	a.t.Logf("%d of %d answers settled, %d wrong, %d behind, %d partial, %d unserved, %d retried", sum.Settled, sum.Compared, sum.Wrong,
		sum.Behind, sum.Partial, sum.Unserved, a.asked.Retried())
}
