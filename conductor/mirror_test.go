package conductor_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
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
