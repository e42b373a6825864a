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

func newDesk(t *testing.T, claims string, memory *payload.Memory) *desk {
	d := &desk{t: t, l: &listener{rank: lastLetter, sequences: make(map[subject]*sequence), transport: Transport{Memory: memory}}}
	for _, letter := range claims {
		d.claim(letter, memory)
	}
	return d
}

func (d *desk) claim(letter rune, memory *payload.Memory) {
	b := newMailbox(d.t.Context(), Claim{"e", "m", int(letter - 'a')}, memory)
	b.refusals = new(refusals)
	d.boxes, d.got = append(d.boxes, b), append(d.got, "")
	d.l.addMailbox(b)
}

func lastLetter(p []byte) (int, bool) { return int(p[len(p)-1] - 'a'), true }

// deal takes messages such as 7b, with the number 7 and of rank 1, and the end of the connection, which is a slash.
func (d *desk) deal(conn uint64, script string) {
	for _, word := range strings.Fields(script) {
		if word == "/" {
			d.l.releaseSubjects(conn, io.EOF)
			conn++
			continue
		}
		number, err := strconv.ParseUint(word[:len(word)-1], 10, 64)
		must.Succeed(d.t, err)
		block := payload.TakeBlock(len(word))
		batch := block.Bytes[:copy(block.Bytes, word)]
		m := payload.Message{Frames: [][]byte{[]byte("kv@e@m"), binary.BigEndian.AppendUint64(nil, number), batch}, Block: block}
		d.l.dealMessage(m, conn, &net.TCPAddr{})
	}
	for i, b := range d.boxes {
		for _, one := range b.queue {
			if one.isEnd() {
				d.got[i] += "/ "
				continue
			}
			d.got[i] += string(one.message.Frames[2]) + " "
			one.message.Block.Release()
		}
		b.queue, b.bytes = nil, 0
		b.share.Set(0, 0)
	}
}

