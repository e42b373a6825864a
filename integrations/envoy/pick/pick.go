// Package pick decides which engine a request goes to.
package pick

import "context"

// Request is what is known of a request when its engine is chosen.
type Request struct {
	Method, Path string // the path with its query
	// ID names the request in reports and logs: x-request-id, or one that the caller has made up.
	ID string
	// Body is the whole body, or the beginning of one that is too large to be read; nil if there is none.
	Body []byte
	// Eligible are the endpoints ("ip:port") that the data plane allows, in no order; nil allows all.
	Eligible []string
	// Traceparent is the W3C trace context of the request, "" for none.
	Traceparent string
	// Explain asks for Choice.Why.
	Explain bool
}

// Choice is where a request goes.
type Choice struct {
	// Endpoints are "ip:port", best first; the others are fallbacks. There is at least one.
	Endpoints []string
	// Headers are set on the request, besides the endpoint.
	Headers map[string]string
	// Why says in one line how the choice was made, if Request.Explain asked for it.
	Why string
}

// Refusal is why no engine is chosen.
type Refusal struct {
	Status  int // of HTTP: 429, 503
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// Picker chooses engines. It is safe for concurrent use.
type Picker interface {
	// Pick chooses the engine of a request. An error is a *Refusal, or that of ctx. The caller calls End of the Flight.
	Pick(ctx context.Context, r *Request) (Flight, error)
}

// Flight is a request on its way. Its methods are called one after the other, each at most once, End last.
type Flight interface {
	Choice() *Choice
	// Answered says that an engine has sent the headers of its answer: the endpoint that the data plane names, "" if it names
	// none, and the status.
	Answered(endpoint string, status int)
	// FirstToken says that the first part of an answer's body has come.
	FirstToken()
	// Usage says how many tokens the prompt had, and how many of them came from the engine's cache; cached is -1 if the engine does
	// not say it.
	Usage(prompt, cached int)
	// End says that the request is over: the answer is complete, or the client or the engine is gone.
	End()
}
