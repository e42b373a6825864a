package ingest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events"
	"example.com/conductor/events/payload"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/wire"
	"example.com/conductor/index"
	"example.com/conductor/internal/must"
)

const fillBlock = 4

// engine publishes random events, and records them as an engine with snapshots does.
type engine struct {
	*streamtest.Publisher
	streamtest.Recorder
	rng    *rand.Rand
	parent map[uint64]uint64
	tokens map[uint64][]uint32
	known  []uint64
	held   map[streamtest.Scope]map[uint64]int
}

func newEngine(p *streamtest.Publisher, seed uint64) *engine {
	return &engine{
		Publisher: p, Recorder: streamtest.Recorder{BlockSize: fillBlock}, rng: rand.New(rand.NewPCG(seed, 1)),
		parent: make(map[uint64]uint64), tokens: make(map[uint64][]uint32), held: make(map[streamtest.Scope]map[uint64]int),
	}
}

// prompt returns the tokens up to a block.
func (e *engine) prompt(h uint64) (all []uint32) {
	for ; h != 0; h = e.parent[h] {
		all = append(slices.Clone(e.tokens[h]), all...)
	}
	return all
}

var fillScopes = []streamtest.Scope{{Medium: "GPU"}, {Medium: "GPU"}, {Medium: "CPU"}, {Medium: "STORAGE", Ownership: "kvcr"}}

// event returns the next event.
func (e *engine) event() map[string]any {
	at := fillScopes[e.rng.IntN(len(fillScopes))]
	if e.held[at] == nil {
		e.held[at] = make(map[uint64]int)
	}
	held := slices.Sorted(maps.Keys(e.held[at]))
	switch n := e.rng.IntN(10); {
	case n < 3 && len(held) > 0:
		h := held[e.rng.IntN(len(held))]
		if e.held[at][h]--; e.held[at][h] == 0 {
			delete(e.held[at], h)
		}
		e.Recorder.RecordRemoval(at, h)
		return at.RemovedEvent(h)
	case n < 6 && len(e.known) > 0 && at.Medium != "GPU", n < 5 && len(held) > 0:
		// Again, or on a lower tier without tokens.
		var h uint64
		if at.Medium == "GPU" {
			h = held[e.rng.IntN(len(held))]
		} else if h = e.known[e.rng.IntN(len(e.known))]; len(e.CopiesOf(h)) == 0 || at.Ownership != "" && e.held[at][h] > 0 {
			return nil
		}
		e.held[at][h]++
		e.Recorder.RecordStore(at, 0, []uint64{h}, nil)
		return at.StoredEvent(0, []uint64{h}, nil, 0)
	}
	at = fillScopes[0]
	var parent uint64
	if gpu := slices.Sorted(maps.Keys(e.held[at])); len(gpu) > 0 && e.rng.IntN(4) > 0 {
		parent = gpu[e.rng.IntN(len(gpu))]
	}
	if e.held[at] == nil {
		e.held[at] = make(map[uint64]int)
	}
	var hashes []uint64
	var tokens []uint32
	for before := parent; len(hashes) < 1+e.rng.IntN(3); {
		h := e.rng.Uint64() | 1
		var own []uint32
		for range fillBlock {
			own = append(own, e.rng.Uint32N(1000))
		}
		e.parent[h], e.tokens[h] = before, own
		hashes, tokens, before = append(hashes, h), append(tokens, own...), h
		e.held[at][h]++
	}
	e.known = append(e.known, hashes...)
	e.Recorder.RecordStore(at, parent, hashes, tokens)
	return at.StoredEvent(parent, hashes, tokens, fillBlock)
}

// publish publishes batches of events. The next snapshot contains them.
func (e *engine) publish(batches int) {
	for range batches {
		var all []any
		for range 1 + e.rng.IntN(4) {
			if ev := e.event(); ev != nil {
				all = append(all, ev)
			}
		}
		e.Publish(streamtest.EncodeBatch(1.5, 0, all...))
	}
	parts := e.Recorder.SnapshotParts(1.5, 0)
	e.Mu.Lock()
	e.Publisher.Parts = parts
	e.Mu.Unlock()
}

func (e *engine) answers(c *server) (all []string) {
	for _, h := range append(slices.Clone(e.known), 0) {
		q := match.Query{Model: "m", BlockSize: fillBlock, Tokens: e.prompt(h)}
		for _, r := range c.Query(q).Rows {
			all = append(all, fmt.Sprintf("%s %d %v %v", r.Instance, r.Longest, r.Media, r.Ranks))
		}
	}
	return all
}