// TestSequences deals out messages of which some have ranks that no source claims.
func TestSequences(t *testing.T) {
	f := func(script, claims string, want ...string) {
		t.Helper()
		d := newDesk(t, claims, nil)
		d.deal(1, script)
		for i := range want {
			if got := strings.TrimSpace(d.got[i]); got != want[i] {
				t.Errorf("%q: the source of %q gets\n%s, want\n%s", script, claims[i:i+1], got, want[i])
			}
		}
	}
	// Numbered together, from the first message on or not, over one connection after the other.
	f("0a 1b 2c 3a 4b 5a 6a 7c 8a 9b 10c", "a", "0a 1b 2c 3a 4b 5a 6a 7c 8a 9b 10c")
	f("0b 1c 2a 3b 4a 5c 6a 7b", "a", "0b 1c 2a 3b 4a 5c 6a 7b")
	f("57b 58c 59a 60b 61a 62c 63a 64b 65a 66b", "a", "59a 60b 61a 62c 63a 64b 65a 66b")
	f("0b 1a 2b 3a 4b 5a 6b / 7b 8c 9a 10b", "a", "0b 1a 2b 3a 4b 5a 6b / 7b 8c 9a")
	f("0b 1a 2b 3a 4b 5a 6b / 0b 1c 2a 3b", "a", "0b 1a 2b 3a 4b 5a 6b / 0b 1c 2a")
	f("0a 1a / 0b 1b 2a 3a", "a", "0a 1a / 0b 1b 2a 3a") // it comes to the same number
	// Messages are lost, or a process follows another over the connection of a forwarder.
	f("0a 1b 2a 3b 4a 5b 6a 9b 10a 13a 15c", "a", "0a 1b 2a 3b 4a 5b 6a 9b 10a 13a 15c")
	f("0a 1b 2a 3b 4a 5b 6a 7b 0c 1b 2a 3b", "a", "0a 1b 2a 3b 4a 5b 6a 7b 0c 1b 2a")
	f("0a 1b 2a 3b 4a 5b 6a 7b 0a 1b 2a", "a", "0a 1b 2a 3b 4a 5b 6a 7b 0a 1b 2a")
	f("0a 1b 2a 4b 5a 6b 7a", "a", "0a 1b 2a 5a 6b 7a")
	f("57b 0a 1b 2a 3b 4a", "a", "0a 1b 2a 3b 4a")
	// Each for itself: in step, alone, with other numbers, and with losses that look as if not.
	f("0a 0b 1a 1b 2a 2b 3a 3b", "a", "0a 1a 2a 3a")
	f("0b 0a 1b 1a 2b 2a 3b 3a", "a", "0a 1a 2a 3a")
	f("7a 8b 8a 9b 9a 10b 10a", "a", "7a 8a 9a 10a")
	f("0b 1b 2b 0a 3b 1a", "a", "0a 1a")
	f("0a 1b 1a 1b 3a 4b 5a 6b 7a 8b 9a", "a", "0a 1a 3a 5a 7a 9a")
	f("0a 1a 2a 0b 1b 2b 3a 4a", "a", "0a 1a 2a 3a 4a")
	f("5a 0b 1b 6a 2b 7a", "a", "5a 6a 7a")
	f("0a 1b 2a 3b 4a 5b 6a 7b 7a 8b 8a 9b 9a", "a", "0a 1b 2a 3b 4a 5b 6a 7b 7a 8a 9a") // three losses: a mistake ends at once
	f("0a 1a 0b 1b 2b 3b 4a", "a", "0a 1a 4a")
	f("0a 1b 9b 2a 3b 9b 4a 5b 9b 6a 7b", "a", "0a 2a 4a 6a")
	f("0b 1b 2b 3b", "a", "")
	// Several ranks are claimed.
	f("0a 1b 2c 3a 4b 5a 6b 7c 8a 9b", "ab", "0a 1b 2c 3a 4b 5a 6b 7c 8a 9b", "0a 1b 2c 3a 4b 5a 6b 7c 8a 9b")
	f("0a 0b 0c 1a 1b 1c 2b 2c 2a", "ab", "0a 1a 2a", "0b 1b 2b")
}

// TestRanksOfOneSocket sends ranks over real connections: those that are numbered together are one source's, the others are not.
func TestRanksOfOneSocket(t *testing.T) {
	f := func(script, want string, unclaimed uint64, ranks int) {
		t.Helper()
		address := freeAddress(t)
		s := &Sockets{Rank: lastLetter}
		opened := make(chan Subscription, 1)
		go func() {
			sub, err := s.TransportFor(Claim{"e", "m", 0}, nil).Subscribe(t.Context(), "bind:tcp://"+address)
			must.Report(t, err)
			opened <- sub
		}()
		claimed(t, s, address, 1)
		pub := connect(t, address)
		for _, word := range strings.Fields(script) {
			number, err := strconv.ParseUint(word[:len(word)-1], 10, 64)
			must.Succeed(t, err)
			send(t, pub, "kv@e@m", string(binary.BigEndian.AppendUint64(nil, number)), word)
		}
		sub := <-opened
		for _, word := range strings.Fields(want) {
			if got := receive(t, sub); !strings.HasSuffix(got, "|"+word) {
				t.Errorf("%q: the source gets %q, want %s", script, got, word)
			}
		}
		if n, strays := s.ListStrays(); n != unclaimed || len(strays) != ranks {
			t.Errorf("%q: %d messages and the ranks %+v are unclaimed", script, n, strays)
		}
	}
	f("0b 1b 2a 3c 4a 5b 6a 7d 8d 9b 10a", "0b 1b 2a 3c 4a 5b 6a 7d 8d 9b 10a", 4, 0)
	f("0b 0a 1b 1a 2b 0c 2a 1c 3b 3a", "0a 1a 2a 3a", 6, 2)
}

