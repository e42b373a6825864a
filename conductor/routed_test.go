package conductor_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/internal/must"
)

// expectedRows prints the rows of a path with Expected.
func (b *bench) expectedRows(path string) string {
	var out []string
	for _, r := range b.conductor.Query(match.Query{Model: "m", BlockSize: 16, Tokens: promptOf(path, 16), Expected: true}).Rows {
		text := fmt.Sprintf("%s %d/%d", r.Instance, r.Longest, r.Expected)
		for _, rank := range r.Ranks {
			text += fmt.Sprintf(" %d:%d/%d", rank.Rank, rank.External, rank.Expected)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func (b *bench) routed(path, target string, rank int, ttl time.Duration, id string) error {
	r := match.Routed{Query: match.Query{Model: "m", BlockSize: 16, Tokens: promptOf(path, 16)}, Target: target, Rank: rank,
		TTL: ttl, RequestID: id}
	_, err := b.view().Routed(&r)
	return err
}

// askForID asks where a prompt may go, and returns the id of the answer, "" if it is not kept.
func (b *bench) askForID(t *testing.T, q match.Query) (id string) {
	t.Helper()
	q.Keep = true
	must.Succeed(t, conductor.Candidates(b.view(), &q, func(a *match.Answer, _ registration.Meaning) { id = match.FormatAnswerID(a.ID) }))
	return id
}

func (b *bench) view() conductor.View { return b.conductor.For(conductor.Reader{}) }

// TestRouted follows the expected blocks between a report and the events that follow it.
func TestRouted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.run("register A")
		b.run("register A rank=1")
		b.run("register B")
		check := func(path, want string) {
			t.Helper()
			if got := b.expectedRows(path); got != want {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
		b.run("store A path=a/b")
		check("a/b/c/d", "A 2/2 0:2/2 1:0/0, B 0/0 0:0/0")
		must.Succeed(t, b.routed("a/b/c/d", "A", 0, 0, ""))
		must.Succeed(t, b.routed("a/b/c/x", "A", match.AnyRank, 0, ""))
		must.Succeed(t, b.routed("a/b", "B", match.AnyRank, 0, "one"))
		check("a/b/c/d", "A 2/4 0:2/4 1:0/0, B 0/2 0:0/2")
		check("a/b/c/x", "A 2/4 0:2/3 1:0/0, B 0/2 0:0/2")
		if got := b.run("query path=a/b/c/d"); strings.Contains(got, "xpected") {
			t.Error(got)
		}
		b.run("store A path=a/b/c from=2")
		check("a/b/c/d", "A 3/4 0:3/4 1:0/0, B 0/2 0:0/2")
		b.run("store A path=a/b/c/d from=3")
		b.run("remove A path=a/b/c/d from=3")
		check("a/b/c/d", "A 3/3 0:3/3 1:0/0, B 0/2 0:0/2")
		check("a/b/c/x", "A 3/4 0:3/3 1:0/0, B 0/2 0:0/2")
		must.Succeed(t, b.view().TakeBack("", "one"))
		check("a/b/c/d", "A 3/3 0:3/3 1:0/0, B 0/0 0:0/0")
		if err := b.view().TakeBack("", "one"); !errors.Is(err, ingest.ErrNotFound) {
			t.Error(err)
		}
		must.Succeed(t, b.routed("y/z", "B", 0, time.Second, ""))
		check("y/z", "A 0/0 0:0/0 1:0/0, B 0/2 0:0/2")
		time.Sleep(time.Second)
		check("y/z", "A 0/0 0:0/0 1:0/0, B 0/0 0:0/0")
		must.Succeed(t, b.routed("y/z", "B", 0, time.Minute, ""))
		b.run("clear B")
		check("y/z", "A 0/0 0:0/0 1:0/0, B 0/0 0:0/0")
		for _, bad := range []struct {
			target string
			rank   int
			want   string
		}{{"C", 0, "instance_id [A B]"}, {"A", 2, "dp_rank [0 1]"}} {
			err := b.routed("a", bad.target, bad.rank, 0, "")
			var unknown *match.UnknownNameError
			if !errors.As(err, &unknown) || fmt.Sprint(unknown.Field, " ", unknown.Known) != bad.want {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, m := range b.conductor.Meter().Memory() {
			if m.Name == "expected" && m.Bytes != 0 {
				t.Errorf("%d bytes are left", m.Bytes)
			}
		}
	})
}

// TestReportByIDAfterAnotherLookAhead restarts an engine with another look-ahead between an answer and the report that names it. The
// answer has no hashes for that look-ahead, so the report is refused. For an engine that is as before it is kept, and so is a report by
// the id of a later answer.
func TestReportByIDAfterAnotherLookAhead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		asked := match.Query{Model: "m", BlockSize: 16, Tokens: append(promptOf("a/b", 16), behind), Expected: true}
		report := func(id, target string) error {
			_, err := b.view().Routed(&match.Routed{AnswerID: id, Target: target, Rank: match.AnyRank, TTL: time.Minute})
			return err
		}
		expected := func(want string) {
			t.Helper()
			got := ""
			for _, row := range b.conductor.Query(asked).Rows {
				got += fmt.Sprint(row.Instance, row.Longest, row.Expected, " ")
			}
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		b.run("register A")
		b.run("register B")
		b.run("store A path=z")
		b.run("store B path=z")
		before := b.askForID(t, asked)
		b.run("restart A")
		b.run("wait 5s") // until the stream has connected again
		b.run("store A path=y hashed=sglang_bigram")
		if err := report(before, "A"); !errors.As(err, new(*match.UnknownAnswerError)) {
			t.Errorf("for the engine that restarted: %v", err)
		}
		expected("A0 0 B0 0 ")
		must.Succeed(t, report(before, "B"))
		expected("A0 0 B0 2 ")
		must.Succeed(t, report(b.askForID(t, asked), "A"))
		expected("A0 2 B0 2 ")
		b.run("store A path=a/b hashed=sglang_bigram")
		expected("A2 2 B0 2 ")
	})
}

// TestUnknownRank holds that the ranks in place of an unknown one are in the order of numbers, the first 32.
func TestUnknownRank(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var want []string
		for i := range 40 {
			b.run(fmt.Sprintf("register A rank=%d", (i*7)%40))
			want = append(want, fmt.Sprint(i))
		}
		var unknown *match.UnknownNameError
		if err := b.routed("a", "A", 99, 0, ""); !errors.As(err, &unknown) || !slices.Equal(unknown.Known, want[:32]) {
			t.Errorf("%v: %v", err, unknown.Known)
		}
	})
}

