package membership

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"
	"time"

	"example.com/conductor/redact"
)

// What a replica says of itself decides where the others send queries, reports and the token that they show each other.
// A client of the store could say it for a server of its own. So replicas that have a token prove with each beat
// that they know it, and believe only replicas that do: the others are asked nothing.
//
//	{"id":...,"url":...,"signed":TIME,...,"proof":"HMAC-SHA256 of all before it"}
//
// TIME is by the store's clock. A proof ends soon after the lease that was renewed with it: an address of a replica that is
// gone may be somebody else's.

// proofField begins the last field of what a replica says.
const proofField = `,"proof":"`

// proofLasts is how long a proof counts, in leases: clocks of the nodes of a store may differ.
const proofLasts = 2

// proofOf returns the proof of a text under a token. name is that of a key of the store, so that a proof counts in one group alone.
func proofOf(token, name, text string) string {
	derive := hmac.New(sha256.New, []byte(token))
	derive.Write([]byte("conductor: what a replica says of itself"))
	sum := hmac.New(sha256.New, derive.Sum(nil))
	sum.Write([]byte(name + "\n" + text))
	return hex.EncodeToString(sum.Sum(nil))
}

// sign adds the proof to what a replica says, a JSON object.
func sign(token, name, says string) string {
	text := strings.TrimSuffix(says, "}")
	return text + proofField + proofOf(token, name, text) + `"}`
}

// proves reports whether what a replica says has a proof under one of some tokens.
func proves(tokens []string, name, says string) bool {
	i := strings.LastIndex(says, proofField)
	if i < 0 {
		return false
	}
	for _, token := range tokens {
		if hmac.Equal([]byte(says[i:]), []byte(proofField+proofOf(token, name, says[:i])+`"}`)) {
			return true
		}
	}
	return false
}

// tokens returns the tokens of this replica, none if it has no token.
func (g *Group) tokens() []string {
	if g.cfg.Tokens == nil {
		return nil
	}
	return g.cfg.Tokens()
}

// splitProven returns the replicas that this one believes, and the others. All are believed where there is no token, and what
// this one has just said whatever the clocks are.
func (g *Group) splitProven(all []said, mine string, now time.Time) (proven, unproven []Replica) {
	tokens, name := g.tokens(), g.cfg.Store.Key("says")
	for i := range all {
		r := &all[i]
		fresh := now.Sub(time.UnixMilli(r.Signed)).Abs() <= proofLasts*g.cfg.Lease
		if len(tokens) == 0 || r.text == mine || fresh && proves(tokens, name, r.text) {
			proven = append(proven, r.Replica)
		} else {
			unproven = append(unproven, r.Replica)
		}
	}
	return proven, unproven
}

// logUnproven logs that there are replicas without a proof, at most once in complainEvery: there may be many.
func (g *Group) logUnproven(st *Status) {
	now := g.cfg.Now()
	if len(st.Unproven) == 0 || !g.complained.IsZero() && now.Sub(g.complained) < complainEvery {
		return
	}
	g.complained = now
	r := &st.Unproven[0]
	g.cfg.Log.Error().Int("replicas", len(st.Unproven)).Str("replica", shortened(r.ID)).Str("url", shortened(redact.URL(r.URL))).
		Str("version", shortened(r.Version)).
		Msg("replicas of this store do not prove that they know the token of peer.token_file, and are asked nothing: " +
			"give all replicas the same token and a version that proves it; else somebody has written them into the store")
}

// Origin is what a URL says of its server.
type Origin struct{ Scheme, Host string }

// OriginOf returns the origin of a URL, the zero value for a text that cannot be read.
func OriginOf(text string) Origin {
	at, err := url.Parse(text)
	if err != nil {
		return Origin{}
	}
	return Origin{at.Scheme, at.Host}
}

// Believes reports whether a replica that is in Status.Replicas has an origin: the token may be sent there.
func (g *Group) Believes(at Origin) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return at.Host != "" && g.status.origins[at]
}
