package conductor_test

import (
	"errors"
	"fmt"
	"io"

	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/replay"

	nethttp "net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/scripttest"
	"example.com/conductor/events/tape"
	"example.com/conductor/internal/must"
)

// replayed rebuilds what a journal holds, as far as keep says.
func replayed(t *testing.T, dir string, keep func(*tape.Record) bool) *replay.Replay {
	t.Helper()
	r, err := tape.Open(dir, nil)
	must.Succeed(t, err)
	p := replay.New(conductor.Options{Log: zerolog.Nop()})
	var rec tape.Record
	for {
		if err := r.Next(&rec); errors.Is(err, io.EOF) {
			return p
		} else if err != nil {
			t.Fatal(err)
		}
		if keep == nil || keep(&rec) {
			must.Report(t, p.Take(&rec))
		}
	}
}

// recordedBench is a bench and the directory it records into.
func recordedBench(t *testing.T, dir string) (*bench, *tape.Tape) {
	t.Helper()
	// The settings of newRecordedBench.
	settings := replay.Settings(&conductor.Options{HashSeed: 1337, GhostBytes: 1 << 20})
	w, err := tape.Create(tape.Options{Dir: dir, MaxBytes: tape.MinBytes, Settings: settings})
	must.Succeed(t, err)
	return newRecordedBench(w), w
}

// TestReplayScripts runs the scripts with a journal. After every command, or every fifth
// under the race detector, it replays the journal so far. Both Conductors give the same
// answers.
func TestReplayScripts(t *testing.T) {
	const least = 500 // answers
	compared, commands, each := 0, 0, least/times(least)
	eachScript(t, func(t *testing.T, file string) {
		dir := t.TempDir()
		b, w := recordedBench(t, dir)
		defer w.Close()
		defer b.conductor.Close()
		steps, _ := scripttest.Parse(t, file)
		reported := false // what routers report is in no journal
		for _, st := range steps {
			line := st.Raw[0]
			b.run(line)
			reported = reported || st.Name == "routed"
			if commands++; commands%each != 0 {
				continue
			}
			ask := "services show=State,Reason,Epoch,LastSeq,Blocks,Objects,HashProfile"
			if st.Name == "query" && !reported {
				ask = line
			}
			p := replayed(t, dir, nil)
			past := &bench{conductor: p.Conductor(), handler: handlerOf(p.Conductor())}
			for _, ask := range []string{ask, "get /global_view"} {
				if got, want := told(past.run(ask)), told(b.run(ask)); got != want {
					t.Errorf("%s:%d: after %s: %s\nthen:\n%s\nnow:\n%s", file, st.Line, line, ask, want, got)
				}
				compared++
			}
			if sum := p.Summary(); sum.Lost > 0 || sum.Stray > 0 {
				t.Errorf("%s:%d: %+v", file, st.Line, sum)
			}
			p.Conductor().Close()
		}
	})
	if compared < times(least) {
		t.Errorf("only %d answers compared", compared)
	}
}

// TestReplayAgedWithoutTTL: aged records of older journals say no time to live. They
// are about all blocks of a source, which had one.
func TestReplayAgedWithoutTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b, w := recordedBench(t, dir)
		defer w.Close()
		defer b.conductor.Close()
		runAll(b, "register A ttl=10s", "register pool type=Mooncake replay=no ttl=10s", "store A path=a", "store A path=b medium=CPU",
			"put pool path=b",
			"wait 6s", "store A path=a", "wait 5s")
		aged := 0
		p := replayed(t, dir, func(rec *tape.Record) bool {
			if rec.Kind == tape.Aged {
				rec.Seq = 0
				aged++
			}
			return true
		})
		defer p.Conductor().Close()
		past := &bench{conductor: p.Conductor(), handler: handlerOf(p.Conductor())}
		const ask, want = "services show=Blocks,Objects", "A|default|0 Blocks=1 Objects=<nil>\npool|default|0 Blocks=0 Objects=0\n"
		if now, then := b.run(ask), past.run(ask); now != want || then != want || aged != 4 {
			t.Errorf("now:\n%sthen:\n%swant:\n%s%d records aged", now, then, want, aged)
		}
	})
}

var (
	age      = regexp.MustCompile(`"age_ms":[0-9]+`)
	stay     = regexp.MustCompile(`"(1|10)s":[0-9.]+`)
	redacted = regexp.MustCompile(`"redacted:[0-9a-f]{16}"`)
)

// told takes out of an answer the parts that a journal does not promise: its clock stands
// still at the last record, and each process has its own texts for salts.
func told(answer string) string {
	answer = age.ReplaceAllString(answer, `"age_ms":0`)
	answer = stay.ReplaceAllString(answer, "")
	answer = redacted.ReplaceAllString(answer, `"redacted"`)
	return strings.NewReplacer("=stale", "=connecting", `"stale"`, `"connecting"`).Replace(answer)
}