// TestRoutedApproximate follows the blocks of engines that publish no events.
func TestRoutedApproximate(t *testing.T) {
	for _, word := range []string{"", registration.ApproximateCount} {
		inBubble(t, func(t *testing.T, b *bench) {
			must.Succeed(t, b.conductor.Register(registration.Registration{
				Events: registration.EventsNone, CapacityBlocks: 4, Approximate: word, TTL: time.Minute, Type: "Standard", Model: "m",
				Instance: "A", BlockSize: 16,
			}, ingest.RegisterOptions{}))
			b.run("register B")
			check := func(path, plain, counted string) {
				t.Helper()
				want := plain
				if word != "" {
					want = counted
				}
				if got := b.expectedRows(path); got != want {
					t.Errorf("%s: %s, want %s", path, got, want)
				}
				for _, r := range b.conductor.Query(match.Query{Model: "m", BlockSize: 16, Tokens: promptOf(path, 16)}).Rows {
					if r.Approximate != (r.Instance == "A") {
						t.Errorf("%s: %+v", path, r)
					}
				}
			}
			check("a/b", "A 0/0 0:0/0, B 0/0 0:0/0", "A 0/0 0:0/0, B 0/0 0:0/0")
			must.Succeed(t, b.routed("a/b/c", "A", 0, 0, ""))
			time.Sleep(40 * time.Second)
			check("a/b/c", "A 0/3 0:0/3, B 0/0 0:0/0", "A 3/3 0:3/3, B 0/0 0:0/0")
			must.Succeed(t, b.routed("x/y", "A", match.AnyRank, 0, "r")) // c has to leave
			check("a/b/c", "A 0/2 0:0/2, B 0/0 0:0/0", "A 2/2 0:2/2, B 0/0 0:0/0")
			check("x/y", "A 0/2 0:0/2, B 0/0 0:0/0", "A 2/2 0:2/2, B 0/0 0:0/0")
			must.Succeed(t, b.view().TakeBack("", "r"))
			check("x/y", "A 0/0 0:0/0, B 0/0 0:0/0", "A 0/0 0:0/0, B 0/0 0:0/0")
			must.Succeed(t, b.routed("a", "A", 0, 0, ""))
			time.Sleep(30 * time.Second)
			check("a/b", "A 0/1 0:0/1, B 0/0 0:0/0", "A 1/1 0:1/1, B 0/0 0:0/0")
			time.Sleep(time.Minute)
			synctest.Wait()
			for _, m := range b.conductor.Meter().Memory() {
				if m.Name == "expected" && m.Bytes != 0 {
					t.Errorf("%d bytes are left", m.Bytes)
				}
			}
		})
	}
}

// TestReportsRaceUnregistering reports to engines without events that are unregistered meanwhile, and holds that
// nothing is left of them.
func TestReportsRaceUnregistering(t *testing.T) {
	b := newBench()
	defer b.conductor.Close()
	engine := func(name string) registration.Registration {
		return registration.Registration{Events: registration.EventsNone, CapacityBlocks: 100, Type: "Standard", Model: "m", Instance: name,
			BlockSize: 16}
	}
	must.Succeed(t, b.conductor.Register(engine("B"), ingest.RegisterOptions{}))
	for range times(2000) {
		must.Succeed(t, b.conductor.Register(engine("A"), ingest.RegisterOptions{}))
		begun, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			close(begun)
			for b.routed("a/b/c", "A", 0, 0, "") == nil {
			}
		}()
		<-begun
		_, err := b.conductor.Unregister(registration.Key{Instance: "A"})
		must.Report(t, err)
		<-done
		for _, m := range b.conductor.Meter().Memory() {
			if m.Name == "expected" && m.Bytes != 0 {
				t.Fatalf("%d bytes are left", m.Bytes)
			}
		}
	}
}
