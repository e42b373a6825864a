package conductor_test

import (
	"errors"
	"fmt"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/internal/must"
)

// toldMirror notes what a Conductor tells other replicas. They have the reports in has.
type toldMirror struct {
	told []string
	has  map[string]bool
}

func (m *toldMirror) Me() string { return "me" }
func (m *toldMirror) Routed(from conductor.Teller, r *match.Routed) {
	m.told = append(m.told, fmt.Sprint(from.Tell(), " routes ", r.RequestID, " of ", r.Model))
}
func (m *toldMirror) TakenBack(from conductor.Teller, tenant, id string) {
	m.told = append(m.told, fmt.Sprint(from.Tell(), " takes back ", id, " of ", tenant))
}
func (m *toldMirror) TakeBack(from conductor.Teller, tenant, id string) bool {
	m.told = append(m.told, fmt.Sprint(from.Tell(), " asks for ", id, " of ", tenant))
	return m.has[id]
}

// TestReportsByIDAreMirrored lets one replica tell another of reports by the ids of its answers, which the other does not have. Both
// expect the same then, under the adapter and the salt that were asked for.
func TestReportsByIDAreMirrored(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		other := newBench()
		defer other.conductor.Close()
		to := []conductor.ReplicaAddress{{ID: "other", URL: "http://other"}}
		serving := func(scope.Shard) []conductor.ReplicaAddress { return to }
		mirror := cluster.NewMirror(cluster.MirrorConfig{Me: "me", To: served{other.handler}, Serving: serving, Timeout: time.Minute,
			MaxTokens: 1 << 16, Log: zerolog.Nop()})
		defer mirror.Close()
		b.conductor.MirrorBy(mirror)
		for _, of := range []*bench{b, other} {
			of.run("register A")
			of.run("register A rank=1")
			of.run("register D")
			of.run("store D path=z hashed=sglang_bigram")
		}
		hashes := match.Query{Model: "m", BlockSize: 16, ByHash: true, HashKind: match.VLLMHashes, Hashes: []uint64{1, 2, 3}}
		tokens := match.Query{Model: "m", BlockSize: 16, Lora: "l", Salt: "s", Tokens: append(promptOf("a/b", 16), behind)}
		for i, q := range []match.Query{tokens, hashes} {
			for _, r := range []match.Routed{
				{Target: "A", Rank: 1, TTL: time.Minute, RequestID: fmt.Sprint(i)}, {Target: "D", Rank: match.AnyRank},
			} {
				r.AnswerID = b.askForID(t, q)
				_, err := b.view().Routed(&r)
				must.Succeed(t, err)
				synctest.Wait()
			}
			q.Expected = true
			for _, of := range []*bench{b, other} {
				got := ""
				for _, row := range of.conductor.Query(q).Rows {
					got += fmt.Sprint(row.Instance, row.Expected, len(row.Ranks), row.Ranks[len(row.Ranks)-1].Expected, " ")
				}
				n := 2 + i
				if want := fmt.Sprint("A", n, 2, n, " D", n, 1, n, " "); got != want {
					t.Errorf("query %d: mirrored %v: %s, want %s", i, of == other, got, want)
				}
			}
			must.Succeed(t, other.view().TakeBack("", fmt.Sprint(i)))
		}
	})
}

// served answers requests by a handler.
type served struct{ handler nethttp.Handler }

// RoundTrip implements http.RoundTripper.
func (s served) RoundTrip(r *nethttp.Request) (*nethttp.Response, error) {
	r.URL.Path = strings.TrimPrefix(r.URL.Path, "/conductor/v1") // where only a server with several dialects mounts it
	rec := httptest.NewRecorder()
	s.handler.ServeHTTP(rec, r)
	return rec.Result(), nil
}

type teller string

func (t teller) Tell() string { return string(t) }

// TestReportsAreMirrored holds which reports a replica mirrors, by the way on which they come: those that it has kept, once,
// but none that another replica mirrors.
func TestReportsAreMirrored(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		m := &toldMirror{has: map[string]bool{"elsewhere": true}}
		b.conductor.MirrorBy(m)
		b.run("register A")
		told := func(want ...string) {
			t.Helper()
			if fmt.Sprintf("%q", m.told) != fmt.Sprintf("%q", want) {
				t.Errorf("%q, want %q", m.told, want)
			}
			m.told = nil
		}
		from := func(replica string, mirrored bool) conductor.View {
			return b.view().From(conductor.Sender{Client: teller("x"), Replica: replica, Mirrored: mirrored})
		}
		route := func(v conductor.View, id, target string) error {
			r := match.Routed{Query: match.Query{Model: "m", BlockSize: 16, Tokens: promptOf("a/"+id, 16)}, Target: target,
				TTL: time.Minute, RequestID: id}
			_, err := v.Routed(&r)
			return err
		}
		kept := func(id string, want bool) {
			t.Helper()
			if is := b.expectedRows("a/"+id) == "A 0/2 0:0/2"; is != want {
				t.Errorf("%s is kept: %v, %s", id, is, b.expectedRows("a/"+id))
			}
		}
		client, forwarded, mirrored, own := from("", false), from("r2", false), from("r2", true), from("me", true)
		must.Succeed(t, route(client, "1", "A"))
		must.Succeed(t, route(forwarded, "2", "A"))
		told("x routes 1 of m", "x routes 2 of m")
		must.Succeed(t, route(mirrored, "3", "A"))
		must.Succeed(t, route(own, "4", "A"))
		if err := route(client, "5", "B"); !errors.As(err, new(*match.UnknownNameError)) {
			t.Error(err)
		}
		told()
		for id, want := range map[string]bool{"1": true, "2": true, "3": true, "4": false} {
			kept(id, want)
		}

		must.Succeed(t, client.TakeBack("", "1"))
		must.Succeed(t, forwarded.TakeBack("default", "2"))
		told("x takes back 1 of default", "x takes back 2 of default")
		must.Succeed(t, mirrored.TakeBack("", "3"))
		told()
		for id := range 4 {
			kept(fmt.Sprint(id), false)
		}
		must.Succeed(t, client.TakeBack("", "elsewhere"))
		told("x asks for elsewhere of default")
		for _, v := range []conductor.View{forwarded, mirrored} {
			if err := v.TakeBack("", "elsewhere"); !errors.Is(err, ingest.ErrNotFound) {
				t.Error(err)
			}
		}
		told()
		if err := client.TakeBack("", "nowhere"); !errors.Is(err, ingest.ErrNotFound) {
			t.Error(err)
		}
		told("x asks for nowhere of default")
	})
}
