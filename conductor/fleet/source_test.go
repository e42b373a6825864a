package fleet

import (
	"fmt"
	"testing"
	"time"

	"kvconductor/conductor"
)

// FuzzParseRecord reads entries of the store: what can be read is written and read again as it was.
func FuzzParseRecord(f *testing.F) {
	f.Add(`["a","default",0]`, `{"at":1,"by":"x","source":{"instance_id":"a","block_size":16,"dp_rank":0,"hash_profile":{"Strategy":"vllm_v1"}}}`)
	f.Add(`["a","default",-1,"asked"]`, `{"at":1,"configured":true,"discover":"http://h","source":{"instance_id":"a","block_size":0,"dp_rank":0}}`)
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

func TestNamesTellSourcesApart(t *testing.T) {
	t.Parallel()
	all := make(map[string]bool)
	for _, s := range []Source{
		{Registration: conductor.Registration{Instance: "a|b", Tenant: "c", BlockSize: 1}},
		{Registration: conductor.Registration{Instance: "a", Tenant: "b|c", BlockSize: 1}},
		{Registration: conductor.Registration{Instance: "a", BlockSize: 1}},
		{Registration: conductor.Registration{Instance: "a"}},
		{Registration: conductor.Registration{Instance: "a", Rank: 1}, Discover: "http://h"},
		{Registration: conductor.Registration{Instance: "a", Rank: 1, BlockSize: 1, TTL: time.Second}},
	} {
		n := s.Name()
		if all[n.field()] {
			t.Errorf("%s is there twice", n.field())
		}
		all[n.field()] = true
	}
}