// TestReplayIncomplete leaves records out and holds that the sources they are of
// say so, and only those.
func TestReplayIncomplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b, w := recordedBench(t, dir)
		b.run("register A")
		b.run("register B")
		b.run("store A path=a")
		b.run("store B path=a")
		b.run("store A path=a/b from=1")
		b.run("store B path=a/b from=1")
		b.run("store A path=a/b/c from=2")
		b.conductor.Close()
		w.Close()
		b, w = recordedBench(t, dir) // the server is started again
		defer b.conductor.Close()
		defer w.Close()
		b.run("register C")
		b.run("store C path=a")
		b.run("restart C")
		b.run("wait 10s")
		b.run("store C path=a/b")

		f := func(what string, keep func(*tape.Record) bool, want ...string) {
			t.Helper()
			p := replayed(t, dir, keep)
			past := &bench{conductor: p.Conductor(), handler: handlerOf(p.Conductor())}
			if got := past.run("services"); got != strings.Join(want, "\n")+"\n" {
				t.Errorf("%s:\n%s\nwant\n%s", what, got, strings.Join(want, "\n"))
			}
			p.Conductor().Close()
		}
		first := func(rec *tape.Record) bool { return rec.At.Segment == 1 }
		f("all", nil, "C|default|0 State=synced Reason= Epoch=2 LastSeq=0 Blocks=2")
		f("the first run", first,
			"A|default|0 State=synced Reason= Epoch=1 LastSeq=2 Blocks=3", "B|default|0 State=synced Reason= Epoch=1 LastSeq=1 Blocks=2")
		f("a reset is lost", func(r *tape.Record) bool { return r.Kind != tape.Reset },
			"C|default|0 State=partial Reason=journal_gap Epoch=2 LastSeq=0 Blocks=2")
		damaged := false // the record before
		f("a batch is damaged", func(r *tape.Record) bool {
			r.AfterDamage, damaged = damaged, r.Source == 1 && r.Seq == 1 && r.Kind == tape.Batch
			return first(r) && !damaged
		}, "A|default|0 State=partial Reason=journal_gap Epoch=1 LastSeq=2 Blocks=2",
			"B|default|0 State=synced Reason= Epoch=1 LastSeq=1 Blocks=2")
		f("batches are said to be lost", func(r *tape.Record) bool {
			if r.Source == 1 && r.Seq == 1 && r.Kind == tape.Batch {
				*r = tape.Record{Kind: tape.Lost, Source: 1, Seq: 1, Run: r.Run, At: r.At}
			}
			return first(r)
		}, "A|default|0 State=partial Reason=journal_gap Epoch=1 LastSeq=2 Blocks=2",
			"B|default|0 State=synced Reason= Epoch=1 LastSeq=1 Blocks=2")
		// The same run, as if its first segment had ended behind B's first batch.
		opening := func(r *tape.Record, then func(*tape.Record)) bool {
			switch {
			case !first(r) || r.Kind == tape.Batch && r.Seq == 0:
				return false
			case r.Kind == tape.Registered:
				r.Flags, r.Seq = tape.Standing|tape.HasSeq, 0
			}
			then(r)
			return true
		}
		f("the journal begins late", func(r *tape.Record) bool { return opening(r, func(*tape.Record) {}) },
			"A|default|0 State=partial Reason=before_journal Epoch=1 LastSeq=2 Blocks=2",
			"B|default|0 State=partial Reason=before_journal Epoch=1 LastSeq=1 Blocks=1")
		if _, err := b.conductor.Unregister(registration.Key{Instance: "C"}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestReplayProfiles replays a past with two profiles in one context. The record by which
// one of them left is missing.
func TestReplayProfiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b, w := recordedBench(t, dir)
		defer w.Close()
		defer b.conductor.Close()
		b.run("register A profile=sha256/0")
		b.run("unregister A")
		b.run("register B profile=sha256/1")
		p := replayed(t, dir, func(rec *tape.Record) bool { return rec.Kind != tape.Unregistered })
		defer p.Conductor().Close()
		var got []string
		for _, s := range p.Conductor().Services() {
			got = append(got, s.Instance+" "+s.Profile.PythonHashSeed)
		}
		if want := []string{"A 0", "B 1"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// TestReplaySegments replays segments of one run with one missing: their
// openings differ from the state that is known.
func TestReplaySegments(t *testing.T) {
	p := replay.New(conductor.Options{Log: zerolog.Nop()})
	services := func() string {
		past := &bench{conductor: p.Conductor(), handler: handlerOf(p.Conductor())}
		return strings.TrimSpace(past.services(args{}))
	}
	take := func(r tape.Record) {
		t.Helper()
		r.Run = 7
		must.Report(t, p.Take(&r))
	}
	register := func(segment uint64, id uint32, name string, flags uint8, epoch, seq uint64) {
		t.Helper()
		take(tape.Record{Kind: tape.Registered, Flags: flags, Source: id, Epoch: epoch, Seq: seq, At: tape.Position{Segment: segment},
			Payload: tape.AppendFields(nil,
				tape.Field{Name: "endpoint", Value: "ipc:///x"}, tape.Field{Name: "type", Value: "vLLM"},
				tape.Field{Name: "modelname", Value: "m"},
				tape.Field{Name: "instance_id", Value: name}, tape.Field{Name: "block_size", Value: "16"},
				tape.Field{Name: "dp_rank", Value: "0"},
			)})
		take(tape.Record{Kind: tape.State, Source: id, Payload: tape.AppendFields(nil, tape.Field{Name: "state", Value: "synced"})})
	}
	want := func(lines ...string) {
		t.Helper()
		if got := services(); got != strings.Join(lines, "\n") {
			t.Errorf("%s\nwant\n%s", got, strings.Join(lines, "\n"))
		}
	}
	const standing, marked = tape.Standing, tape.Standing | tape.HasSeq
	take(tape.Record{Kind: tape.Settings, At: tape.Position{Segment: 3}})
	take(tape.Record{Kind: tape.Begin, At: tape.Position{Segment: 3}})
	for id, name := range []string{"none", "gone", "moved", "restarted", "behind", "same"} {
		if id > 0 {
			register(3, uint32(id), name, 0, 1, 0)
		}
	}
	take(tape.Record{Kind: tape.Settings, At: tape.Position{Segment: 5}})
	register(5, 3, "restarted", marked, 2, 4)
	register(5, 4, "behind", marked, 1, 9)
	register(5, 5, "same", standing, 1, 0)
	register(5, 6, "moved", standing, 1, 0)
	register(5, 7, "new", marked, 1, 1)
	take(tape.Record{Kind: tape.Begin, Seq: 5, At: tape.Position{Segment: 5}})
	want("behind|default|0 State=partial Reason=journal_gap Epoch=1 LastSeq=9 Blocks=0",
		"moved|default|0 State=synced Reason= Epoch=1 LastSeq=<nil> Blocks=0",
		"new|default|0 State=partial Reason=journal_gap Epoch=1 LastSeq=1 Blocks=0",
		"restarted|default|0 State=partial Reason=journal_gap Epoch=2 LastSeq=4 Blocks=0",
		"same|default|0 State=synced Reason= Epoch=1 LastSeq=<nil> Blocks=0")
	// An opening that cannot be read whole takes nothing away.
	take(tape.Record{Kind: tape.Settings, At: tape.Position{Segment: 6}})
	register(6, 5, "same", standing, 1, 0)
	take(tape.Record{Kind: tape.Begin, Seq: 5, At: tape.Position{Segment: 6}})
	if n := strings.Count(services(), "\n") + 1; n != 5 {
		t.Errorf("%d sources are left of 5", n)
	}
	// A new epoch is whole.
	take(tape.Record{Kind: tape.Reset, Source: 4, Epoch: 2, Payload: []byte("publisher_restarted")})
	take(tape.Record{Kind: tape.Batch, Source: 9})
	if got := services(); !strings.Contains(got, "behind|default|0 State=synced Reason= Epoch=2") || p.Summary().Stray != 1 {
		t.Errorf("%s\n%+v", got, p.Summary())
	}

	for _, r := range []tape.Record{
		{Kind: tape.Registered, Source: 20, Payload: []byte{1}},
		{Kind: tape.Registered, Source: 20},
		{Kind: tape.Batch, Source: 5, Epoch: 1, Payload: []byte("no msgpack")},
		{Kind: tape.State, Source: 5, Payload: []byte{200}},
	} {
		r.Run = 7
		if err := p.Take(&r); err == nil {
			t.Errorf("%+v is taken", r)
		}
	}
	p.Conductor().Close()
}

// TestPastIsReadOnly asks a rebuilt Conductor to change.
func TestPastIsReadOnly(t *testing.T) {
	c := replay.New(conductor.Options{Log: zerolog.Nop()}).Conductor()
	defer c.Close()
	b := &bench{conductor: c, handler: handlerOf(c)}
	for _, answer := range []string{b.register(args{word: "A"}), b.post("/unregister", map[string]any{"instance_id": "A", "dp_rank": 0})} {
		if !strings.HasPrefix(answer, fmt.Sprint(nethttp.StatusForbidden)) || !strings.Contains(answer, "read_only") {
			t.Error(answer)
		}
	}
}
