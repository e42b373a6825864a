package history

import (
	"bytes"
	"testing"
	"time"

	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history/historytest"
	"example.com/conductor/internal/must"
)

// A snapshot of another replica, such as one of an older program that does not know a field, has the blocks of a source as its
// registration there reads the events. If the registration here reads them in another way, the source takes none of them,
// whether it is registered before, while or after the snapshot is loaded.
func TestSnapshotsOfOtherSettings(t *testing.T) {
	a := historytest.Server(t, nil)
	historytest.Fill(t, a, 1, 10)
	data := write(t, a, nil)
	f := func(what string, blocks int, change func(*registration.Registration)) {
		t.Helper()
		reg := historytest.Registration("a")
		change(&reg)
		for _, when := range []string{"before", "while", "after"} {
			c := historytest.Server(t, nil)
			register := func(now string) {
				if now == when {
					must.Succeed(t, c.Register(reg, ingest.RegisterOptions{AnyEndpoint: true}))
				}
			}
			register("before")
			r := c.Sources().Snapshots().Recover(0)
			_, err := Read(bytes.NewReader(data), Reading{Into: r})
			must.Succeed(t, err)
			register("while")
			r.Done()
			register("after")
			if got := historytest.Held(c); len(got) != 1 || got["a"] != blocks {
				t.Errorf("%s, registered %s: %v", what, when, got)
			}
			for _, err := range c.Check() {
				t.Errorf("%s, registered %s: %v", what, when, err)
			}
		}
	}
	f("the same", 20, func(*registration.Registration) {})
	f("another way to its replays", 20, func(r *registration.Registration) { r.ReplayEndpoint = "tcp://engine:5558" })
	f("another snapshot endpoint", 20, func(r *registration.Registration) { r.SnapshotEndpoint = "tcp://engine:5559" })
	f("aliases", 20, func(r *registration.Registration) { r.Aliases = []string{"n"} })
	f("reports", 0, func(r *registration.Registration) { r.Reports = registration.ReportsFull })
	f("copies", 0, func(r *registration.Registration) { r.Copies = "set" })
	f("owned, which the blocks are held to", 20, func(r *registration.Registration) { r.Owned = registration.OwnedDrop })
	f("clear", 0, func(r *registration.Registration) { r.Clear = registration.ClearDevice })
	f("ttl", 0, func(r *registration.Registration) { r.TTL = time.Minute })
	f("an adapter", 0, func(r *registration.Registration) { r.Lora = "l" })
	f("a salt", 0, func(r *registration.Registration) { r.Salt = "s" })
	f("another way to the publisher", 20, func(r *registration.Registration) { r.Endpoint = "tcp://other:5557" })
}

// Where a registration comes while the head of such a snapshot is read, the rest of the snapshot is not its own either.
func TestSnapshotsOfOtherSettingsInPieces(t *testing.T) {
	c := historytest.Server(t, nil)
	old := historytest.Registration("a")
	r := c.Sources().Snapshots().Recover(0)
	must.Succeed(t, r.Source(image.Source{Registration: old, Mark: &ingest.Mark{Seq: 1}}))
	reg := old
	reg.Reports = registration.ReportsFull
	must.Succeed(t, c.Register(reg, ingest.RegisterOptions{AnyEndpoint: true}))
	words := []uint64{1, 2}
	must.Succeed(t, r.Stored(&ingest.Stored{Source: old, Shard: scope.Shard{Tenant: "default", Model: "m"}, BlockSize: 16,
		Stretch: &ingest.Stretch{Root: true, Engine: words, ClientHashes: words}, Local: words}))
	r.Done()
	if got := historytest.Held(c); got["a"] != 0 || r.Refused != 2 {
		t.Errorf("%v, %d blocks were refused", got, r.Refused)
	}
}
