package membership

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"example.com/conductor/conductor/registration"
)

// FuzzParseRecord reads entries of the store: what can be read is written and read again as it was.
func FuzzParseRecord(f *testing.F) {
	f.Add(`["a","default",0]`, `{"at":1,"by":"x","source":{"instance_id":"a","block_size":16,"dp_rank":0,`+
		`"hash_profile":{"Strategy":"vllm_v1"}}}`)
	f.Add(`["a","default",0]`, `{"at":1,"source":{"instance_id":"a","block_size":16,"dp_rank":0,"events":"none","capacity_blocks":8,`+
		`"approximate":"count"}}`)
	f.Add(`["a","default",-1,"asked"]`,
		`{"at":1,"configured":true,"discover":"http://h","source":{"instance_id":"a","block_size":0,"dp_rank":0}}`)
	f.Add(`["a|b","c\"d",3]`, `{"at":9007199254740991,"gone":true,"swept":true}`)
	f.Fuzz(func(t *testing.T, field, text string) {
		n, at, r, reason := parseRecord(field, text)
		if reason != "" {
			return
		}
		if n.field() != field || at <= 0 || !r.Gone && r.Wire == nil {
			t.Fatalf("%s at %d: %+v", n.field(), at, r)
		}
		m, again, s, reason := parseRecord(n.field(), fmt.Sprintf(`{"at":%d,%s`, at, r.tail()))
		if reason != "" || m != n || again != at || s.tail() != r.tail() {
			t.Fatalf("%s: %s becomes %s", reason, r.tail(), s.tail())
		}
	})
}

// TestRecordKeepsSource requires that an entry of the store has every field of a registration.
func TestRecordKeepsSource(t *testing.T) {
	t.Parallel()
	for _, r := range []registration.Registration{
		{Instance: "e", Endpoint: "tcp://h:1", ReplayEndpoint: "tcp://h:2", Type: registration.TypeVLLM, Model: "m", BlockSize: 16, Rank: 1,
			TTL: time.Minute, Aliases: []string{"n"}, Reports: registration.ReportsFull},
		{Instance: "e", Type: registration.TypeStandard, Model: "m", BlockSize: 16, Events: registration.EventsNone, CapacityBlocks: 8,
			Approximate: registration.ApproximateCount},
	} {
		s, wire := Source{Registration: r}, r
		rec := record{Wire: &wire}
		_, _, got, reason := parseRecord(s.Name().field(), `{"at":1,`+rec.tail())
		if reason != "" || got.Wire == nil || !reflect.DeepEqual(got.source(), s) {
			t.Errorf("%s: %s becomes %+v", reason, rec.tail(), got.Wire)
		}
	}
}

func TestNamesTellSourcesApart(t *testing.T) {
	t.Parallel()
	all := make(map[string]bool)
	for _, s := range []Source{
		{Registration: registration.Registration{Instance: "a|b", Tenant: "c", BlockSize: 1}},
		{Registration: registration.Registration{Instance: "a", Tenant: "b|c", BlockSize: 1}},
		{Registration: registration.Registration{Instance: "a", BlockSize: 1}},
		{Registration: registration.Registration{Instance: "a"}},
		{Registration: registration.Registration{Instance: "a", Rank: 1}, Discover: "http://h"},
		{Registration: registration.Registration{Instance: "a", Rank: 1, BlockSize: 1, TTL: time.Second}},
	} {
		n := s.Name()
		if all[n.field()] {
			t.Errorf("%s is there twice", n.field())
		}
		all[n.field()] = true
	}
}
