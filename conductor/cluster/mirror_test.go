package cluster

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/internal/must"
)

// mirrorBench is a Mirror whose requests a test answers, within a bubble of synctest.
type mirrorBench struct {
	*Mirror
	t     *testing.T
	asked chan *mirrorRequest // requests in the order in which they come
}

// mirrorRequest is a request that waits for its answer.
type mirrorRequest struct {
	*http.Request
	text   []byte
	answer chan mirrorAnswer
}

type mirrorAnswer struct {
	status int
	text   string
	err    error
}

// RoundTrip implements http.RoundTripper.
func (b *mirrorBench) RoundTrip(r *http.Request) (*http.Response, error) {
	asked := &mirrorRequest{Request: r, answer: make(chan mirrorAnswer, 1)}
	if r.Body != nil {
		var err error
		if asked.text, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	b.asked <- asked
	select {
	case a := <-asked.answer:
		return &http.Response{StatusCode: a.status, Body: io.NopCloser(strings.NewReader(a.text))}, a.err
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// inMirror runs f with a Mirror to some replicas.
func inMirror(t *testing.T, replicas []string, f func(*mirrorBench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &mirrorBench{t: t, asked: make(chan *mirrorRequest, 100)}
		all := func() (all []conductor.ReplicaAddress) {
			for _, name := range replicas {
				all = append(all, conductor.ReplicaAddress{ID: name, URL: "http://" + name})
			}
			return all
		}
		b.Mirror = NewMirror(MirrorConfig{
			Me: "me", To: b, All: all, Serving: func(scope.Shard) []conductor.ReplicaAddress { return all() },
			Timeout: 2 * time.Second, MaxTokens: 1 << 20, Log: zerolog.Nop(),
		})
		defer b.Close()
		f(b)
	})
}

// next returns the next request, nil if none comes.
func (b *mirrorBench) next() *mirrorRequest {
	synctest.Wait()
	select {
	case r := <-b.asked:
		return r
	default:
		return nil
	}
}

// expect answers the next request and compares it.
func (b *mirrorBench) expect(want string, a mirrorAnswer) {
	b.t.Helper()
	r := b.next()
	if r == nil {
		b.t.Fatalf("no request, want %s", want)
	}
	if got := r.String(); got != want {
		b.t.Fatalf("%s, want %s", got, want)
	}
	r.answer <- a
	synctest.Wait()
}

// String returns who is asked for whom, and the request ids of a batch as first..last.
func (r *mirrorRequest) String() string {
	out := r.URL.Host + " for " + r.Header.Get(forward.ClientHeader) + ": "
	if r.Method == http.MethodDelete {
		return out + "DELETE " + r.URL.RequestURI() + " " + r.Header.Get(forward.MirroredHeader)
	}
	var in struct {
		Prompts []struct {
			ID string `msgpack:"request_id"`
		} `msgpack:"prompts"`
	}
	if err := msgpack.Unmarshal(r.text, &in); err != nil || len(in.Prompts) == 0 {
		return fmt.Sprint(out, len(in.Prompts), " prompts, ", err)
	}
	return fmt.Sprintf("%s%d: %s..%s", out, len(in.Prompts), in.Prompts[0].ID, in.Prompts[len(in.Prompts)-1].ID)
}

// counts compares the results of all reports, in the order delivered, refused, failed, dropped.
func (b *mirrorBench) counts(want string) {
	b.t.Helper()
	registry, counted := prometheus.NewRegistry(), make(map[string]float64)
	registry.MustRegister(b.Mirror)
	all, err := registry.Gather()
	must.Succeed(b.t, err)
	for _, m := range all[0].GetMetric() {
		counted[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	if got := fmt.Sprint(counted[delivered], counted[refused], counted[failed], counted[dropped]); got != want || len(counted) != 4 {
		b.t.Fatalf("%s of %v, want %s", got, slices.Sorted(maps.Keys(counted)), want)
	}
}

// client is what replicas tell of a client.
type client string

func (c client) Tell() string { return string(c) }

// report reports a prompt of some blocks of 16 tokens.
func (b *mirrorBench) report(from client, id string, blocks int) {
	b.Routed(from, &match.Routed{
		Query: match.Query{Model: "m", BlockSize: 16, Tokens: make([]uint32, 16*blocks)}, Target: "A", Rank: match.AnyRank,
		RequestID: id,
	})
}

var kept = mirrorAnswer{status: http.StatusNoContent}

// TestMirrorKeepsOrder holds that reports leave in their order, those of one client that wait together as one batch, and
// that one replica does not wait for another.
func TestMirrorKeepsOrder(t *testing.T) {
	inMirror(t, []string{"a"}, func(b *mirrorBench) {
		b.report("x", "first", 1)
		first := b.next()
		for i := range body.MaxItems + 2 {
			b.report("x", fmt.Sprint(i), 1)
		}
		b.TakenBack(client("x"), "t & u", "a/b c")
		b.report("x", "again", 1)
		b.report("y", "of y", 1)
		b.report("y", "large", 40_000)
		b.report("y", "larger", 17_000)
		if first.String() != "a for x: 1: first..first" || b.next() != nil {
			t.Error(first)
		}
		h := first.Header
		if h.Get(forward.ForwardedHeader) != "me" || h.Get(forward.MirroredHeader) == "" || h.Get("Accept") != "application/json" ||
			h.Get("Content-Type") != "application/msgpack" || first.URL.Path != "/conductor/v1/routed" {
			t.Error(first.URL, h)
		}
		first.answer <- kept
		b.expect("a for x: 256: 0..255", kept)
		b.expect("a for x: 2: 256..257", kept)
		b.expect("a for x: DELETE /conductor/v1/routed/a%2Fb%20c?tenant_id=t+%26+u 1", kept)
		b.expect("a for x: 1: again..again", kept)
		b.expect("a for y: 1: of y..of y", kept)
		b.expect("a for y: 1: large..large", kept)
		b.expect("a for y: 1: larger..larger", mirrorAnswer{status: http.StatusRequestEntityTooLarge})
		b.counts("263 1 0 0")
	})
}

// TestMirrorDropsWhatIsLate holds that a replica that is slow gets new reports and no more than a bound of them, and that another
// one does not notice.
func TestMirrorDropsWhatIsLate(t *testing.T) {
	inMirror(t, []string{"slow", "fast"}, func(b *mirrorBench) {
		b.report("", "0", 1)
		two := []*mirrorRequest{b.next(), b.next()}
		slices.SortFunc(two, func(a, b *mirrorRequest) int { return strings.Compare(a.URL.Host, b.URL.Host) })
		two[0].answer <- kept
		const blocks = 1 << 14 // a megabyte, with its names a little more
		for i := range 6 {
			b.report("", fmt.Sprint(i+1), blocks)
			b.expect(fmt.Sprintf("fast for : 1: %d..%d", i+1, i+1), kept)
		}
		b.counts("7 0 0 3")
		two[1].answer <- kept
		b.expect("slow for : 1: 1..1", kept)
		late := b.next()
		time.Sleep(mirroredAge)
		b.report("", "new", 1)
		b.expect("fast for : 1: new..new", kept)
		late.answer <- kept
		b.expect("slow for : 1: new..new", kept)
		b.counts("12 0 0 4")
		b.report("", "one", 1<<17) // alone it may be larger than the bound
		synctest.Wait()
		b.report("", "two", 1)
		for range 2 {
			b.next().answer <- kept
		}
		for range 2 {
			if r := b.next(); r == nil || !strings.HasSuffix(r.String(), "for : 1: two..two") {
				t.Error(r)
			} else {
				r.answer <- kept
			}
		}
		if b.next() != nil {
			t.Error("more than that")
		}
	})
}

// TestMirrorLeavesReplicasAlone holds what a replica gets that does not take a request, and for how long.
func TestMirrorLeavesReplicasAlone(t *testing.T) {
	for _, test := range []struct {
		answer mirrorAnswer
		counts string // of three reports that leave as one and three
		pause  time.Duration
	}{
		{mirrorAnswer{status: 204}, "4 0 0 0", 0},
		{mirrorAnswer{status: 200, text: `{"warnings":["not synced"]}`}, "4 0 0 0", 0},
		{mirrorAnswer{status: 200, text: `{"kept":0,"errors":[{"prompt":0}]}`}, "0 4 0 0", 0},
		{mirrorAnswer{status: 200, text: `{"kept":99}`}, "4 0 0 0", 0},
		{mirrorAnswer{status: 400}, "0 4 0 0", 0},
		{mirrorAnswer{status: 421}, "0 4 0 0", 0},
		{mirrorAnswer{status: 404, text: "no such path"}, "0 0 1 3", unknownPause},
		{mirrorAnswer{status: 405}, "0 0 1 3", unknownPause},
		{mirrorAnswer{status: 401}, "0 0 1 3", shunning},
		{mirrorAnswer{status: 403}, "0 0 1 3", shunning},
		{mirrorAnswer{status: 429}, "0 0 1 3", shunning},
		{mirrorAnswer{status: 503}, "0 0 1 3", shunning},
		{mirrorAnswer{err: errors.New("refused")}, "0 0 1 3", shunning},
	} {
		inMirror(t, []string{"a"}, func(b *mirrorBench) {
			b.report("", "0", 1)
			first := b.next()
			for i := range 3 {
				b.report("", fmt.Sprint(i+1), 1)
			}
			first.answer <- test.answer
			if test.pause == 0 {
				b.expect("a for : 3: 1..3", mirrorAnswer{
					test.answer.status, strings.Replace(test.answer.text, "99", "3", 1), test.answer.err,
				})
			}
			synctest.Wait()
			b.counts(test.counts)
			if test.pause > 0 {
				time.Sleep(test.pause - 1)
				b.report("", "before", 1)
				b.TakenBack(client(""), "t", "before")
				if r := b.next(); r != nil {
					t.Errorf("%v: %s", test.answer, r)
				}
				time.Sleep(time.Nanosecond)
			}
			b.report("", "after", 1)
			b.expect("a for : 1: after..after", kept)
		})
	}
}

// TestMirrorTimesOut holds that a replica that does not answer is given up, and that Close waits for none.
func TestMirrorTimesOut(t *testing.T) {
	inMirror(t, []string{"a"}, func(b *mirrorBench) {
		b.report("", "0", 1)
		first := b.next()
		if time.Sleep(2 * time.Second); b.next() != nil || first.Context().Err() == nil {
			t.Error("it is not given up")
		}
		b.counts("0 0 1 0")
		time.Sleep(shunning)
		b.report("", "1", 1)
		if b.next() == nil {
			t.Error("it is not asked again")
		}
		b.Close()
		b.report("", "2", 1)
		if r := b.next(); r != nil {
			t.Error(r)
		}
	})
}

// TestMirrorTakesBack asks all replicas for a report that this one does not have.
func TestMirrorTakesBack(t *testing.T) {
	inMirror(t, []string{"a", "b", "c"}, func(b *mirrorBench) {
		f := func(want bool, status ...int) {
			t.Helper()
			had := make(chan bool, 1)
			go func() { had <- b.TakeBack(client("x"), "t", "id") }()
			for _, s := range status {
				r := b.next()
				if got := r.String(); got[1:] != " for x: DELETE /conductor/v1/routed/id?tenant_id=t " ||
					r.Header.Get(forward.ForwardedHeader) != "me" {
					t.Error(got, r.Header)
				}
				r.answer <- mirrorAnswer{status: s}
			}
			for range 3 - len(status) {
				b.next()
			}
			if got := <-had; got != want {
				t.Errorf("%v: %v", status, got)
			}
		}
		f(false, 404, 404, 404)
		f(true, 404, 404, 204)
		f(true, 204)
		f(false, 404, 503)
		// The one that never answered gets nothing for a while, so that the next client does not wait for it.
		had := make(chan bool, 1)
		go func() { had <- b.TakeBack(client("x"), "t", "id") }()
		for range 2 {
			b.next().answer <- mirrorAnswer{status: 404}
		}
		if synctest.Wait(); len(b.asked) > 0 || len(had) != 1 {
			t.Errorf("%d more replicas are asked", len(b.asked))
		}
	})
}

// TestMirrorAsksFewAtOnce bounds the requests of clients that take unknown reports back.
func TestMirrorAsksFewAtOnce(t *testing.T) {
	inMirror(t, []string{"a"}, func(b *mirrorBench) {
		had := make(chan bool, 100)
		for range 100 {
			go func() { had <- b.TakeBack(client("x"), "t", "id") }()
		}
		for range 100 {
			synctest.Wait()
			if n := len(b.asked); n > mostAsking {
				t.Fatalf("%d requests are under way", n)
			}
			b.next().answer <- mirrorAnswer{status: 204}
			<-had
		}
	})
}
