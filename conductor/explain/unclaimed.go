package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/events/zmq"
)

// maxUnclaimedTopics bounds the topics that are listed, over all bound addresses.
const maxUnclaimedTopics = 32

// UnclaimedTopic is a topic that publishers send to a bound socket of ours and no source claims.
type UnclaimedTopic struct {
	Endpoint string // of the socket, as a registration names it
	Topic    string // with escapes of Go, since anybody may have sent it
	Rank     int    // that its batches name, zmq.NoRank for none
	From     string // address of the publisher that sent the last message
	Messages uint64
	At       time.Time // of the last message
	// Instance and Model are those of a registration that would claim the messages, as sent. They
	// are empty if no registration can.
	Instance, Model string
	// Advice says what to register, or what to change.
	Advice string
}

// UnclaimedTopics returns what lets sources claim the strays of the last ten minutes, the latest first, at most 32. It sorts
// strays and drops old ones.
func UnclaimedTopics(strays []zmq.Stray, now time.Time) (all []UnclaimedTopic) {
	strays = slices.DeleteFunc(strays, func(s zmq.Stray) bool { return now.Sub(s.At) >= ingest.UnclaimedAge })
	slices.SortFunc(strays, func(a, b zmq.Stray) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Rank, b.Rank))
	})
	for i := range strays[:min(len(strays), maxUnclaimedTopics)] {
		s := &strays[i]
		quoted, lacks := strconv.Quote(s.Topic), claimLacking(s)
		all = append(all, UnclaimedTopic{
			Endpoint: s.Endpoint, Topic: quoted[1 : len(quoted)-1], Rank: s.Rank, From: s.From, Messages: s.Messages, At: s.At,
			Instance: strings.ToValidUTF8(lacks.Pod, "�"), Model: strings.ToValidUTF8(lacks.Model, "�"), Advice: adviceOn(s, lacks),
		})
	}
	return all
}

// claimLacking returns the claim that would take the messages of a stray, the zero value if none can. Where the topic can be cut
// into two names in several ways, it prefers those of sources that are registered, and a short instance.
func claimLacking(s *zmq.Stray) (lacks zmq.Claim) {
	best := -1
	for _, split := range zmq.ClaimsOf(s.Topic, max(s.Rank, 0)) {
		near := 0
		for _, c := range s.Claims {
			near = max(near, closeness(c, split))
		}
		if near > best {
			best, lacks = near, split
		}
	}
	return lacks
}

// adviceOn says what would let a source claim the messages of a stray, which lacks a claim.
func adviceOn(s *zmq.Stray, lacks zmq.Claim) string {
	if lacks == (zmq.Claim{}) {
		text := "the topic must be kv@INSTANCE@MODEL, with instance_id and modelname of a registration: set it in the engine"
		if len(s.Claims) > 0 {
			text += ", such as " + strconv.Quote(s.Claims[0].Topic())
		}
		return text
	}
	register := fmt.Sprintf("register instance_id %q, modelname %q, dp_rank %d with this endpoint", lacks.Pod, lacks.Model, lacks.Rank)
	if len(zmq.ClaimsOf(s.Topic, 0)) > 1 {
		register += " (or the names that another @ of the topic divides)"
	}
	near := zmq.Claim{}
	for _, c := range s.Claims {
		switch same := c.Topic() == s.Topic; {
		case same && s.Rank == zmq.NoRank:
			return "several ranks are registered for the topic, and its batches name none: let each rank connect to an address of its own"
		case same:
			return fmt.Sprintf("register instance_id %q, modelname %q, dp_rank %d with this endpoint, as its other ranks are",
				c.Pod, c.Model, lacks.Rank)
		case near == zmq.Claim{} || closeness(c, lacks) > closeness(near, lacks):
			near = c
		}
	}
	if near == (zmq.Claim{}) {
		return register
	}
	return fmt.Sprintf("%s, or set the topic %q if it is the engine of that source", register, near.Topic())
}

// closeness says how likely a claim was meant by a topic that nearly fits.
func closeness(c, lacks zmq.Claim) (n int) {
	if c.Model == lacks.Model {
		n += 2
	}
	if c.Pod == lacks.Pod {
		n += 4
	} else if strings.HasPrefix(c.Pod, lacks.Pod) || strings.HasPrefix(lacks.Pod, c.Pod) {
		n++ // an address with and without its port
	}
	return n
}
