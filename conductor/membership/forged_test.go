package membership

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// forgeReplica writes what no replica says of itself, and a lease until a time unless that is 0.
func forgeReplica(t *testing.T, g *Group, field, text string, ends float64) {
	t.Helper()
	client, key := g.Store().Client(), g.Store().Key
	if text != "" {
		must.Succeed(t, client.HSet(t.Context(), key("says"), field, text).Err())
	}
	if ends != 0 {
		must.Succeed(t, client.ZAdd(t.Context(), key("replicas"), redis.Z{Score: ends, Member: field}).Err())
	}
}

// TestGroupForgetsForgedReplicas writes replicas into the store that no replica can have written. They are not listed, and leave
// the store; a lease that is too long ends as those of replicas do.
func TestGroupForgetsForgedReplicas(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := member(t, url, "a"), member(t, url, "b")
	client, key, ctx := a.Store().Client(), a.Store().Key, t.Context()
	a.Beat(ctx)
	b.Beat(ctx)
	says := func(id string) string { return fmt.Sprintf(`{"id":%q,"url":"http://evil","weight":1}`, id) }
	in := func(d time.Duration) float64 { return float64(time.Now().Add(d).UnixMilli()) }
	forgeReplica(t, a, "ghost", says("ghost"), 0)
	forgeReplica(t, a, "bare", "", in(lease))
	forgeReplica(t, a, strings.Repeat("bare", maxSaid), "", in(lease))
	forgeReplica(t, a, "big", says("big")+strings.Repeat(" ", maxSaid), in(lease))
	forgeReplica(t, a, "other", says("a"), in(lease))
	forgeReplica(t, a, "inf", says("inf"), math.Inf(1))
	forgeReplica(t, a, "days", says("days"), in(12*24*time.Hour))
	forgeReplica(t, a, "url", fmt.Sprintf(`{"id":"url","url":"http://evil/%s"}`, strings.Repeat("x", 4_000_000)), in(lease))
	for range 2 {
		for _, g := range []*Group{a, b} {
			g.Beat(ctx)
			if st := g.Status(); !st.Up || st.ids() != "abdaysinf" {
				t.Errorf("replica %s sees %.100q: %.1000s", g.ID(), st.ids(), st.Error)
			}
		}
	}
	want := []string{"a", "b", "days", "inf", "other", "url"}
	ids := client.HKeys(ctx, key("says")).Val()
	if slices.Sort(ids); !slices.Equal(ids, want) {
		t.Errorf("%d replicas say something: %.100q", len(ids), ids)
	}
	ids = nil
	for _, z := range client.ZRangeWithScores(ctx, key("replicas"), 0, -1).Val() {
		ids = append(ids, z.Member.(string))
		if z.Score > in(longestLeases*lease) {
			t.Errorf("the lease of %.10s ends at %f", z.Member, z.Score)
		}
	}
	if slices.Sort(ids); !slices.Equal(ids, want) {
		t.Errorf("%d replicas have leases: %.100q", len(ids), ids)
	}
	must.Succeed(t, client.ZAdd(ctx, key("replicas"), redis.Z{Score: 1, Member: "inf"}, redis.Z{Score: 1, Member: "days"}).Err())
	a.Beat(ctx)
	if st := a.Status(); st.ids() != "ab" {
		t.Errorf("after the leases: %q", st.ids())
	}
}

// TestGroupLogsManyReplicasOnce writes many replicas with long names into the store.
func TestGroupLogsManyReplicasOnce(t *testing.T) {
	t.Parallel()
	a := member(t, redistest.Start(t).URL(), "a")
	var log strings.Builder
	a.cfg.Log = zerolog.New(&log)
	a.Beat(t.Context())
	client, key := a.Store().Client(), a.Store().Key
	ends := float64(time.Now().Add(lease).UnixMilli())
	for n, many := range []int{3, 1000} {
		log.Reset()
		pipe := client.Pipeline()
		for i := range many {
			id := fmt.Sprintf("f%d-%d", n, i)
			text, _ := json.Marshal(Replica{ID: id, URL: "http://evil/" + strings.Repeat("x", 2000)})
			pipe.HSet(t.Context(), key("says"), id, text)
			pipe.ZAdd(t.Context(), key("replicas"), redis.Z{Score: ends, Member: id})
		}
		_, err := pipe.Exec(t.Context())
		must.Succeed(t, err)
		a.Beat(t.Context())
		came := log.String()
		log.Reset()
		must.Succeed(t, client.Del(t.Context(), key("says")).Err())
		a.Beat(t.Context())
		left := log.String()
		lines := many
		if many > mostLines {
			lines = 1
			if count := fmt.Sprintf(`"replicas":%d`, many); !strings.Contains(came, count) || !strings.Contains(left, count) {
				t.Errorf("%.1000s%.1000s", came, left)
			}
		}
		if strings.Count(came, "\n") != lines || strings.Count(left, "\n") != lines || len(came) > lines*500 || len(left) > lines*500 {
			t.Errorf("%d replicas come and go, instead of in %d lines each, with %.1000s%.1000s", many, lines, came, left)
		}
	}
}

// TestGroupBoundsWhatItSays holds that a replica which has more to say than others read tells it, and is no longer there.
func TestGroupBoundsWhatItSays(t *testing.T) {
	t.Parallel()
	a := member(t, redistest.Start(t).URL(), "a")
	size := maxSaid
	a.AddFacts("shards", func() json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", size) + `"`) })
	a.Beat(t.Context())
	if st := a.Status(); st.Up || !strings.Contains(st.Error, "bytes") || len(st.Error) > 1000 {
		t.Errorf("%.1000s", st.Error)
	}
	size = maxSaid - 1000
	a.Beat(t.Context())
	if st := a.Status(); !st.Up || st.ids() != "a" {
		t.Errorf("%.1000s", st.Error)
	}
}
