package journal

import (
	"strings"
	"testing"

	"kvconductor/internal/must"
)

func TestParseTarget(t *testing.T) {
	f := func(in string, want Target, ok bool) {
		t.Helper()
		if got, err := ParseTarget(in); got != want && ok || (err == nil) != ok {
			t.Errorf("%q: %+v %v, want %+v", in, got, err, want)
		}
	}
	f("a:5", Target{"a", 0, 5}, true)
	f("a|default|0:5", Target{"a|default|0", 0, 5}, true)
	f("a|default|0:2/5", Target{"a|default|0", 2, 5}, true)
	f("host:80|t|1:18446744073709551615", Target{"host:80|t|1", 0, 1<<64 - 1}, true)
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
	for _, s := range []*Source{a, b} {
		for seq := range uint64(6) {
			s.Batch(1, seq, false, []byte("run 1 epoch 1"), nil)
		}
		s.Reset(2, "x")
		for seq := range uint64(3) {
			s.Batch(2, seq, false, []byte("run 1 epoch 2"), nil)
		}
	}
	a.Unregister()
	w.Register("a|default|0").Batch(1, 2, false, []byte("again"), nil)
	w.Close()
	w = create(t, Options{Dir: dir})
	w.Register("a|default|0").Batch(1, 1, false, []byte("run 2"), nil)
	w.Close()
	all, _ := contentsOf(t, dir)
	f := func(target, want string) {
		t.Helper()
		parsed, err := ParseTarget(target)
		must.Succeed(t, err)
		calls := 0
		at, err := Locate(dir, parsed, func(read, total int64) { calls++ })
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
	if _, err := Locate(t.TempDir(), Target{}, nil); err == nil || !strings.Contains(err.Error(), "holds no journal") {
		t.Error(err)
	}
}
