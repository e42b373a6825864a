package registration

import (
	"fmt"
	"net/url"
	"strings"

	"example.com/conductor/events/reach"
	"example.com/conductor/events/zmq"
	"example.com/conductor/redact"
)

// LMCache is a pool with tokens: its emitters announce chunks of a prompt. An emitter is an instance of LMCache, for its
// own memory and storage, or a storage that several share (pool:fs). A source is one emitter and one model, whose
// events come in one of two ways:
//
//	endpoint tcp://coordinator:port  topic kv@instance_id@modelname, one sequence over all topics
//	endpoint push:                   POST /lmcache/events

// FieldEndpoint is an endpoint under the name of its field.
type FieldEndpoint struct{ Field, Endpoint string }

// Endpoints returns the endpoints of the registration, some of which may be empty.
func (r *Registration) Endpoints() []FieldEndpoint {
	return []FieldEndpoint{
		{"replay_endpoint", r.ReplayEndpoint}, {"snapshot_endpoint", r.SnapshotEndpoint}, {"endpoint", r.Endpoint},
	}
}

// checkEndpoints finds endpoints that no socket can have. Only the endpoint of live events may be bound by us.
func (r *Registration) checkEndpoints(bad *faults) {
	if r.Endpoint != "" { // else it is missing
		if err := zmq.CheckLiveEndpoint(r.Endpoint); err != nil {
			bad.add("endpoint", "invalid_value", "endpoint: %v", err)
		}
	}
	for _, f := range r.Endpoints() {
		if f.Endpoint == "" || f.Field == "endpoint" {
			continue
		}
		if err := zmq.CheckEndpoint(f.Endpoint); err != nil {
			bad.add(f.Field, "invalid_value", "%s: %v", f.Field, err)
		}
	}
}

// checkAddress finds an address that requests cannot be sent to. Paths are put behind it, so it ends without a slash.
func checkAddress(r *Registration, bad *faults) {
	if r.Address == "" {
		return
	}
	if err := reach.CheckURL(r.Address); err != nil {
		bad.add("address", "invalid_value", "address: %v", err)
	} else if u, err := url.Parse(r.Address); err != nil || u.User != nil {
		bad.add("address", "invalid_value", "address: %q has a user: routers that ask would see it", redact.URL(r.Address))
	}
	r.Address = strings.TrimRight(r.Address, "/")
}

// Publisher identifies where the events of a source come from. Two sources with equal publishers follow one engine.
type Publisher struct {
	endpoint        string
	topic           string // of shared sequences and shared sockets
	instance, model string // of pushes
	rank            int    // of shared sockets and pushes
}

// Publisher returns where the events of the source come from.
func (r *Registration) Publisher() Publisher {
	switch {
	case r.IsPushed():
		return Publisher{endpoint: r.Endpoint, instance: r.Instance, model: r.Model, rank: r.Rank}
	case r.SharesSequence():
		return Publisher{endpoint: r.Endpoint, topic: r.Topic()}
	case IsSharedSocket(r.Endpoint):
		return Publisher{endpoint: zmq.ListenAddress(r.Endpoint), topic: r.Topic(), rank: r.Rank}
	}
	return Publisher{endpoint: r.Endpoint}
}

// followsTopic reports whether the topic of a message decides if it is the source's.
func followsTopic(r *Registration) bool { return r.SharesSequence() || IsSharedSocket(r.Endpoint) }

// TopicConflict returns why r cannot be registered beside another source of its tenant with an equal publisher: instances and
// models may have an @ in their names, so two pairs of them can have one topic, and nothing tells whose a message is. It returns nil
// if they have the same names.
func TopicConflict(r, other *Registration) error {
	if !followsTopic(r) || r.Instance == other.Instance && r.Model == other.Model {
		return nil
	}
	return &ConflictError{Key: r.Key(), Field: "instance_id", Have: other.Instance, Want: r.Instance, Why: fmt.Sprintf(
		"the topic %q is that of instance_id %q and modelname %q, which are registered at this endpoint: choose names without @",
		r.Topic(), other.Instance, other.Model)}
}

// IsSharedSocket reports whether several publishers deliver at an endpoint.
func IsSharedSocket(endpoint string) bool { return strings.HasPrefix(endpoint, "bind:") }

// Values of Registration.Sequence.
const (
	SequenceOwn    = "own"    // the batches of the source are numbered without holes
	SequenceShared = "shared" // numbers run over all topics of the publisher
)

// EndpointPush is the endpoint of a source whose publisher calls us.
const EndpointPush = "push:"

// IsPushed reports whether the publisher of the source calls us.
func (r *Registration) IsPushed() bool { return r.Endpoint == EndpointPush }

// SharesSequence reports whether the publisher numbers batches over all its topics.
func (r *Registration) SharesSequence() bool {
	return r.Sequence == SequenceShared || r.Sequence == "" && r.Type == TypeLMCache && !r.IsPushed()
}

// Topic is the topic of the source's batches.
func (r *Registration) Topic() string { return zmq.Claim{Pod: r.Instance, Model: r.Model}.Topic() }

// checkTopic finds names that no topic can have: some publishers append more to a topic behind a NUL, so it ends there.
func checkTopic(r *Registration, bad *faults) {
	if !followsTopic(r) {
		return
	}
	for _, f := range []struct{ field, name string }{{"instance_id", r.Instance}, {"modelname", r.Model}} {
		if strings.Contains(f.name, "\x00") {
			bad.add(f.field, "invalid_value", "%s must not have a NUL character where the topic kv@instance_id@modelname tells sources "+
				"apart, because topics end there", f.field)
		}
	}
}

// sequenceWord is the word for how the publisher numbers.
func (r *Registration) sequenceWord() string {
	if r.SharesSequence() {
		return SequenceShared
	}
	return SequenceOwn
}

// normalizeSequence writes Sequence in its canonical form.
func (r *Registration) normalizeSequence(bad *faults) {
	switch {
	case r.IsPushed() && r.Type != TypeLMCache:
		bad.add("endpoint", "invalid_value", "endpoint %s is for type %s", EndpointPush, TypeLMCache)
	case r.IsPushed() && r.ReplayEndpoint != "":
		bad.add("replay_endpoint", "invalid_value", "replay_endpoint must be empty with endpoint %s", EndpointPush)
	}
	if r.Sequence == "" {
		return
	}
	word, ok := canonicalWord("sequence", r.Sequence)
	if !ok {
		bad.add("sequence", "invalid_value", "sequence must be %s or %s, got %q", SequenceOwn, SequenceShared, r.Sequence)
		return
	}
	r.Sequence = word
	if r.SharesSequence() && (r.IsPushed() || IsSharedSocket(r.Endpoint)) {
		bad.add("sequence", "invalid_value", "sequence %s needs an endpoint that is dialed, got %q", SequenceShared, r.Endpoint)
	}
	if r.Sequence = ""; r.sequenceWord() != word {
		r.Sequence = word
	}
}
