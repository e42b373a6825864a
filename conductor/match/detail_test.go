package match

import (
	"testing"
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/stream"
	"example.com/conductor/index"
	"example.com/conductor/index/hash"
)

// TestDetailOfDroppedBlocks lets something happen to a source between the moments at which a query reads its state and the index, by
// which its blocks go: the row must not say that they are what the source has.
func TestDetailOfDroppedBlocks(t *testing.T) {
	key := scope.Deployment{Tenant: scope.DefaultTenant, Model: "m", BlockSize: 1}
	synced := func(epoch, seq uint64) stream.Status {
		return stream.Status{State: stream.Synced, Epoch: epoch, LastSeq: seq, HasSeq: true}
	}
	replaying := SourceDetail{State: stream.Replaying}
	for name, c := range map[string]struct {
		leaves, replaced bool
		after            stream.Status
		want             SourceDetail
	}{
		"a further batch": {after: synced(1, 8), want: SourceDetail{State: stream.Synced, Watermark: 7, HasMark: true}},
		"unregistered":    {leaves: true, after: synced(1, 7), want: replaying},
		"replaced":        {leaves: true, replaced: true, after: synced(1, 7), want: replaying},
		"a new epoch":     {after: synced(2, 7), want: replaying},
		"a loss": {after: stream.Status{State: stream.Partial, Reason: "r", Epoch: 1, LastSeq: 7, HasSeq: true},
			want: SourceDetail{State: stream.Partial, Reason: "r", Watermark: 7, HasMark: true}},
	} {
		all := catalog.New(catalog.Options{Index: index.Options{Scheme: hash.DefaultScheme()}, ExpectedBytes: 1 << 20, Now: time.Now})
		r := registration.Registration{Instance: "i", Tenant: key.Tenant, Model: key.Model, BlockSize: 1}
		findings := &doctor.New(doctor.Registered{}, time.Now).Findings
		var source *catalog.Member
		read := false
		source = catalog.NewMember(r, findings, func() stream.Status {
			if read {
				return c.after
			}
			read = true
			switch {
			case c.replaced:
				all.Replace(source, catalog.NewMember(r, findings, func() stream.Status { return c.after }))
			case c.leaves:
				all.Replace(source, nil)
			}
			return synced(1, 7)
		})
		all.Join(source)
		ans := New(all, nil, time.Now).Query(Query{Model: key.Model, BlockSize: 1, Tokens: []uint32{1, 2}, Detail: true})
		if len(ans.Rows) != 1 || len(ans.Rows[0].Detail) != 1 {
			t.Fatalf("%s: %+v", name, ans.Rows)
		}
		got := ans.Rows[0].Detail[0]
		if got.State != c.want.State || got.Reason != c.want.Reason || got.Watermark != c.want.Watermark || got.HasMark != c.want.HasMark {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
