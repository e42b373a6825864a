package http_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/membership"
	"example.com/conductor/conductor/watch"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
	"example.com/conductor/store"
)

// TestAnswersOfReplicasFitTheDocument asks a replica for what the store knows, while it is up and
// once it is away.
func TestAnswersOfReplicasFitTheDocument(t *testing.T) {
	t.Parallel()
	shared := redistest.Start(t)
	opened, err := store.Open(store.Config{URL: shared.URL(), Name: "test", Timeout: time.Minute})
	must.Succeed(t, err)
	t.Cleanup(func() { opened.Close() })
	members := membership.New(membership.Config{
		Store: opened, Replica: membership.Replica{URL: "http://here", Weight: 1}, Log: zerolog.Nop(),
	})
	var registry *membership.Registry
	s := newServer(t, func(c *conductor.Conductor, o *admin.Options) {
		targets := discovery.New(discovery.Options{Registry: c.Sources(), Log: zerolog.Nop()})
		t.Cleanup(targets.Close)
		registry = membership.NewRegistry(membership.RegistryConfig{Group: members, Conductor: c, Targets: targets, Log: zerolog.Nop()})
		hub := watch.New(watch.Config{Conductor: c, Version: "test", Store: func() *watch.Store {
			return &watch.Store{Address: opened.Address(), Up: members.Status().Up, Members: []watch.Member{{ID: members.ID(), Self: true}}}
		}})
		t.Cleanup(hub.Close)
		o.Dialect.Registry, o.Dialect.Discovery, o.Watch = registry, targets, hub
	})
	step := func() {
		members.Beat(t.Context())
		registry.Sync(t.Context())
	}
	look := func(up string) {
		t.Helper()
		for _, path := range []string{"/ready", "/services?fleet=true", "/admin/stats"} {
			rec := s.do("GET", path, "")
			if rec.Code != 200 || !strings.Contains(rec.Body.String(), `:`+up) {
				t.Errorf("%s: %d %s", path, rec.Code, rec.Body)
			}
		}
	}
	step()
	s.do("POST", "/register",
		`{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"a","block_size":16,"dp_rank":0}`)
	s.do("POST", "/register", `{"discover":"http://127.0.0.1:1","instance_id":"b"}`)
	step()
	look("true")
	shared.Kill()
	step()
	look("false")
	var answer struct {
		Count    int
		Complete bool
		Services []struct {
			InstanceID string
			DPRank     int
			Replicas   []struct{ State string }
		}
	}
	must.Succeed(t, json.Unmarshal(s.do("GET", "/services?fleet=1", "").Body.Bytes(), &answer))
	if rows := answer.Services; answer.Complete || len(rows) != 2 || rows[0].InstanceID != "a" || len(rows[0].Replicas) != 1 ||
		rows[1].DPRank != -1 || rows[1].Replicas[0].State != membership.StateAsked {
		t.Errorf("%+v", answer)
	}
}
