package watch

import (
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/status"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/tiers"
)

// fullSource has a value in every field that the live page shows of a source.
func fullSource() *status.Source {
	seq := uint64(1 << 40)
	return &status.Source{
		Registration: registration.Registration{Type: registration.TypeVLLM, Model: "m<1>", Lora: "l", Tenant: "t", Instance: "i",
			BlockSize: 16, Rank: 3},
		Status: stream.Status{
			State: stream.Partial, Reason: "history_unknown", Epoch: 2, Gaps: 3, Restarts: 5, Queued: 13, LastError: "e",
			Snapshots: 9, SnapshotFailures: map[string]uint64{"timeout": 10, "failed": 1}, SnapshotReason: "failed",
			SnapshotState: "applied", Dropped: map[events.Reason]uint64{"a": 11, "b": 12},
		},
		LastSeq: &seq, Blocks: 100, HistoryFrom: "replay", SnapshotBlocks: 16, AsksSnapshots: true, Waits: 1500 * time.Millisecond,
		Media: []status.MediumBlocks{
			{Medium: tiers.Medium{Tier: tiers.Host, Name: "CPU"}, Blocks: 40},
			{Medium: tiers.Medium{Tier: tiers.Device, Name: "GPU"}, Blocks: 60},
			{Medium: tiers.Medium{Tier: tiers.Other, Name: "TAPE"}, Blocks: 1},
		},
		Findings: []doctor.Finding{{Code: doctor.FindingBlockSize, Message: "m"}},
		Expected: &status.Expectations{
			Prompts: 1, Expected: 2, Confirmed: 3, Expired: 4, TakenBack: 5, Dropped: 6, Evicted: 7, Pending: 8,
			Delay: [3]time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond}, TTL: 2 * time.Second,
		},
	}
}

// TestBatchRowCountsMoves holds that an event which moves blocks counts as one that stores and one that removes.
func TestBatchRowCountsMoves(t *testing.T) {
	b := &ingest.AppliedBatch{At: time.Unix(0, 0), Events: []events.Event{
		{Kind: events.Moved, Hashes: []uint64{7, 8}, From: "GPU", Medium: "CPU"},
		{Kind: events.Stored, Hashes: []uint64{9}},
		{Kind: events.Cleared},
	}}
	const want = `"stored":2,"removed":1,"cleared":1,"blocks":3,"medium":"CPU"`
	if got := string(batchRow(b)); !strings.Contains(got, want) {
		t.Errorf("%s lacks %s", got, want)
	}
}

// TestRowBytes holds that a row of the live page has the same bytes in every release: names, their order, what is left out
// and what is null.
func TestRowBytes(t *testing.T) {
	f := func(s *status.Source, rate float64, want string) {
		t.Helper()
		var e body.Encoder
		appendRow(&e, s, &row{key: s.Key(), rate: rate, worst: worstOf(s)})
		want = strings.ReplaceAll(want, "\n\t\t", "")
		if got := string(e.Out); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	f(fullSource(), 0.5, `
		{"source":"i|t|3","instance_id":"i","tenant_id":"t","dp_rank":3,"type":"vLLM","model_name":"m<1>","lora_name":"l",
		"block_size":16,"state":"partial","reason":"history_unknown","severity":"error","epoch":2,"last_seq":1099511627776,"blocks":100,
		"tiers":{"device":60,"host":40,"disk":0,"other":1},"lag_ms":1500,"queued":13,"events_per_s":0.5,"gaps":3,"restarts":5,
		"dropped":23,"history_from":"replay","engine_snapshot":{"state":"applied","reason":"failed","blocks":16,"applied":9,
		"failed":11},"findings":[{"code":"block_size_mismatch","severity":"error","text":"m"}],"last_error":"e",
		"expected":{"prompts":1,"tokens":2,"confirmed":3,"expired":4,"taken_back":5,"dropped":6,"evicted":7,"pending":8,
		"confirmed_share":0.4286,"delay_p50_s":0.001,"delay_p90_s":0.002,"delay_p99_s":0.003,"ttl_s":2}`)
	f(new(status.Source), 0, `
		{"source":"||0","instance_id":"","tenant_id":"","dp_rank":0,"type":"","model_name":"","lora_name":"","block_size":0,
		"state":"","reason":"","severity":"warning","epoch":0,"last_seq":null,"blocks":0,
		"tiers":{"device":0,"host":0,"disk":0},"lag_ms":0,
		"queued":0,"events_per_s":0,"gaps":0,"restarts":0,"dropped":0,"history_from":"","findings":[],"last_error":""`)
	f(&status.Source{AsksSnapshots: true, Expected: new(status.Expectations)}, 1e6, `
		{"source":"||0","instance_id":"","tenant_id":"","dp_rank":0,"type":"","model_name":"","lora_name":"","block_size":0,
		"state":"","reason":"","severity":"warning","epoch":0,"last_seq":null,"blocks":0,
		"tiers":{"device":0,"host":0,"disk":0},"lag_ms":0,
		"queued":0,"events_per_s":1000000,"gaps":0,"restarts":0,"dropped":0,"history_from":"","engine_snapshot":{"state":"",
		"reason":"","blocks":0,"applied":0,"failed":0},"findings":[],"last_error":"","expected":{"prompts":0,"tokens":0,
		"confirmed":0,"expired":0,"taken_back":0,"dropped":0,"evicted":0,"pending":0,"confirmed_share":null,
		"delay_p50_s":null,"delay_p90_s":null,"delay_p99_s":null,"ttl_s":null}`)
}

// BenchmarkRow encodes a row with all of its fields.
func BenchmarkRow(b *testing.B) {
	s := fullSource()
	r := &row{key: s.Key(), rate: 0.5}
	var e body.Encoder
	for b.Loop() {
		e.Out = e.Out[:0]
		appendRow(&e, s, r)
	}
}
