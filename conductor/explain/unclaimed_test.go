package explain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/events/zmq"
)

// TestUnclaimedTopics says for topics that no source claims what to register or to change.
func TestUnclaimedTopics(t *testing.T) {
	claims := []zmq.Claim{{Pod: "10.0.0.1:8000", Model: "m"}, {Pod: "b", Model: "n", Rank: 0}, {Pod: "b", Model: "n", Rank: 1}}
	f := func(topic string, rank int, lacks zmq.Claim, claims []zmq.Claim, want string) {
		t.Helper()
		s := zmq.Stray{Topic: topic, Rank: rank, Lacks: lacks, Claims: claims}
		if got := adviceOn(&s); got != want {
			t.Errorf("%q, rank %d: %s\nwant %s", topic, rank, got, want)
		}
	}
	f("kv@10.0.0.1@m", 0, zmq.Claim{Pod: "10.0.0.1", Model: "m"}, claims,
		`register instance_id "10.0.0.1", modelname "m", dp_rank 0 with this endpoint, or set the topic "kv@10.0.0.1:8000@m" if it is `+
			`the engine of that source`)
	f("kv@b@m", zmq.NoRank, zmq.Claim{Pod: "b", Model: "m"}, claims,
		`register instance_id "b", modelname "m", dp_rank 0 with this endpoint, or set the topic "kv@b@n" if it is the engine of `+
			`that source`)
	f("kv@b@n", 2, zmq.Claim{Pod: "b", Model: "n", Rank: 2}, claims,
		`register instance_id "b", modelname "n", dp_rank 2 with this endpoint, as its other ranks are`)
	f("kv@b@n", zmq.NoRank, zmq.Claim{Pod: "b", Model: "n"}, []zmq.Claim{{Pod: "b", Model: "n", Rank: 1}, {Pod: "b", Model: "n", Rank: 2}},
		"several ranks are registered for the topic, and its batches name none: let each rank connect to an address of its own")
	f("kv@x@y", 0, zmq.Claim{Pod: "x", Model: "y"}, nil, `register instance_id "x", modelname "y", dp_rank 0 with this endpoint`)
	for _, topic := range []string{"", "kv-events", "kv@10.0.0.1", "kv@@m"} {
		f(topic, 0, zmq.Claim{}, claims,
			`the topic must be kv@INSTANCE@MODEL, with instance_id and modelname of a registration: set it in the engine, such as `+
				`"kv@10.0.0.1:8000@m"`)
	}

	now := time.Date(2026, 11, 27, 7, 0, 0, 0, time.UTC)
	strays := []zmq.Stray{
		{Endpoint: "bind:tcp://*:5557", Topic: "old", From: "10.0.0.9:1", At: now.Add(-ingest.UnclaimedAge)},
		{Endpoint: "bind:tcp://*:5557", Topic: "kv@\x1b[2J\"<b>\xff@m", Rank: 1, From: "10.0.0.1:41234", Messages: 50, At: now,
			Lacks: zmq.Claim{Pod: "\x1b[2J\"<b>\xff", Model: "m", Rank: 1}},
	}
	for i := range 100 {
		strays = append(strays, zmq.Stray{Topic: fmt.Sprint(i), At: now.Add(-time.Minute)})
	}
	all := UnclaimedTopics(strays, now)
	if len(all) != maxUnclaimedTopics || all[0].Topic != `kv@\x1b[2J\"<b>\xff@m` || all[0].Instance != "\x1b[2J\"<b>�" ||
		all[0].From != "10.0.0.1:41234" || strings.Contains(all[0].Advice, "\x1b") || strings.Contains(all[0].Advice, "\xff") {
		t.Errorf("%d topics, the first %+v", len(all), all[0])
	}
}