// TestSequenceIsOfOneConnection: nobody else can fill gaps of an engine, or keep it from its source.
func TestSequenceIsOfOneConnection(t *testing.T) {
	d := newDesk(t, "a", nil)
	d.deal(8, "7b 9b")
	d.deal(9, "0b 1b")
	d.deal(1, "0b 1a")
	d.deal(9, "2b 1a")
	d.deal(1, "2a")
	d.deal(9, "3b")
	d.deal(1, "4a 5b 6a")
	d.l.removeMailbox(d.boxes[0]) // paused, say
	d.deal(9, "7a")
	d.claim('a', nil)
	d.deal(9, "8a")
	d.deal(1, "9a")
	if d.got[1] != "9a " {
		t.Errorf("a source that is back gets %s", d.got[1])
	}
	if want := "1a 2a 4a 5b 6a "; d.got[0] != want {
		t.Errorf("the source gets %s, want %s", d.got[0], want)
	}
	if n, _ := d.boxes[0].refusals.messages, d.l.unclaimed.Load(); n != 1 {
		t.Errorf("%d messages are refused, want 1", n)
	}
}

// TestSequencesSayWhatIsUnclaimed: an unclaimed rank is listed from its first message on, until it turns out to be numbered together
// with one that is claimed.
func TestSequencesSayWhatIsUnclaimed(t *testing.T) {
	d := newDesk(t, "a", nil)
	f := func(script string, want ...int) {
		t.Helper()
		d.deal(1, script)
		var ranks []int
		for _, s := range d.l.listStrays() {
			ranks = append(ranks, s.Rank)
		}
		if slices.Sort(ranks); !slices.Equal(ranks, want) {
			t.Errorf("behind %q the ranks %d are unclaimed, want %d", script, ranks, want)
		}
	}
	f("0b", 1)
	f("1b 2c", 1, 2)
	f("3a")
	f("5d 6a", 3)
	f("7b 8a 9c 10a 11d")
	f("/ 0b", 1)
	f("0a 1b 1a 2b", 1)
	if n := d.l.unclaimed.Load(); n != 9 {
		t.Errorf("%d messages count as unclaimed, want 9", n)
	}
}

// TestSequencesAreBounded lets more wait than there is room for, in messages, in bytes and in memory.
func TestSequencesAreBounded(t *testing.T) {
	f := func(messages, size int, memory *payload.Memory, want int) {
		t.Helper()
		d := newDesk(t, "a", memory)
		pad := strings.Repeat("0", size)
		for i := range messages {
			d.deal(1, pad+strconv.Itoa(i)+"b")
		}
		s := d.l.sequences[subject{"kv@e@m", 0}]
		if len(s.waiting) != want {
			t.Errorf("%d messages of %d bytes: %d wait, want %d", messages, size, len(s.waiting), want)
		}
		d.deal(1, fmt.Sprint(messages, "a ", messages+1, "b ", messages+2, "a"))
		if n := strings.Count(d.got[0], " "); n != want+3 {
			t.Errorf("%d messages of %d bytes: the source gets %d, want %d", messages, size, n, want+3)
		}
		if s.gaps != 2 {
			t.Errorf("%d gaps count, want 2", s.gaps)
		}
		f := func(what string, deal func()) {
			t.Helper()
			d.deal(1, strconv.Itoa(int(s.next))+"b")
			if deal(); len(s.waiting) > 0 {
				t.Errorf("%d messages wait though %s", len(s.waiting), what)
			}
			if used, _ := memory.Used(); used != 0 {
				t.Errorf("%d bytes are in use though %s", used, what)
			}
		}
		f("a number is missing", func() { d.deal(1, "9999b") })
		d.deal(1, "10000a")
		f("the connection has ended", func() { d.deal(1, "/") })
		f("the source's own number goes on", func() { d.deal(1, "20000a") })
		f("the source has gone", func() { d.l.removeMailbox(d.boxes[0]) })
		if d.deal(1, "/"); len(d.l.sequences) != 0 {
			t.Error("the sequence of a source that has gone is left")
		}
	}
	f(maxHeld, 0, nil, maxHeld)
	f(maxHeld+1, 0, nil, 0)
	f(10, maxHeldBytes/20, nil, 10)
	f(10, maxHeldBytes/5, nil, 0)
	f(10, 1000, payload.NewMemory(64<<10), 10)
	f(50, 1000, payload.NewMemory(64<<10), 0)
}

