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
	f := func(topic string, rank int, claims []zmq.Claim, want string) {
		t.Helper()
		s := zmq.Stray{Topic: topic, Rank: rank, Claims: claims}
		if got := adviceOn(&s, claimLacking(&s)); got != want {
			t.Errorf("%q, rank %d: %s\nwant %s", topic, rank, got, want)
		}
	}
	f("kv@10.0.0.1@m", 0, claims,
		`register instance_id "10.0.0.1", modelname "m", dp_rank 0 with this endpoint, or set the topic "kv@10.0.0.1:8000@m" if it is `+
			`the engine of that source`)
	f("kv@b@m", zmq.NoRank, claims,
		`register instance_id "b", modelname "m", dp_rank 0 with this endpoint, or set the topic "kv@b@n" if it is the engine of `+
			`that source`)
	f("kv@b@n", 2, claims,
		`register instance_id "b", modelname "n", dp_rank 2 with this endpoint, as its other ranks are`)
	f("kv@b@n", zmq.NoRank, []zmq.Claim{{Pod: "b", Model: "n", Rank: 1}, {Pod: "b", Model: "n", Rank: 2}},
		"several ranks are registered for the topic, and its batches name none: let each rank connect to an address of its own")
	f("kv@x@y", 0, nil, `register instance_id "x", modelname "y", dp_rank 0 with this endpoint`)
	// A topic can be cut at several places. Names that are registered decide, else the first one.
	f("kv@p@3@m", 0, nil, `register instance_id "p", modelname "3@m", dp_rank 0 with this endpoint (or the names that another @ of the `+
		`topic divides)`)
	f("kv@p@3@m", 0, []zmq.Claim{{Pod: "p@4", Model: "m"}}, `register instance_id "p@3", modelname "m", dp_rank 0 with this endpoint `+
		`(or the names that another @ of the topic divides), or set the topic "kv@p@4@m" if it is the engine of that source`)
	f("kv@p@m@main", 0, []zmq.Claim{{Pod: "p", Model: "n"}}, `register instance_id "p", modelname "m@main", dp_rank 0 with this endpoint `+
		`(or the names that another @ of the topic divides), or set the topic "kv@p@n" if it is the engine of that source`)
	f("kv@p@3@m", 1, []zmq.Claim{{Pod: "p@3", Model: "m"}},
		`register instance_id "p@3", modelname "m", dp_rank 1 with this endpoint, as its other ranks are`)
	for _, topic := range []string{"", "kv-events", "kv@10.0.0.1", "kv@@m", "kv@a@", "kx@a@m"} {
		f(topic, 0, claims,
			`the topic must be kv@INSTANCE@MODEL, with instance_id and modelname of a registration: set it in the engine, such as `+
				`"kv@10.0.0.1:8000@m"`)
	}

	now := time.Date(2026, 11, 27, 7, 0, 0, 0, time.UTC)
	strays := []zmq.Stray{
		{Endpoint: "bind:tcp://*:5557", Topic: "old", From: "10.0.0.9:1", At: now.Add(-ingest.UnclaimedAge)},
		{Endpoint: "bind:tcp://*:5557", Topic: "kv@\x1b[2J\"<b>\xff@m", Rank: 1, From: "10.0.0.1:41234", Messages: 50, At: now},
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