// A source that is filled from snapshots answers as one that has followed its engine from
// the first batch on, also after what comes later, whatever stream.copies says.
func TestSnapshotEqualsHistory(t *testing.T) {
	seeds := uint64(20)
	if payload.PoisonsReleased {
		seeds = 4 // the race detector takes ten times as long
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			var net streamtest.Network
			p := net.PublisherAt("tcp://e:1")
			p.ID = events.PublisherID{1}
			e := newEngine(p, seed)
			follower, late := newServer(serverOptions{Stream: stream.Config{Transport: &net}}),
				newServer(serverOptions{Copies: index.CopySet, Stream: stream.Config{Transport: &net}})
			defer follower.Close()
			defer late.Close()
			reg := registration.Registration{Endpoint: "tcp://e:1", Type: registration.TypeVLLM, Model: "m", Instance: "i",
				BlockSize: fillBlock}
			must.Succeed(t, follower.Register(reg, RegisterOptions{AnyEndpoint: true}))
			synctest.Wait()
			e.publish(100)
			reg.SnapshotEndpoint = "tcp://e:1/snapshot"
			must.Succeed(t, late.Register(reg, RegisterOptions{AnyEndpoint: true}))
			time.Sleep(2 * time.Second)
			for round := range 4 {
				synctest.Wait()
				got, want := e.answers(late), e.answers(follower)
				for i, h := range e.known {
					if got[i] != want[i] {
						t.Fatalf("seed %d, round %d: block %d behind %d, cached %v\n got %v\nwant %v", seed, round, h, e.parent[h],
							e.CopiesOf(h), got[i], want[i])
					}
				}
				for _, err := range late.Check() {
					t.Fatal(err)
				}
				e.publish(20)
			}
			s := late.Services()[0]
			if s.HistoryFrom != FromEngine || s.Snapshots != 1 || s.State != stream.Synced || s.Gaps != 0 {
				t.Errorf("seed %d: %+v", seed, s)
			}
		})
	}
}

// The fleet adds up requests for snapshots by result, of sources that have left too.
func TestFleetCountsEngineSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net streamtest.Network
		newEngine(net.PublisherAt("tcp://e:1"), 1).publish(1)
		newEngine(net.PublisherAt("tcp://e:2"), 2).publish(1)
		net.PublisherAt("tcp://e:2").Unavailable = 1000
		c := newServer(serverOptions{Stream: stream.Config{Transport: &net}})
		defer c.Close()
		metrics := prometheus.NewPedanticRegistry()
		fleet := &fleetMetrics{sources: c.sources}
		metrics.MustRegister(fleet)
		f := func(mode status.SourceSeries, applied, failed bool) {
			t.Helper()
			fleet.series = mode
			families, err := metrics.Gather()
			must.Succeed(t, err)
			got := make(map[string]float64)
			for _, family := range families {
				if family.GetName() == "conductor_fleet_engine_snapshots_total" {
					for _, m := range family.Metric {
						got[m.Label[0].GetValue()] = m.Counter.GetValue()
					}
				}
			}
			if _, there := got["applied"]; there != applied || applied && got["applied"] != 1 || got["snapshot_unavailable"] > 0 != failed {
				t.Errorf("mode %d: %v", mode, got)
			}
		}
		f(status.SeriesAuto, false, false)
		for _, endpoint := range []string{"tcp://e:1", "tcp://e:2"} {
			reg := registration.Registration{Endpoint: endpoint, SnapshotEndpoint: endpoint + "/snapshot", Type: registration.TypeVLLM,
				Model: "m", Instance: endpoint, BlockSize: fillBlock}
			must.Succeed(t, c.Register(reg, RegisterOptions{AnyEndpoint: true}))
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		f(status.SeriesAuto, true, true)
		f(status.SeriesNever, true, true)
		var states []string
		for _, s := range c.Services() {
			states = append(states, s.SnapshotState)
			if s.SnapshotBlocks != s.Blocks || s.SnapshotBlocks == 0 == (s.SnapshotState == stream.SnapshotApplied) {
				t.Errorf("%s has %d blocks of %d from a snapshot", s.SnapshotState, s.SnapshotBlocks, s.Blocks)
			}
		}
		if !slices.Equal(states, []string{stream.SnapshotApplied, stream.SnapshotMissing}) {
			t.Errorf("the snapshots are %q", states)
		}
		for _, reg := range c.Registrations() {
			_, err := c.Unregister(reg.Key())
			must.Succeed(t, err)
		}
		f(status.SeriesAuto, true, true)
	})
}

