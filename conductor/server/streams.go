package server

import (
	"net/http"
	"sync/atomic"
)

// streams bounds the requests over HTTP/2 whose answers have not been taken. A client may ask for answers and give no window
// for them. net/http then keeps the answer, and a goroutine that waits for the window, after the handler has returned.
type streams struct {
	handler  http.Handler
	budget   *Budget
	refusals atomic.Int64 // that clients have not taken
}

// mostRefusals is how many refusals clients may leave untaken. Each takes less than a request, and nothing is reserved for it.
const mostRefusals = 64

// boundStreams returns a handler that counts a request over HTTP/2 as unfinished, by the address of its client, until the
// client has taken the answer or has given it up. It must be the handler of net/http itself. A nil budget bounds nothing.
func boundStreams(h http.Handler, budget *Budget) http.Handler {
	if budget == nil {
		return h
	}
	return &streams{handler: h, budget: budget}
}

// ServeHTTP implements http.Handler.
func (s *streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		s.handler.ServeHTTP(w, r)
		return
	}
	memory := s.budget.NewHold(neighbourOf(r))
	if memory.Await() != nil {
		s.refuse(w)
		return
	}
	defer afterStream(w, memory.Free) // after a panic too: net/http has yet to reset the stream
	s.handler.ServeHTTP(w, r)
}

// refuse answers 503 without a body, because that needs no window. If clients leave too many of these untaken, it resets the
// stream.
func (s *streams) refuse(w http.ResponseWriter) {
	if s.refusals.Add(1) > mostRefusals {
		s.refusals.Add(-1)
		panic(http.ErrAbortHandler)
	}
	afterStream(w, func() { s.refusals.Add(-1) })
	w.Header().Set("Retry-After", "1") // seconds
	w.WriteHeader(http.StatusServiceUnavailable)
}

// afterStream calls a function when the stream of a request over HTTP/2 is closed. The context of the request does not tell: it
// ends with the handler, before the end of the answer is sent.
func afterStream(w http.ResponseWriter, do func()) {
	closed := w.(http.CloseNotifier).CloseNotify() //lint:ignore SA1019 nothing else tells
	go func() {
		<-closed
		do()
	}()
}

// neighbourOf returns the Neighbourhood of a client, "" if Servers has not accepted its connection.
func neighbourOf(r *http.Request) string {
	if a, ok := PeerOf(r.Context()).(boundedAddr); ok {
		return a.conn.address
	}
	return ""
}
