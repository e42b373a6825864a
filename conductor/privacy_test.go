package conductor_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/match"
	"example.com/conductor/events"
)

// TestSaltedOnly asks with and without salts for blocks with and without.
func TestSaltedOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.SaltedOnly, o.KeepClientHashes = true, true })
		defer b.conductor.Close()
		b.run("register A")
		b.run("store A path=s/t")
		b.run("store A path=s salt=pepper")
		if answer := b.run("query path=s/t"); strings.Contains(answer, `"longest_matched":32`) ||
			strings.Contains(answer, `"longest_matched":16`) {
			t.Errorf("without a salt: %s", answer)
		}
		if answer := b.run("query path=s salt=pepper"); !strings.Contains(answer, `"longest_matched":16`) {
			t.Errorf("with the salt: %s", answer)
		}
		// What is hidden was not looked up, so that a report cannot name it.
		keeps := func(salt string) bool {
			return b.askForID(t, match.Query{Model: "m", BlockSize: 16, Tokens: promptOf("s/t", 16), Salt: salt}) != ""
		}
		if keeps("") || !keeps("pepper") {
			t.Errorf("an answer has an id without a salt: %v, with one: %v", keeps(""), keeps("pepper"))
		}
	})
}

// TestMaxTokenID holds that a token id beyond the vocabulary costs its event or its query.
func TestMaxTokenID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.MaxTokenID = 1 << 30 })
		defer b.conductor.Close()
		b.run("register A")
		b.run("store A path=s")
		view := b.conductor.For(conductor.Reader{})
		q := match.Query{Model: "m", BlockSize: 16, Tokens: []uint32{1, 1 << 30, 1<<30 + 1}}
		if err := view.Answer(&q, func(*match.Answer) {}); err == nil ||
			!strings.Contains(err.Error(), "element 2 is 1073741825, limits.max_token_id allows 1073741824") {
			t.Errorf("a query: %v", err)
		}
		small := newBenchWith(nil, zerolog.Nop(), func(o *conductor.Options) { o.MaxTokenID = 1 })
		defer small.conductor.Close()
		small.run("register A")
		small.run("store A path=s")
		if s := small.conductor.Services()[0]; s.Dropped[events.BadToken] != 1 || s.Blocks != 0 || b.conductor.Services()[0].Blocks != 1 {
			t.Errorf("an event: %v, %d blocks", s.Dropped, s.Blocks)
		}
	})
}
