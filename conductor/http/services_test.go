package http

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/reply"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/internal/must"
)

var rewrite = flag.Bool("rewrite", false, "write the rows of this run into testdata")

// fullSource has a value in every field that a row of /services shows. Its maps have one entry, because msgpack does not sort
// them.
func fullSource() *status.Source {
	at := time.Date(2026, 3, 4, 5, 6, 7, 8e6, time.FixedZone("", 3600))
	seq := uint64(1 << 40)
	return &status.Source{
		Registration: registration.Registration{
			Endpoint: "tcp://a:1", ReplayEndpoint: "tcp://a:2", SnapshotEndpoint: "tcp://a:3", Type: registration.TypeMooncake,
			Model: "m<1>", Lora: "l", Tenant: "t", Instance: "i", BlockSize: 16, Rank: 3, Salt: "s", TTL: time.Minute,
			MediaTTL: map[string]time.Duration{"DISK": time.Hour}, Serves: []string{"e", "f"}, Aliases: []string{"n", "o"},
			Copies: "set", Reports: "full", Owned: "drop", Clear: "device", MayAnnounce: []string{"u"}, Sequence: "shared",
			Events: "none", CapacityBlocks: 70000, Approximate: "count",
			Profile: registration.HashProfile{Strategy: "vllm_v1", Algorithm: "sha256", PythonHashSeed: "0", IndexProjection: "low64_be",
				RootDigest: "ab", ExtraKeys: "tagged"},
		},
		By: registration.Registrar{Kind: registration.ByClient, Name: "ann", At: at},
		Status: stream.Status{
			State: stream.Partial, Reason: "history_unknown", Epoch: 2, Gaps: 3, Replayed: 4, Restarts: 5, Overruns: 6, Duplicates: 7,
			Reconnects: 8, Snapshots: 9, SnapshotFailures: map[string]uint64{"timeout": 10}, SnapshotReason: "failed",
			SnapshotState: "applied", Dropped: map[events.Reason]uint64{"a": 11}, LastError: "e", Queued: 13,
		},
		LastSeq: &seq, Blocks: 100, Orphans: 14, Objects: 15, HistoryFrom: "replay", SnapshotBlocks: 16, AsksSnapshots: true,
		Events: 17, Age: 1500 * time.Millisecond,
		Findings: []doctor.Finding{{Code: doctor.FindingBlockSize, Message: "m", Since: at}},
		Expected: &status.Expectations{
			Prompts: 1, Expected: 2, Confirmed: 3, Expired: 4, TakenBack: 5, Dropped: 6, Evicted: 7, Pending: 8,
			Delay: [3]time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond}, TTL: 2 * time.Second,
		},
	}
}

// TestServiceBytes holds that a row of /services has the same bytes in every release: names, their order, what is left out
// and what is null.
func TestServiceBytes(t *testing.T) {
	f := func(s *status.Source) string {
		row := s.Service()
		return fmt.Sprintf("%s\n%x\n", reply.Encode(body.JSON, row), reply.Encode(body.Msgpack, row))
	}
	out := f(fullSource())
	out += f(&status.Source{Age: -1})
	out += f(&status.Source{AsksSnapshots: true, Expected: new(status.Expectations)}) // objects that have only nulls and zeros
	const file = "testdata/services.txt"
	if *rewrite {
		must.Succeed(t, os.WriteFile(file, []byte(out), 0o644))
	}
	want, err := os.ReadFile(file)
	must.Succeed(t, err)
	got, wanted := strings.Split(out, "\n"), strings.Split(string(want), "\n")
	for i := range wanted {
		if len(got) != len(wanted) || got[i] != wanted[i] {
			t.Fatalf("%s:%d: got\n%s\nwant\n%s", file, i+1, got[i], wanted[i])
		}
	}
}
