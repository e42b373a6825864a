package zmq

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"example.com/conductor/events/payload"
	"example.com/conductor/internal/must"
)

// desk is a listener without a socket. Its messages are of ranks a to z, which the sources of claims follow.
type desk struct {
	t     *testing.T
	l     *listener
	boxes []*mailbox
	got   []string // of each mailbox
}

func newDesk(t *testing.T, claims string) *desk {
	d := &desk{t: t, l: &listener{rank: lastLetter, holds: make(map[subject]uint64)}}
	for _, letter := range claims {
		b := newMailbox(t.Context(), Claim{"e", "m", int(letter - 'a')}, nil)
		b.refusals = new(refusals)
		d.boxes, d.got = append(d.boxes, b), append(d.got, "")
		d.l.addMailbox(b)
	}
	return d
}

func lastLetter(p []byte) (int, bool) { return int(p[len(p)-1] - 'a'), true }

// deal takes messages such as 7b, with the number 7 and of rank 1, and the end of the connection, which is a slash.
func (d *desk) deal(script string) {
	from := &sender{conn: 1, from: &net.TCPAddr{}}
	for _, word := range strings.Fields(script) {
		if word == "/" {
			d.l.releaseSubjects(from.conn, io.EOF)
			from = &sender{conn: from.conn + 1, from: from.from}
			continue
		}
		number, err := strconv.ParseUint(word[:len(word)-1], 10, 64)
		must.Succeed(d.t, err)
		m := payload.Message{Frames: [][]byte{[]byte("kv@e@m"), binary.BigEndian.AppendUint64(nil, number), []byte(word)}}
		for _, b := range d.l.mailboxesOf(m, from) {
			d.got[slices.Index(d.boxes, b)] += word + " "
		}
	}
}

// TestNumberings deals out messages. No source claims some of their ranks.
func TestNumberings(t *testing.T) {
	f := func(script, claims string, want ...string) {
		t.Helper()
		d := newDesk(t, claims)
		d.deal(script)
		for i := range want {
			if got := strings.TrimSpace(d.got[i]); got != want[i] {
				t.Errorf("%q: the source of %q gets\n%s, want\n%s", script, claims[i:i+1], got, want[i])
			}
		}
	}
	// Numbered together: from the fourth message of the own rank on the source gets all.
	f("0a 1b 2c 3a 4b 5a 6a 7c 8a 9b 10c 11a", "a", "0a 3a 5a 6a 8a 9b 10c 11a")
	f("0b 1c 2a 3b 4a 5c 6a 7b 8a 9b", "a", "2a 4a 6a 8a 9b")
	f("57b 59a 60b 61a 62c 63a 64b 65a 66b 67c", "a", "59a 61a 63a 65a 66b 67c")
	f("0a 1b 2a 3b 4a 5b 6a 7b / 8b 9a 10b 11a 12b 13a 14b 15a 16b", "a", "0a 2a 4a 6a 7b 9a 11a 13a 15a 16b")
	// Messages are lost, or another process of the engine follows over the connection of a forwarder.
	f("0a 1b 2a 3b 4a 5b 6a 9b 10a 13a 15c", "a", "0a 2a 4a 6a 9b 10a 13a 15c")
	f("0a 1b 2a 3b 4a 5b 6a 7b 0b 1a 2b 3a", "a", "0a 2a 4a 6a 7b 1a 2b 3a")
	f("0a 1b 2a 4b 5a 6b 7a 8b 9a 10b", "a", "0a 2a 5a 7a 9a 10b")
	// Each for itself: in step, alone, with other numbers, and with losses that look as if not.
	f("0a 0b 1a 1b 2a 2b 3a 3b", "a", "0a 1a 2a 3a")
	f("0b 0a 1b 1a 2b 2a 3b 3a", "a", "0a 1a 2a 3a")
	f("7a 8b 8a 9b 9a 10b 10a", "a", "7a 8a 9a 10a")
	f("0b 1b 2b 0a 3b 1a", "a", "0a 1a")
	f("0a 1b 1a 1b 3a 4b 5a 6b 7a 8b 9a 10b", "a", "0a 1a 3a 5a 7a 9a")
	f("5a 0b 1b 6a 2b 7a", "a", "5a 6a 7a")
	f("0a 1b 2a 3b 4a 5b 6a 7b 7a 8b 8a", "a", "0a 2a 4a 6a 7b 7a 8a") // three such losses: the mistake ends at once
	f("0b 1b 2b 3b", "a", "")
	// Several ranks are claimed.
	f("0a 1b 2a 3b 4a 5b 6a 7b 8a 9b", "ab", "0a 2a 4a 6a 7b 8a 9b", "1b 3b 5b 7b 8a 9b")
	f("0a 0b 0c 1a 1b 1c 2b 2c 2a", "ab", "0a 1a 2a", "0b 1b 2b")
}

// TestNumberingModel: whatever the order, losses and number of ranks, a source gets all its own messages, of ranks that are numbered
// together all from some point on, and of ranks that number for themselves no other, unless three messages in a row are lost
// before any has shown that.
func TestNumberingModel(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		together, ranks := seed%2 == 0, 2+r.IntN(4)
		next, sent := make([]uint64, ranks), []string(nil)
		for range 200 {
			rank := r.IntN(ranks)
			of := &next[rank]
			if together {
				of = &next[0]
			}
			if r.IntN(50) > 0 {
				sent = append(sent, fmt.Sprintf("%d%c", *of, 'a'+rank))
			}
			*of++
		}
		d := newDesk(t, "a")
		d.deal(strings.Join(sent, " "))
		got := strings.Fields(d.got[0])
		own := slices.DeleteFunc(slices.Clone(sent), func(s string) bool { return !strings.HasSuffix(s, "a") })
		only := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return !strings.HasSuffix(s, "a") })
		if !slices.Equal(only, own) {
			t.Fatalf("seed %d: own messages are %s, want %s", seed, only, own)
		}
		if !together && len(got) > len(own) {
			t.Fatalf("seed %d: ranks with numbers of their own are mixed: %s", seed, got)
		}
		if n := min(len(got), 60); together && !slices.Equal(got[len(got)-n:], sent[len(sent)-n:]) {
			t.Fatalf("seed %d: the last messages are %s, want %s", seed, got[len(got)-n:], sent[len(sent)-n:])
		}
	}
}