// No query sees a part of a snapshot: neither the blocks that the engine has evicted, nor some
// of its blocks without the others.
func TestQueriesSeeNoPartOfSnapshot(t *testing.T) {
	c := newServer(serverOptions{})
	defer c.Close()
	c.sources.FeedBy(func(registration.Registration, bool, *tape.Recorder, func(stream.State, string)) Feed {
		return newUnfollowed(c.now())
	})
	must.Succeed(t, c.sources.RegisterChecked(registration.Registration{
		Endpoint: "tcp://h:1", Type: registration.TypeVLLM, Model: "m", Instance: "i",
		Tenant: scope.DefaultTenant, BlockSize: fillBlock}, RegisterOptions{}))
	s := c.sources.All()[0]
	step := func(kind stream.StepKind, reason string, all ...any) {
		st := stream.Step{Kind: kind, Reason: reason, Epoch: 1, Seq: 7, ID: events.PublisherID{1}}
		if kind != stream.DropBlocks {
			batch, err := wire.Decode([]byte(streamtest.EncodeBatch(1.5, 0, all...)), wire.DefaultLimits)
			must.Succeed(t, err)
			st.Batch = batch
		}
		s.guard(func() { s.applyStep(&st) })
	}
	scope := streamtest.Scope{Medium: "GPU"}
	a, b := []uint32{1, 1, 1, 1}, []uint32{2, 2, 2, 2}
	longest := func() int {
		return c.Query(match.Query{Model: "m", BlockSize: fillBlock, Tokens: slices.Concat(a, b)}).Rows[0].Longest
	}
	want := func(when string, n int) {
		t.Helper()
		if got := longest(); got != n {
			t.Errorf("%s: %d blocks match, want %d", when, got, n)
		}
	}
	step(stream.ApplyBatch, "", scope.StoredEvent(0, []uint64{1}, a, fillBlock))
	want("before", 1)
	step(stream.DropBlocks, stream.ReasonSnapshot)
	want("after the old blocks", 0)
	step(stream.ApplySnapshotPart, "", scope.StoredEvent(0, []uint64{1, 2}, slices.Concat(a, b), fillBlock))
	want("with blocks that are gone", 0)
	if snap := c.Sources().Snapshots().Take(); len(snap.deployments) != 0 {
		t.Errorf("a snapshot of our own has %d deployments of the source", len(snap.deployments))
	}
	step(stream.ApplySnapshotPart, "", scope.StoredEvent(0, []uint64{1}, nil, 0))
	step(stream.ApplySnapshotPart, "", scope.RemovedEvent(1, 2))
	want("before the end", 0)
	if historyFrom(s) != FromLive {
		t.Errorf("before the end history is from %s", historyFrom(s))
	}
	step(stream.EndSnapshot, "")
	want("after the end", 1)
	if historyFrom(s) != FromEngine || s.mark.Seq != 7 || !s.marked {
		t.Errorf("after the end: %s %+v", historyFrom(s), s.mark)
	}
	// One that fails drops all.
	step(stream.DropBlocks, stream.ReasonSnapshot)
	step(stream.ApplySnapshotPart, "", scope.StoredEvent(0, []uint64{1, 2}, slices.Concat(a, b), fillBlock))
	step(stream.DropBlocks, stream.SnapshotMalformed)
	want("after a failure", 0)
	step(stream.ApplyBatch, "", scope.StoredEvent(0, []uint64{1}, a, fillBlock))
	want("after the next batch", 1)
	for _, err := range c.Check() {
		t.Error(err)
	}
}

func TestSnapshotEndpointIsChecked(t *testing.T) {
	c := newServer(serverOptions{Stream: stream.Config{Transport: new(streamtest.Network)}, Reaches: func(endpoint string) error {
		if endpoint == "tcp://metadata:80" {
			return errors.New("is not allowed")
		}
		return nil
	}})
	defer c.Close()
	f := func(field string, change func(*registration.Registration)) {
		t.Helper()
		r := registration.Registration{Endpoint: "tcp://127.0.0.1:1", SnapshotEndpoint: "tcp://127.0.0.1:2", Type: registration.TypeVLLM,
			Model: "m", Instance: "i", BlockSize: fillBlock}
		change(&r)
		err := c.Register(r, RegisterOptions{})
		var bad *invalid.FieldError
		if errors.As(err, &bad) != (field != "") || bad != nil && bad.Field != field {
			t.Errorf("%+v: got %v, want an error of %q", r, err, field)
		}
	}
	f("snapshot_endpoint", func(r *registration.Registration) { r.SnapshotEndpoint = "tcp://*:1" })
	f("snapshot_endpoint", func(r *registration.Registration) { r.SnapshotEndpoint = "bind:tcp://*:1" })
	f("snapshot_endpoint", func(r *registration.Registration) { r.SnapshotEndpoint = "tcp://metadata:80" })
	f("snapshot_endpoint", func(r *registration.Registration) { r.Type = registration.TypeMooncake })
	f("copies", func(r *registration.Registration) { r.Copies = registration.CopiesSet })
	f("", func(r *registration.Registration) { r.Copies = registration.CopiesCount })
}
