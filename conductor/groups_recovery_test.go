package conductor_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/history"
	"example.com/conductor/internal/must"
)

// TestChunksAfterRecovery: a connector that loads whole chunks goes on to do so for a recovered source, whose only group is in no
// snapshot.
func TestChunksAfterRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(streamtest.Network)
		before, after := openReplica(t, network), openReplica(t, network)
		before.run("register A")
		before.run("store A path=a/b/c/d group=0 kind=full_attention")
		before.run("store A path=a/b/c/d medium=CPU group=0 kind=full_attention")
		before.run("remove A path=a/b/c/d from=3")
		const want = `A {"longest_matched":48,`
		if got := before.run("query path=a/b/c/d"); !strings.Contains(got, want) {
			t.Errorf("before: %s", got)
		}
		recoverImage(t, before.conductor, after.conductor, 1)
		after.run("register A")
		if got := after.run("query path=a/b/c/d"); !strings.Contains(got, want) {
			t.Errorf("after: %s", got)
		}
	})
}

// TestGroupsAfterRecovery: a kind may be any text, and spoils no snapshot. What a recovered or replaced source lacks of its groups has a
// finding again.
func TestGroupsAfterRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(streamtest.Network)
		before, after := openReplica(t, network), openReplica(t, network)
		before.run("register A")
		before.run("store A path=a/b group=0 kind=full_attention")
		event := before.storeEvent(args{word: "A", keys: map[string]string{"path": "a/b", "group": "1", "kind": "x"}}).(map[string]any)
		event["kv_cache_spec_kind"] = "of a later engine"
		publish(network.PublisherAt("ipc://A/0"), 0, []any{event}, true, true)
		before.run("register B")
		before.run("store B path=a/b/c")
		before.run("register C")
		before.run("store C path=a/b group=0")
		before.run("store C path=a group=1")
		synctest.Wait()

		var snapshot bytes.Buffer
		_, err := history.Write(&snapshot, before.conductor, nil, time.Now(), nil)
		must.Succeed(t, err)
		_, err = history.Read(&snapshot, history.Reading{Into: after.conductor.Sources().Snapshots().Recover(0)})
		must.Succeed(t, err)
		after.run("register A")
		after.run("register A replace=yes copies=set")
		after.run("register C")
		time.Sleep(3 * time.Minute) // of the bubble: the doctor looks
		const want = `attention group 1 of rank 0: its kind "of a later engine" is not known`
		if got := after.findings(); !strings.Contains(got, want) {
			t.Errorf("findings %q", got)
		}
		answer := after.run("query path=a/b")
		for _, name := range []string{"A", "C"} { // no event names the kind of a group of C
			if !strings.Contains(answer, name+` {"longest_matched":32,"upper_bound":true`) {
				t.Errorf("answer %s", answer)
			}
		}
	})
}
