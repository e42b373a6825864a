package conductor

import (
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// awayShards are the shards that others answer for. They are a Serving.
type awayShards []*UnservedError

func (s awayShards) Serves(Shard) *UnservedError                  { return nil }
func (s awayShards) ServesInstance(string, string) *UnservedError { return nil }
func (s awayShards) Away() []*UnservedError                       { return s }

// TestServesModel: who is named answers for the model of every tenant that the client may see.
func TestServesModel(t *testing.T) {
	c := New(Options{Log: zerolog.Nop()})
	defer c.Close()
	at := func(tenant, model, ids string) *UnservedError {
		e := &UnservedError{Shard: Shard{tenant, model}}
		for _, id := range strings.Fields(ids) {
			e.Serving = append(e.Serving, ReplicaAddress{ID: id})
		}
		return e
	}
	away := awayShards{at("a", "m", "r1 r2"), at("b", "m", "r2 r3"), at("b", "n", "r3")}
	c.ServeBy(away)
	f := func(model, want string, tenants ...string) {
		t.Helper()
		err := c.For(Reader{Tenants: tenants}).ServesModel(model)
		got := "here"
		var e *UnservedError
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
