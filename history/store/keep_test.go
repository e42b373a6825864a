package store

import (
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

func TestShelfEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	short := func(c *Config) { c.TTL, c.Interval = 50*time.Millisecond, time.Millisecond }
	a := newMember(t, server, "a", short)
	a.hold("m", 10)
	if st := a.now(); st.Written != 1 {
		t.Fatalf("%+v", st)
	}
	deadline := time.After(2 * time.Minute)
	for len(a.keysOf("shelf")) > 0 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%q stay", a.keysOf("shelf"))
		}
	}
	restored(t, server, short).expect("ended", "")
	if st := a.now(); st.Written != 2 {
		t.Errorf("%+v", st)
	}
}

// TestShelfBound takes the oldest down for a new one, and writes none that is too big alone.
func TestShelfBound(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newMember(t, server, "a", func(c *Config) { c.MaxBytes = 55_000 })
	a.hold("first", 1000)
	a.now()
	a.hold("second", 1000)
	a.now()
	if st := a.now(); st.Snapshots != 2 || st.Evicted != 0 || st.Bytes > 55_000 {
		t.Fatalf("%+v", st)
	}
	before, _, err := a.readManifests(t.Context())
	must.Succeed(t, err)
	a.hold("third", 1500)
	a.writeDue(t.Context(), false)
	all, _, err := a.readManifests(t.Context())
	must.Succeed(t, err)
	gone, stays := "first", "second"
	if manifestOf(all, model(gone)) != nil { // only if both are of the same millisecond
		gone, stays = stays, gone
	}
	if st := a.Status(); st.Evicted != 1 || st.Bytes > 55_000 || len(all) != 2 || manifestOf(all, model(gone)) != nil ||
		manifestOf(before, model(gone)).At > manifestOf(before, model(stays)).At || len(a.keysOf("shelf:*:")) != sum(t, a) {
		t.Errorf("%+v %+v, before %+v", st, all, before)
	}
	b := newMember(t, server, "b", func(c *Config) { c.MaxBytes = 55_000 })
	b.hold("huge", 5000)
	if st := b.now(); st.Failed[failedRoom] != 1 || st.Written != 0 || st.Snapshots != 2 || len(b.keysOf("shelf:*:")) != sum(t, b) {
		t.Errorf("%+v, keys %q", st, b.keysOf("shelf"))
	}
	since := b.Status().Oldest
	if st := b.now(); since.IsZero() || st.Oldest != since {
		t.Errorf("a deployment that never had one counts since %s, and then %s", since, st.Oldest)
	}
}

// TestShelfOneWriter: a deployment has one writer at a time, and a writer whose lock another one
// has taken writes no manifest.
func TestShelfOneWriter(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := newMember(t, server, "a", nil), newMember(t, server, "b", nil)
	a.hold("m", 1000)
	b.hold("m", 1000)
	held := a.c.Sources().Snapshots().HeldDeployments()[0]
	u := &upload{
		k: a.Keeper, ctx: t.Context(), deployment: keyName(held.Deployment), token: "a", sum: sha256.New(),
		m: manifest{ID: "a", Model: "m", BlockSize: 16},
	}
	if at, err := u.run(locking, 60_000, "").Int64(); at == 0 || err != nil {
		t.Fatal(at, err)
	}
	if st := b.now(); st.Written != 0 || len(st.Failed) != 0 {
		t.Errorf("two write: %+v", st)
	}
	// a sleeps for longer than its lock
	if ended, err := a.store().Client().PExpire(t.Context(), a.lockKey(u.deployment), time.Millisecond).Result(); !ended || err != nil {
		t.Fatal(ended, err)
	}
	b.written(1)
	if err := u.writeAll(held); err != errLock {
		t.Errorf("a writer without its lock: %v", err)
	}
	u.undo()
	restored(t, server, nil).expect("two writers", "engine of m 1000 41 shelf\n")
	if got := b.keysOf("shelf:*:"); len(got) != sum(t, b) {
		t.Errorf("%q", got)
	}
	// What was written since the manifest was read is not written once more.
	if err := a.writeDeployment(t.Context(), held, nil); err != errTaken {
		t.Error(err)
	}
}

// TestShelfDue: replicas with synced sources go first, and what was not synced is replaced.
func TestShelfDue(t *testing.T) {
	s := New(Config{Interval: time.Minute})
	f := func(mine, theirs bool, age time.Duration, want bool) {
		t.Helper()
		m := &manifest{At: 1_000_000, Synced: theirs}
		if got := s.isDue(m, ingest.HeldDeployment{Synced: mine}, 1_000_000+age.Milliseconds()); got != want {
			t.Errorf("synced %t, on the shelf %t, %s old: %t", mine, theirs, age, got)
		}
	}
	f(true, true, 59*time.Second, false)
	f(true, true, 60*time.Second, true)
	f(true, false, 0, true)
	f(false, true, 89*time.Second, false)
	f(false, false, 89*time.Second, false)
	f(false, false, 90*time.Second, true)
	f(true, true, -2*time.Minute, true) // the clock of the store was put back
	if !s.isDue(nil, ingest.HeldDeployment{}, 0) {
		t.Error("one that is not there is not due")
	}
}

// TestShelfFullStore: a store without room costs the snapshot alone.
func TestShelfFullStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
	a := newMember(t, server, "a", nil)
	a.hold("m", 10)
	a.hold("n", 200_000)
	a.now()
	if st := a.Status(); st.Written != 1 || st.Failed[failedStore] != 1 || !strings.Contains(st.Error, "OOM") ||
		len(a.keysOf("shelf:*:")) != sum(t, a) {
		t.Errorf("%+v, %d keys", st, len(a.keysOf("shelf:*:")))
	}
	restored(t, server, nil).expect("a full store", "engine of m 10 41 shelf\n")
}