// TestSequencesModel compares what a source gets with what publishers of two kinds have sent.
func TestSequencesModel(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		d, ranks := newDesk(t, "a", nil), 2+r.IntN(4)
		if r.IntN(2) == 0 {
			togetherModel(d, r, ranks)
		} else {
			separateModel(d, r, ranks)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// togetherModel numbers all ranks together and loses nothing. Its connections end, and some of its processes with them.
func togetherModel(d *desk, r *rand.Rand, ranks int) {
	number, sent, gaps, settled := 0, "", 0, true
	for conn := range uint64(1 + r.IntN(3)) {
		for range 1 + r.IntN(60) {
			rank := r.IntN(ranks)
			word := fmt.Sprintf("%d%c ", number, 'a'+rank)
			d.deal(conn+1, word)
			sent, number = sent+word, number+1
			switch {
			case rank == 0 && !settled:
				gaps, settled = gaps+1, true
			case rank != 0 && gaps < provenGaps:
				settled = false
			}
			if got := strings.ReplaceAll(d.got[0], "/ ", ""); settled && got != sent || !strings.HasPrefix(sent, got) {
				d.t.Fatalf("of %s the source gets\n%s", sent, got)
			}
		}
		if !settled { // the connection does not end while something waits
			d.deal(conn+1, fmt.Sprintf("%da", number))
			sent, number = sent+fmt.Sprintf("%da ", number), number+1
		}
		d.l.releaseSubjects(conn+1, io.EOF)
		if gaps, settled = 0, true; r.IntN(2) == 0 {
			number = 0
		}
	}
}

// separateModel has ranks that number for themselves, in step or not, over a forwarder that loses some of their messages. The source
// must not get any number twice, nor anything of another rank once its own has been seen to go on by itself.
func separateModel(d *desk, r *rand.Rand, ranks int) {
	next, loss, inStep := make([]int, ranks), r.Float64()*.1, r.IntN(2) == 0
	if r.IntN(2) == 0 {
		for rank := range next {
			next[rank] = r.IntN(1000)
		}
	}
	others, last, proven := false, -1, false
	for range 60 {
		turn := []int{r.IntN(ranks)}
		if inStep {
			turn = r.Perm(ranks)
		}
		for _, rank := range turn {
			number := next[rank]
			next[rank]++
			if r.Float64() < loss {
				continue
			}
			before := d.got[0]
			d.deal(1, fmt.Sprintf("%d%c", number, 'a'+rank))
			got := strings.Fields(strings.TrimPrefix(d.got[0], before))
			switch {
			case rank != 0 && len(got) > 0, rank == 0 && proven && len(got) > 1:
				d.t.Fatalf("behind %s the source gets %s", before, got)
			case rank != 0:
				others = true
			case len(got) == 0 || got[len(got)-1] != fmt.Sprintf("%da", number):
				d.t.Fatalf("instead of %d the source gets %s", number, got)
			default:
				proven = proven || others && number == last+1 && last >= 0
				others, last = false, number
			}
		}
	}
	if all := strings.Fields(d.got[0]); !slices.IsSortedFunc(all, byNumber) {
		d.t.Fatalf("numbers come twice or go back: %s", all)
	}
}

func byNumber(a, b string) int {
	x, _ := strconv.Atoi(a[:len(a)-1])
	y, _ := strconv.Atoi(b[:len(b)-1])
	if x == y {
		return 1
	}
	return x - y
}
