// Package forward sends requests on to the replicas that serve their shards.
//
//	dialect --UnservedError--> Send --Forwarder--> replica --> its answer, as it came
//	batch   --UnservedError--> Parts --Ask--> one request for each replica
//
// A middleware leaves a Forwarder in the request (conductor/cluster has one for each listener); a request without one, or
// one that a replica has sent on already, is not sent on. This room has what dialects see of it, so that none of them
// knows the cluster. The headers between replicas are here too.
//
// All functions are for the goroutine of one request, but Parts.Ask calls its function side by side.
package forward

import (
	"errors"
	"sync"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
)

// Headers between replicas.
const (
	// ForwardedHeader names the replica that sends a client's request on. No replica sends such a
	// request on again.
	ForwardedHeader = "Conductor-Forwarded"
	// MirroredHeader says that the replica that sends a report has kept it itself, and tells all others that are to keep it.
	MirroredHeader = "Conductor-Mirrored"
	// ClientHeader says who the client is. It counts if the sender has the role peer.
	ClientHeader = "Conductor-Client"
	// ReplicaHeader names the replica that has answered a request that was sent on.
	ReplicaHeader = "Conductor-Replica"
)

// Forwarder sends requests to other replicas.
type Forwarder interface {
	// Forward sends the request of g on, with a body, and sends the answer to the client. After
	// an error nothing has been sent.
	Forward(g *gin.Context, body []byte, to *conductor.UnservedError) error
	// Ask sends the request of g on, with a body of its own, and returns the body of the answer.
	Ask(g *gin.Context, body []byte, to *conductor.UnservedError) ([]byte, error)
}

// Key is where a middleware leaves the Forwarder of a request.
const Key = "conductor.forward"

var (
	// ErrMisdirected says that another replica has sent a request here that this one does not serve.
	ErrMisdirected = errors.New("this replica does not serve the model of the request that another one has sent on")
	// ErrReplicas says that no replica that serves a model has answered.
	ErrReplicas = errors.New("no replica that serves the model answers")
)

// Of returns the Forwarder of a request, nil if the request may not be sent on.
func Of(g *gin.Context) Forwarder {
	if v, ok := g.Get(Key); ok && g.GetHeader(ForwardedHeader) == "" {
		return v.(Forwarder)
	}
	return nil
}

// Send sends a request to a replica that serves it if err is an *UnservedError, and returns nil
// once that has answered. Else it returns the error that the client gets. src is the body.
func Send(g *gin.Context, src []byte, err error) error {
	if err == nil {
		return nil
	}
	var unserved *conductor.UnservedError
	if !errors.As(err, &unserved) {
		return err
	}
	err = Unserved(g, unserved)
	if f := Of(g); f != nil && len(unserved.Serving) > 0 {
		err = f.Forward(g, src, unserved)
	}
	if err != nil && !errors.Is(err, ErrMisdirected) {
		g.Header("Retry-After", "1") // seconds; a replica beats as often
	}
	return err
}

// Unserved returns the error of a request that is not sent on.
func Unserved(g *gin.Context, err *conductor.UnservedError) error {
	if g.GetHeader(ForwardedHeader) != "" {
		return ErrMisdirected
	}
	return err
}

// Parts are the parts of a batch that other replicas answer, by who serves them.
type Parts map[string]*Part

// Part is what one replica is asked.
type Part struct {
	To *conductor.UnservedError
	At []int // its queries, by their places in the batch
}

// Add leaves query i of a batch to other replicas.
func (p *Parts) Add(i int, to *conductor.UnservedError) {
	if *p == nil {
		*p = make(Parts)
	}
	key := to.ServedBy()
	if (*p)[key] == nil {
		(*p)[key] = &Part{To: to}
	}
	(*p)[key].At = append((*p)[key].At, i)
}

// Ask calls ask for all parts at once, and waits.
func (p Parts) Ask(ask func(*Part)) {
	var asking sync.WaitGroup
	for _, part := range p {
		asking.Go(func() { ask(part) })
	}
	asking.Wait()
}
