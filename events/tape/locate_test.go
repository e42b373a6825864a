package tape

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/internal/must"
)

func TestParseTarget(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f := func(in string, want Target, ok bool) {
		t.Helper()
		if got, err := ParseTarget(in, now); got != want && ok || (err == nil) != ok {
			t.Errorf("%q: %+v %v, want %+v", in, got, err, want)
		}
	}
	f("a:5", Target{Source: "a", Epoch: 0, Seq: 5}, true)
	f("a|default|0:5", Target{Source: "a|default|0", Epoch: 0, Seq: 5}, true)
	f("a|default|0:2/5", Target{Source: "a|default|0", Epoch: 2, Seq: 5}, true)
	f("host:80|t|1:18446744073709551615", Target{Source: "host:80|t|1", Epoch: 0, Seq: 1<<64 - 1}, true)
	f("2026-03-01T11:00:00Z", Target{Time: now.Add(-time.Hour)}, true)
	f("2026-03-01T11:59:59.5Z", Target{Time: now.Add(-time.Second / 2)}, true)
	f("20m", Target{Time: now.Add(-20 * time.Minute)}, true)
	f("0s", Target{Time: now}, true)
	f("2026-03-01T11:00:00|default|0:5", Target{Source: "2026-03-01T11:00:00|default|0", Seq: 5}, true)
	f("-20m", Target{}, false)
	f("2026-03-01", Target{}, false)
	f("2026-03-01T25:00:00Z", Target{}, false)
	f("0001-01-01T00:00:00Z", Target{}, false)
	f("a", Target{}, false)
	f(":5", Target{}, false)
	f("a:", Target{}, false)
	f("a:x", Target{}, false)
	f("a:0/5", Target{}, false)
	f("a:/5", Target{}, false)
	f("a:1/", Target{}, false)
	f("a:-1", Target{}, false)
	f("a:18446744073709551616", Target{}, false)
}

