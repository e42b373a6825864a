package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
)

// TestAliasesOfOthers asks each replica for an alias: the one that owns the model answers, and the others
// name it. A model that another replica follows under that name wins everywhere.
func TestAliasesOfOthers(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 3, 1)
	register := func(instance, model string, aliases ...string) {
		t.Helper()
		endpoint := "tcp://" + instance + ":1"
		s.engines.PublisherAt(endpoint).Publish(streamtest.EncodeBatch(1.5, 0,
			streamtest.Scope{Medium: "GPU"}.StoredEvent(0, []uint64{7}, prompt, len(prompt))))
		r := registration.Registration{
			Instance: instance, Endpoint: endpoint, ReplayEndpoint: endpoint + "/replay", Type: registration.TypeVLLM, Model: model,
			BlockSize: len(prompt), Aliases: aliases,
		}
		must.Succeed(t, s.members[0].conductor.For(conductor.Reader{}).Register(r, ingest.RegisterOptions{AnyEndpoint: true}))
	}
	// answers returns who answers for a name, and to which shard each of the others sends the query.
	answers := func(name string) (text string, n int) {
		var all []string
		for i, m := range s.members {
			q := match.Query{Model: name, BlockSize: len(prompt), Tokens: prompt}
			one := ""
			err := m.conductor.For(conductor.Reader{}).Answer(&q, func(a *match.Answer) {
				for _, row := range a.Rows {
					one += fmt.Sprint(row.Instance, row.Longest)
				}
			})
			var away *conductor.UnservedError
			if errors.As(err, &away) && len(away.Serving) == 1 {
				one = "model " + away.Shard.Model
			} else if one != "" {
				n++
			}
			all = append(all, fmt.Sprintf("r%d: %s", i, one))
			if q.Model != name {
				t.Errorf("the query for %s is one for %s now", name, q.Model)
			}
		}
		return strings.Join(all, ", "), n
	}
	register("a", "m", "also-m")
	until := func(name, row, model string) {
		t.Helper()
		s.until("no replica or several answer for "+name, func() (string, bool) {
			text, n := answers(name)
			return text, n == 1 && strings.Contains(text, row) && strings.Count(text, "model "+model) == 2
		})
	}
	until("m", "a1", "m")
	until("also-m", "a1", "m")
	register("b", "also-m")
	until("also-m", "b1", "also-m")
	until("m", "a1", "m")
}
