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
		quoted := strconv.Quote(s.Topic)
		all = append(all, UnclaimedTopic{
			Endpoint: s.Endpoint, Topic: quoted[1 : len(quoted)-1], Rank: s.Rank, From: s.From, Messages: s.Messages, At: s.At,
			Instance: strings.ToValidUTF8(s.Lacks.Pod, "�"), Model: strings.ToValidUTF8(s.Lacks.Model, "�"), Advice: adviceOn(s),
		})
	}
	return all
}

// adviceOn says what would let a source claim the messages of a stray.
func adviceOn(s *zmq.Stray) string {
	if s.Lacks.Pod == "" || s.Lacks.Model == "" {
		text := "the topic must be kv@INSTANCE@MODEL, with instance_id and modelname of a registration: set it in the engine"
		if len(s.Claims) > 0 {
			text += ", such as " + strconv.Quote(topicOf(s.Claims[0]))
		}
		return text
	}
	lacks := fmt.Sprintf("register instance_id %q, modelname %q, dp_rank %d with this endpoint", s.Lacks.Pod, s.Lacks.Model, s.Lacks.Rank)
	near := zmq.Claim{}
	for _, c := range s.Claims {
		switch {
		case c.Pod == s.Lacks.Pod && c.Model == s.Lacks.Model && s.Rank == zmq.NoRank:
			return "several ranks are registered for the topic, and its batches name none: let each rank connect to an address of its own"
		case c.Pod == s.Lacks.Pod && c.Model == s.Lacks.Model:
			return lacks + ", as its other ranks are"
		case near == zmq.Claim{} || closeness(c, s.Lacks) > closeness(near, s.Lacks):
			near = c
		}
	}
	if near == (zmq.Claim{}) {
		return lacks
	}
	return fmt.Sprintf("%s, or set the topic %q if it is the engine of that source", lacks, topicOf(near))
}

// topicOf returns the topic that a source claims.
func topicOf(c zmq.Claim) string { return "kv@" + c.Pod + "@" + c.Model }

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
