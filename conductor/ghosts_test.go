package conductor_test

import (
	"slices"
	"strings"
	"testing"

	"example.com/conductor/conductor/ingest"
)

// TestGhostIsRevivedByItsTokens stores blocks below the device after their last copy has
// left it. Their tokens give them their places, also where the deployment remembers their names
// because blocks of another engine wait.
func TestGhostIsRevivedByItsTokens(t *testing.T) {
	for _, from := range []string{"0", "1", "3"} {
		var want []ingest.DeploymentDigest
		for _, before := range []string{"", "store B path=x medium=CPU tokens=no"} {
			inBubble(t, func(t *testing.T, b *bench) {
				b.run("register A")
				b.run("register B")
				if before != "" {
					b.run(before)
				}
				b.run("store A path=a/b/c/d")
				b.run("remove A path=a/b/c/d from=" + from)
				b.run("store A path=a/b/c/d medium=CPU from=" + from)
				b.run("store A path=a/b/c/d/e medium=CPU from=4")
				got := b.conductor.Sources().Digests("A|default|0")[0].Deployments
				if want == nil {
					want = got
				}
				if !slices.Equal(got, want) || got[0].Loose > 0 || got[0].Blocks != 5 {
					t.Errorf("from %s after %q: %+v, want %+v", from, before, got, want)
				}
				for _, err := range b.conductor.Check() {
					t.Error(err)
				}
				b.run("remove A path=a/b/c/d/e medium=CPU from=" + from)
				if n := b.conductor.Sources().Digests("A|default|0")[0].Deployments; from == "0" && len(n) > 0 && n[0].Blocks > 0 {
					t.Errorf("after the removal: %+v", n)
				}
			})
		}
	}
}

// TestGhostKeepsItsLookAhead stores blocks below the device with tokens that lack the
// look-ahead. What the deployment remembers of their names decides.
func TestGhostKeepsItsLookAhead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for _, line := range []string{
			"register A block_size=2", "register B block_size=2",
			"store B path=x block_size=2 medium=CPU tokens=no",
			`event A json={"type":"BlockStored","block_hashes":[41,42],"token_ids":[1,2,3,4],"block_size":2,"lookahead_token_ids":[[3],` +
				`[5]],"medium":"GPU"}`,
			`event A json={"type":"BlockRemoved","block_hashes":[42,41],"medium":"GPU"}`,
			`event A json={"type":"BlockStored","block_hashes":[41,42],"token_ids":[1,2,3,4],"block_size":2,"medium":"CPU"}`,
		} {
			b.run(line)
		}
		for prompt, want := range map[string]string{"1,2,3,4,5": `"longest_matched":4`, "1,2,3,4,6": `"longest_matched":2`,
			"1,2,4": `"longest_matched":0`} {
			if got := b.run(`post /query {"model":"m","block_size":2,"token_ids":[` + prompt +
				`],"instance_id":"A"}`); !strings.Contains(got, want) {
				t.Errorf("prompt %s: %s, want %s", prompt, got, want)
			}
		}
	})
}