// TestLocateFindsBatches looks for batches of two runs, several epochs and a source that was
// registered twice.
func TestLocateFindsBatches(t *testing.T) {
	dir := t.TempDir()
	w := create(t, Options{Dir: dir})
	a, b := w.Register("a|default|0"), w.Register("b|default|0")
	w.Register("b|default|1")
	w.Register("silent|default|0")
	for _, s := range []*Recorder{a, b} {
		for seq := range uint64(6) {
			s.RecordBatch(1, seq, false, []byte("run 1 epoch 1"), nil)
		}
		s.RecordReset(2, "x")
		for seq := range uint64(3) {
			s.RecordBatch(2, seq, false, []byte("run 1 epoch 2"), nil)
		}
	}
	a.Unregister()
	w.Register("a|default|0").RecordBatch(1, 2, false, []byte("again"), nil)
	w.Close()
	w = create(t, Options{Dir: dir})
	w.Register("a|default|0").RecordBatch(1, 1, false, []byte("run 2"), nil)
	w.Close()
	all, _ := contentsOf(t, dir)
	f := func(target, want string) {
		t.Helper()
		parsed, err := ParseTarget(target, time.Time{})
		must.Succeed(t, err)
		calls := 0
		at, _, err := Locate(dir, nil, parsed, func(read, total int64) { calls++ })
		got := ""
		for i := range all {
			if err == nil && all[i].At == at {
				got = string(all[i].Payload)
			}
		}
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) || calls != len(all) {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
	f("a:5", "run 1 epoch 1")
	f("a|default|0:0", "run 1 epoch 2")
	f("a:2", "again")
	f("a:1", "run 2")
	f("a:1/0", "run 1 epoch 1")
	f("a:2/1", "run 1 epoch 2")
	f("b|default|0:1", "run 1 epoch 2")
	f("b:1", `"b" is several sources: "b|default|0", "b|default|1"`)
	f("b|default|1:1", `holds no batch of "b|default|1"`)
	f("silent:0", `holds no batch of "silent|default|0"`)
	f("a:9", `no batch 9 of "a|default|0"; it holds 1/0 to 1/5, 2/0 to 2/2, 1/2 to 1/2, 1/1 to 1/1`)
	f("a:3/1", `no batch 3/1 of "a|default|0"; it holds`)
	f("ghost:1", `no source "ghost"; it holds "a|default|0", "b|default|0", "b|default|1", "silent|default|0"`)
	f("a|default:1", "run 2")
	if _, _, err := Locate(t.TempDir(), nil, Target{}, nil); err == nil || !strings.Contains(err.Error(), "holds no journal") {
		t.Error(err)
	}
}

// TestLocateFindsTimes looks for times before, in, between and after the runs of a journal,
// and where the clock of the server stepped back.
func TestLocateFindsTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		start := time.Now()
		w := create(t, Options{Dir: dir})
		a, b := w.Register("a|default|0"), w.Register("b|default|0")
		for i := range uint64(3) {
			time.Sleep(time.Minute)
			a.RecordBatch(1, i, false, fmt.Appendf(nil, "a%d", i), nil)
			time.Sleep(time.Second)
			b.RecordBatch(1, i, false, fmt.Appendf(nil, "b%d", i), nil)
		}
		w.Close()
		time.Sleep(time.Hour)
		w = create(t, Options{Dir: dir})
		w.Register("a|default|0").RecordBatch(1, 0, false, []byte("run 2"), nil)
		w.Register("a|default|0")
		w.Close()
		all, _ := contentsOf(t, dir)
		f := func(after time.Duration, want string) {
			t.Helper()
			at, runs, err := Locate(dir, nil, Target{Time: start.Add(after)}, nil)
			got := ""
			for i := range all {
				if err == nil && all[i].At == at {
					got = all[i].Kind.String() + " " + string(all[i].Payload)
				}
			}
			if err != nil {
				got = err.Error()
			}
			if !strings.HasPrefix(got, want) {
				t.Errorf("%v: %q, want %q", after, got, want)
			}
			if len(runs.List) != 2 {
				t.Errorf("%d runs", len(runs.List))
			}
		}
		f(-time.Nanosecond, "the journal holds nothing of 1999-12-31T23:59:59.999999999Z; it begins at 2000-01-01T00:00:00Z")
		f(0, "registered")
		f(time.Minute-1, "registered")
		f(time.Minute, "batch a0")
		f(time.Minute+time.Second-1, "batch a0")
		f(2*time.Minute+time.Second, "batch a1")
		f(2*time.Minute+2*time.Second, "batch b1")
		f(time.Hour, "batch b2")
		f(24*time.Hour, "registered")

		_, runs, err := Locate(dir, nil, Target{Time: time.Now()}, nil)
		must.Succeed(t, err)
		first, second := runs.List[0], runs.List[1]
		if first.Sources != 2 || first.Batches != 6 || first.Cut ||
			!first.First.Equal(start) || !first.Last.Equal(start.Add(3*time.Minute+3*time.Second)) || first.ID != all[0].Run {
			t.Errorf("the first run: %+v", first)
		}
		if second.Sources != 1 || second.Batches != 1 || second.Cut || second.ID == first.ID || second.End != all[len(all)-1].At {
			t.Errorf("the second run: %+v", second)
		}
	})
}

// TestRunsShowCutBeginning: a run whose first segments are gone began before the journal.
func TestRunsShowCutBeginning(t *testing.T) {
	dir := t.TempDir()
	w := create(t, Options{Dir: dir})
	s := w.Register("a|default|0")
	for seq := range uint64(12) {
		s.RecordBatch(1, seq, false, make([]byte, 1<<20), nil)
	}
	w.Close()
	all, _ := contentsOf(t, dir)
	_, runs, err := Locate(dir, nil, Target{Source: "a", Seq: 11}, nil)
	must.Succeed(t, err)
	if len(runs.List) != 1 || !runs.List[0].Cut || runs.List[0].Sources != 1 || all[0].At.Segment == 1 {
		t.Errorf("%+v from segment %d on", runs.List, all[0].At.Segment)
	}
}
