package zmq

import (
	"encoding/binary"
	"slices"

	"example.com/conductor/events/payload"
)

// An engine with attention data parallelism sends all its ranks over one connection and numbers them together. One source is
// registered for it, so the messages of the other ranks are that source's too. But behind a forwarder the ranks of one topic may
// be engines that number their messages each for itself, and of those the source must get nothing. Their numbers tell:
//
//	numbered together  0a 1b 2c 3a 4b 5a   what is missing between the numbers of rank a came meanwhile, of other ranks
//	each for itself    0a 0b 1a 1b 2b 2a   the numbers of rank a go on although others came meanwhile
//
// The first happens to ranks that number for themselves only if exactly the messages are lost whose numbers the others have. So
// messages of other ranks wait until the next one of the source's own rank shows what they are. Its own never wait. After
// provenGaps such gaps nothing waits any more. The second cannot happen to ranks that are numbered together, so it is final until
// the connection ends.

const (
	// provenGaps is how many gaps the other ranks have to fill before their messages are put in as they come.
	provenGaps = 3
	// maxHeld and maxHeldBytes bound what waits for one source. If a gap is larger it counts, and its messages are lost.
	maxHeld      = 256
	maxHeldBytes = 256 << 10
)

// arrival is a message that came to a shared socket.
type arrival struct {
	message  payload.Message
	conn     uint64
	size     int
	rank     int
	number   uint64
	numbered bool // number is valid
}

func newArrival(m payload.Message, conn uint64, rank int) *arrival {
	m.Frames = slices.Clone(m.Frames) // they wait, and the connection uses its list again
	a := &arrival{message: m, conn: conn, rank: rank}
	for _, f := range m.Frames {
		a.size += len(f)
	}
	if len(m.Frames) == 3 && len(m.Frames[1]) >= 8 {
		a.number, a.numbered = binary.BigEndian.Uint64(m.Frames[1]), true
	}
	return a
}

// sequence is what the numbers of a connection show about one subject. All but next is about the connection.
type sequence struct {
	conn     uint64 // 0 for none
	holds    bool   // the connection has sent for the subject; until then others may
	separate bool   // other ranks number for themselves
	gaps     int    // that other ranks have filled
	own      uint64 // follows the last number of the subject's own rank; valid if holds
	next     uint64 // follows the last number delivered, of any rank and over any connection

	// Of what other ranks have sent since the last message of the own one.
	others    bool   // they have sent something
	scattered bool   // their numbers do not follow each other
	from, end uint64 // the first number, and the one that follows the last; valid if nothing is scattered
	waiting   []*arrival
	bytes     int // of waiting
	share     payload.Share
}

func (s *sequence) isHeldBy(conn uint64) bool { return s != nil && s.holds && s.conn == conn }

// begin forgets what another connection has shown.
func (s *sequence) begin(conn uint64) {
	s.dropWaiting()
	*s = sequence{conn: conn, next: s.next, share: s.share}
}

// addOwn takes a message of the subject's own rank, and returns it behind those of other ranks that belong before it. The caller owns
// their blocks.
func (s *sequence) addOwn(a *arrival) (due []*arrival) {
	a.message.Block.Retain()
	if !a.numbered { // for the stream to count
		s.holds = true
		return []*arrival{a}
	}
	switch {
	case s.others && s.holds && a.number == s.own:
		s.separate = true
	case s.others && !s.scattered && a.number == s.end && s.mayBegin(a.number):
		s.gaps++
		due, s.waiting = s.waiting, nil
	}
	s.dropWaiting()
	s.holds, s.others, s.own, s.next = true, false, a.number+1, a.number+1
	return append(due, a)
}

// mayBegin reports whether what other ranks have sent begins where the last message delivered ended, or with a new process of the
// engine, if number does not contradict that.
func (s *sequence) mayBegin(number uint64) bool {
	return s.from == s.next || s.from == 0 && (!s.holds || number < s.next)
}

// addOther takes a message of another rank, and returns it if it is the subject's too. If that is not clear yet, the message waits.
// The caller owns the block.
func (s *sequence) addOther(a *arrival) (due []*arrival) {
	switch {
	case s.separate || !a.numbered:
		return nil
	case s.gaps < provenGaps:
	case a.number >= s.next:
		s.others, s.scattered, s.next = true, true, a.number+1
		a.message.Block.Retain()
		return []*arrival{a}
	default: // a new process of the engine, or the proof was wrong
		s.gaps, s.others = 0, false
	}
	if !s.others {
		s.others, s.scattered, s.from, s.end = true, false, a.number, a.number
	}
	if s.scattered = s.scattered || a.number != s.end; s.scattered {
		s.dropWaiting()
		return nil
	}
	s.end++
	s.hold(a)
	return nil
}

// hold lets a message wait behind those from the first one on, or lets all go if there is no room.
func (s *sequence) hold(a *arrival) {
	complete := uint64(len(s.waiting)) == a.number-s.from
	if !complete || len(s.waiting) == maxHeld || s.bytes+a.size > maxHeldBytes || !s.share.Fits(a.size) {
		s.dropWaiting()
		return
	}
	a.message.Block.Retain()
	s.waiting, s.bytes = append(s.waiting, a), s.bytes+a.size
	s.share.Set(len(s.waiting), s.bytes)
}

func (s *sequence) dropWaiting() {
	for _, a := range s.waiting {
		a.message.Block.Release()
	}
	s.waiting, s.bytes = nil, 0
	s.share.Set(0, 0)
}
