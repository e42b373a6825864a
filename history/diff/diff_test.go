package diff

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history"
	"example.com/conductor/history/historytest"
	"example.com/conductor/internal/must"
)

// with gives a Conductor blocks of one source behind a batch.
func with(t testing.TB, c *conductor.Conductor, instance string, seq uint64, missing string, blocks ...uint64) {
	t.Helper()
	r := c.Sources().Snapshots().Recover(0)
	reg := registration.Registration{Endpoint: "tcp://engine:5557", Instance: instance, Model: "m", BlockSize: 16,
		Type:   registration.TypeVLLM,
		Tenant: "default"}
	must.Succeed(t, r.Source(image.Source{Registration: reg, Mark: &ingest.Mark{Seq: seq, Print: seq, Missing: missing}}))
	for _, b := range blocks {
		must.Succeed(t, r.Stored(&ingest.Stored{
			Source: reg, Shard: scope.Shard{Tenant: "default", Model: "m"}, BlockSize: 16,
			Stretch: &ingest.Stretch{Root: true, Key: b, HasKey: true, Engine: []uint64{b + 100}, ClientHashes: []uint64{b}},
			Local:   []uint64{b},
		}))
	}
	r.Done()
}

// loaded returns the snapshot of a Conductor in memory.
func loaded(t testing.TB, c *conductor.Conductor) *Loaded {
	t.Helper()
	var b bytes.Buffer
	_, err := history.Write(&b, c, nil, historytest.At, nil)
	must.Succeed(t, err)
	l, err := Load(&b, nil)
	must.Succeed(t, err)
	t.Cleanup(l.Close)
	return l
}

// A comparison names each block that one side lacks, and says why.
func TestDiff(t *testing.T) {
	a, b := historytest.Server(t, nil), historytest.Server(t, nil)
	with(t, a, "same", 7, "", 1, 2, 3)
	with(t, b, "same", 7, "", 3, 1, 2)
	with(t, a, "drift", 9, "", 1, 2, 3)
	with(t, b, "drift", 9, "", 1, 3, 4)
	with(t, a, "ahead", 12, "", 1, 2)
	with(t, b, "ahead", 10, "gap_unrecoverable", 1)
	with(t, a, "alone", 1, "", 1)
	var blocks []string
	all, err := Compare(loaded(t, a), loaded(t, b), true, func(b Block) {
		blocks = append(blocks, fmt.Sprint(b.Source, " ", b.Engine, " ", b.Key, " ", b.Second))
	})
	must.Succeed(t, err)
	var got []string
	for _, d := range all {
		got = append(got, fmt.Sprint(d.Source, " ", d.Blocks, " ", d.Only, " ", d.AtEqualBatches, " ", d.Why))
	}
	if want := []string{
		"ahead|default|0 [2 1] [1 0] false the first is 2 batches ahead; the second lacks history: gap_unrecoverable",
		"alone|default|0 [1 0] [1 0] false the second does not know the source",
		"drift|default|0 [3 3] [1 1] true both are at batch 9",
		"same|default|0 [3 3] [0 0] true ",
	}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	slices.Sort(blocks)
	if want := []string{"ahead|default|0 102 2 false", "alone|default|0 101 1 false", "drift|default|0 102 2 false",
		"drift|default|0 104 4 true"}; !slices.Equal(blocks, want) {
		t.Errorf("%q", blocks)
	}
	if _, err := Compare(loaded(t, a), loaded(t, historytest.Server(t, func(o *conductor.Options) { o.HashSeed = 1 })), true,
		nil); err == nil {
		t.Error("two hash seeds compare")
	}
}
