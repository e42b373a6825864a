package conductor_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
)

// awayShards are the shards that others answer for. They are a Serving.
type awayShards []*conductor.UnservedError

func (s awayShards) Serves(scope.Shard) *conductor.UnservedError            { return nil }
func (s awayShards) ServesInstance(string, string) *conductor.UnservedError { return nil }
func (s awayShards) Away() []*conductor.UnservedError                       { return s }
func (s awayShards) Names() registration.Names                              { return nil }
func (s awayShards) Models(string) []string                                 { return nil }

// TestServesModel: who is named answers for the model of every tenant that the client may see.
func TestServesModel(t *testing.T) {
	c := conductor.New(conductor.Options{Log: zerolog.Nop()})
	defer c.Close()
	at := func(tenant, model, ids string) *conductor.UnservedError {
		e := &conductor.UnservedError{Shard: scope.Shard{Tenant: tenant, Model: model}}
		for _, id := range strings.Fields(ids) {
			e.Serving = append(e.Serving, conductor.ReplicaAddress{ID: id})
		}
		return e
	}
	away := awayShards{at("a", "m", "r1 r2"), at("b", "m", "r2 r3"), at("b", "n", "r3")}
	c.ServeBy(away)
	f := func(model, want string, tenants ...string) {
		t.Helper()
		err := c.For(conductor.Reader{Tenants: tenants}).ServesModel(model)
		got := "here"
		var e *conductor.UnservedError
		if errors.As(err, &e) {
			got = ""
			for _, r := range e.Serving {
				got += r.ID
			}
		}
		if got != want {
			t.Errorf("%q of %v: %q, want %q", model, tenants, got, want)
		}
	}
	f("m", "r2")
	f("m", "r1r2", "a")
	f("n", "r3")
	f("n", "here", "a")
	f("", "")
	f("", "r3", "b")
	f("o", "here")
	if len(away[0].Serving) != 2 || len(away[1].Serving) != 2 {
		t.Error("the replicas of a shard have changed")
	}
	c.ServeBy(awayShards{{}})
	f("m", "")
}

// lettingGo answers for all shards when it is asked first. From then on another replica does, and the
// Conductor has lost its sources. It is a Serving.
type lettingGo struct {
	awayShards
	lose  func()
	asked bool
}

func (s *lettingGo) Serves(shard scope.Shard) *conductor.UnservedError {
	if s.asked {
		return &conductor.UnservedError{Shard: shard, Serving: []conductor.ReplicaAddress{{ID: "r2"}}}
	}
	s.asked = true
	s.lose()
	return nil
}

// TestShardIsLetGoDuringAQuery holds that a query whose blocks go while it is under way has no answer,
// so that another replica is asked.
func TestShardIsLetGoDuringAQuery(t *testing.T) {
	f := func(name string, query func(conductor.View) error) {
		t.Helper()
		inBubble(t, func(t *testing.T, b *bench) {
			b.run("register A")
			b.run("store A path=a/b")
			b.conductor.ServeBy(&lettingGo{lose: func() { b.run("unregister A") }})
			var away *conductor.UnservedError
			if err := query(b.conductor.For(conductor.Reader{})); !errors.As(err, &away) || len(away.Serving) == 0 {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	q := match.Query{Model: "m", BlockSize: 4, Tokens: []uint32{1, 2, 3, 4}}
	f("Answer", func(v conductor.View) error {
		return v.Answer(&q, func(a *match.Answer) { t.Errorf("an answer: %+v", a) })
	})
	f("Explain", func(v conductor.View) error { _, err := v.Inspect().Explain(&q); return err })
	f("BlockSizes", func(v conductor.View) error { _, err := v.BlockSizes(scope.Shard{Model: "m"}); return err })
}
