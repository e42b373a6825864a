package conductor

import "strings"

// LMCache is a pool with tokens: its emitters announce chunks of a prompt. An emitter is an
// instance of LMCache, for its own memory and storage, or a storage that several share
// (pool:fs). A source is one emitter and one model, and hears of it in one of two ways:
//
//	endpoint tcp://coordinator:port  topic kv@instance_id@modelname, one sequence over all topics
//	endpoint push:                   POST /lmcache/events, see push.go

// Values of Registration.Sequence.
const (
	sequenceOwn    = "own"    // the batches of the source are numbered without holes
	sequenceShared = "shared" // numbers run over all topics of the publisher
)

// EndpointPush is the endpoint of a source whose publisher calls us.
const EndpointPush = "push:"

// pushed reports whether the publisher of the source calls us.
func (r *Registration) pushed() bool { return r.Endpoint == EndpointPush }

// shared reports whether the publisher numbers batches over all its topics.
func (r *Registration) shared() bool {
	return r.Sequence == sequenceShared || r.Sequence == "" && r.Type == TypeLMCache && !r.pushed()
}

// topic is the topic of the source's batches.
func (r *Registration) topic() string { return "kv@" + r.Instance + "@" + r.Model }

// sequenceWord is the word for how the publisher numbers.
func (r *Registration) sequenceWord() string {
	if r.shared() {
		return sequenceShared
	}
	return sequenceOwn
}

// normalizeSequence brings the way in which the source hears of events to its canonical form.
func (r *Registration) normalizeSequence() error {
	switch {
	case r.pushed() && r.Type != TypeLMCache:
		return Invalid("endpoint", "invalid_value", "endpoint %s is for type %s", EndpointPush, TypeLMCache)
	case r.pushed() && r.ReplayEndpoint != "":
		return Invalid("replay_endpoint", "invalid_value", "replay_endpoint must be empty with endpoint %s", EndpointPush)
	}
	switch strings.ToLower(r.Sequence) {
	case "":
		return nil
	case sequenceOwn:
		r.Sequence = sequenceOwn
	case sequenceShared:
		r.Sequence = sequenceShared
	default:
		return Invalid("sequence", "invalid_value", "sequence must be %s or %s, got %q", sequenceOwn, sequenceShared, r.Sequence)
	}
	if r.shared() && (r.pushed() || sharedSocket(r.Endpoint)) {
		return Invalid("sequence", "invalid_value", "sequence %s needs an endpoint that is dialed, got %q", sequenceShared, r.Endpoint)
	}
	word := r.Sequence
	if r.Sequence = ""; r.sequenceWord() != word {
		r.Sequence = word
	}
	return nil
}
