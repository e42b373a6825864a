package membership

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// knowing returns a replica that has tokens.
func knowing(t *testing.T, url, id string, tokens ...string) *Group {
	t.Helper()
	g := member(t, url, id)
	g.cfg.Tokens = func() []string { return tokens }
	return g
}

// unproven returns who is in the store without a proof.
func (s Status) unproven() (all string) {
	for _, r := range s.Unproven {
		all += r.ID
	}
	return all
}

// TestGroupBelievesProofs lets replicas with and without tokens meet.
func TestGroupBelievesProofs(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := knowing(t, url, "a", "new", "old"), knowing(t, url, "b", "new")
	old, other, none := knowing(t, url, "c", "old"), knowing(t, url, "d", "other"), member(t, url, "e")
	all := []*Group{a, b, old, other, none}
	for range 2 {
		for _, g := range all {
			g.Beat(t.Context())
		}
	}
	sees := func(g *Group, proven, unproven string) {
		t.Helper()
		if st := g.Status(); st.ids() != proven || st.unproven() != unproven {
			t.Errorf("replica %s believes %q and not %q, instead of %q and %q", g.ID(), st.ids(), st.unproven(), proven, unproven)
		}
	}
	sees(a, "abc", "de") // while its token is replaced
	sees(b, "ab", "cde")
	sees(old, "c", "abde")
	sees(other, "d", "abce")
	sees(none, "abcde", "") // it has nothing to lose
	if !a.Believes(OriginOf("http://b/path")) || a.Believes(OriginOf("http://d")) || a.Believes(OriginOf("https://b")) ||
		a.Believes(Origin{}) {
		t.Error("a token goes where it should not, or not where it should")
	}
}

// TestGroupBelievesNoForgery writes replicas into the store as somebody who does not know the token can.
func TestGroupBelievesNoForgery(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := knowing(t, url, "a", "token"), knowing(t, url, "b", "token")
	ctx, client, key := t.Context(), a.Store().Client(), a.Store().Key
	b.Beat(ctx)
	said := client.HGet(ctx, key("says"), "b").Val()
	forge := func(what, text, id string, believed bool) {
		t.Helper()
		must.Succeed(t, client.ZAdd(ctx, key("replicas"), redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: id}).Err())
		must.Succeed(t, client.HSet(ctx, key("says"), id, text).Err())
		a.Beat(ctx)
		want, not := "ab", ""
		if !believed {
			want, not = "a", "b"
		}
		if st := a.Status(); st.ids() != want || st.unproven() != not {
			t.Errorf("%s: it believes %q and not %q", what, st.ids(), st.unproven())
		}
	}
	forge("as it was said", said, "b", true)
	body, proof, _ := strings.Cut(said, proofField)
	forge("no proof", body+"}", "b", false)
	forge("another URL", strings.Replace(said, "http://b", "http://evil", 1), "b", false)
	forge("a second URL", strings.Replace(said, proofField, `,"url":"http://evil"`+proofField, 1), "b", false)
	forge("a URL behind the proof", strings.TrimSuffix(said, "}")+`,"url":"http://evil"}`, "b", false)
	forge("a second proof", body+`,"url":"http://evil"`+proofField+proof[:64]+`"`+proofField+proof, "b", false)
	forge("another part of the cluster", strings.Replace(said, `["b"]`, `["x"]`, 1), "b", false)
	forge("an empty token", sign("", key("says"), body+"}"), "b", false)
	forge("a proof for another group", sign("token", "kvconductor:{other}:says", body+"}"), "b", false)

	// What was said once counts no longer than its address is surely that of the replica.
	ago := func(d time.Duration) string {
		r := Replica{ID: "b", URL: "http://b", Signed: time.Now().Add(-d).UnixMilli()}
		text, err := json.Marshal(r)
		must.Succeed(t, err)
		return sign("token", key("says"), string(text))
	}
	forge("a moment ago", ago(time.Second), "b", true)
	forge("long ago", ago(proofLasts*lease+time.Minute), "b", false)
	forge("not yet", ago(-proofLasts*lease-time.Minute), "b", false)
}

// TestGroupKeepsReplicasWhenTheStoreIsSet sets the clock of the store, as when another node of it takes over: what replicas
// signed before is too old or too new then, and they sign by the new clock only in the beat after the next.
func TestGroupKeepsReplicasWhenTheStoreIsSet(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"ahead": 10 * lease, "back": -10 * lease} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := redistest.Start(t).URL()
			a, b := knowing(t, url, "a", "token"), knowing(t, url, "b", "token")
			now := time.Now() // the store is set if the clocks of all replicas are
			for _, g := range []*Group{a, b} {
				g.cfg.Now = func() time.Time { return now }
			}
			beat := func(when string, all ...*Group) {
				t.Helper()
				for _, g := range all {
					g.Beat(t.Context())
					if st := g.Status(); st.ids() != "ab" || st.unproven() != "" || !g.Believes(OriginOf("http://b")) {
						t.Errorf("%s: replica %s believes %q and not %q", when, g.ID(), st.ids(), st.unproven())
					}
				}
			}
			b.Beat(t.Context())
			beat("before", a, b)
			now = now.Add(-by)
			old, err := json.Marshal(Replica{ID: "b", URL: "http://b", Signed: time.Now().Add(-by).UnixMilli()})
			must.Succeed(t, err)
			key := a.Store().Key("says")
			must.Succeed(t, a.Store().Client().HSet(t.Context(), key, "b", sign("token", key, string(old))).Err())
			if by > 0 { // leases end by the clock of the store
				must.Succeed(t, a.Store().Client().ZAdd(t.Context(), a.Store().Key("replicas"), redis.Z{Score: 1, Member: "b"}).Err())
			}
			beat("the first beats", a, b)
			for _, g := range []*Group{a, b} {
				select {
				case <-g.soon:
				default:
					t.Errorf("replica %s signs by the new clock only when its next beat is due", g.ID())
				}
			}
			beat("the next beats", a, b, a, b)
			if len(a.awaited)+len(b.awaited) > 0 {
				t.Errorf("still awaited: %v and %v", a.awaited, b.awaited)
			}

			// A replica that does not come back is gone after a lease, and one that is put in its place is not believed.
			now = now.Add(-by)
			says := a.Store().Client().HGet(t.Context(), key, "b").Val()
			a.Beat(t.Context())
			forged := strings.Replace(says, "http://b", "http://evil", 1)
			must.Succeed(t, a.Store().Client().HSet(t.Context(), key, "b", forged).Err())
			a.Beat(t.Context())
			if a.Believes(OriginOf("http://evil")) {
				t.Error("it believes what nobody has signed")
			}
			now = now.Add(lease)
			a.Beat(t.Context())
			if st := a.Status(); st.ids() != "a" {
				t.Errorf("after a lease it believes %q", st.ids())
			}
		})
	}
}
