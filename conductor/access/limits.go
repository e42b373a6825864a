package access

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor/server"
	"example.com/conductor/spelling"
)

// Limits bound what one client asks. 0 is no bound.
type Limits struct {
	Requests int   // a second
	Bytes    int64 // of bodies, a second
	Changes  int   // registrations and other changes, a minute
}

// Wrong credentials that one address may send.
const (
	attemptsPerSecond = 0.2
	attemptsAtOnce    = 10
)

// clientLimits are the limits of all clients. A nil rate is no bound.
type clientLimits struct {
	limits                   Limits
	requests, bytes, changes *bounds.Rates
}

func newClientLimits(l Limits) (c clientLimits) {
	c.limits = l
	if l.Requests > 0 {
		c.requests = bounds.NewRates(float64(l.Requests), l.Requests)
	}
	if l.Bytes > 0 {
		c.bytes = bounds.NewRates(float64(l.Bytes), int(l.Bytes))
	}
	if l.Changes > 0 {
		c.changes = bounds.NewRates(float64(l.Changes)/60, l.Changes)
	}
	return c
}

// countRequest counts a request. It returns why the request is too much. settle, which may be nil, counts
// the bytes of a body whose length the header did not tell.
func (c *clientLimits) countRequest(client *Client, r *http.Request, change bool) (settle func(), why *refusal) {
	if c.requests == nil && c.bytes == nil && c.changes == nil {
		return nil, nil
	}
	key, known, now := client.flowFrom(withoutPort(r.RemoteAddr)), max(r.ContentLength, 0), time.Now()
	switch {
	case c.requests.Spend(key, 1, now) != nil:
		return nil, tooMany(fmt.Sprintf("limits.client_requests allows %s a second", spelling.Count(c.limits.Requests, "request")))
	case change && c.changes.Spend(key, 1, now) != nil:
		return nil, tooMany(fmt.Sprintf("limits.client_changes allows %s a minute", spelling.Count(c.limits.Changes, "change")))
	case c.bytes == nil:
		return nil, nil
	case c.bytes.Check(key, now) != nil || c.bytes.Spend(key, int(min(known, c.limits.Bytes)), now) != nil:
		return nil, tooMany(fmt.Sprintf("limits.client_bytes allows %s a second", spelling.Count(c.limits.Bytes, "byte")))
	case r.ContentLength >= 0:
		return nil, nil
	}
	metered := &meteredBody{ReadCloser: r.Body}
	r.Body = metered
	return func() { c.bytes.Charge(key, int(min(metered.read, c.limits.Bytes)), time.Now()) }, nil
}

// meteredBody counts the bytes of a body without a Content-Length.
type meteredBody struct {
	io.ReadCloser
	read int64
}

// Read implements io.Reader.
func (m *meteredBody) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.read += int64(n)
	return n, err
}

// reasonTooMany is the reason of a request beyond the limits of its client.
const reasonTooMany = "too_many_requests"

func tooMany(text string) *refusal {
	return &refusal{http.StatusTooManyRequests, reasonTooMany, text}
}

// Limited returns how many requests and calls were beyond the limits of their clients since the start.
func (a *Guard) Limited() uint64 { return a.limited.Load() }

// countRefused counts a request or call that is refused before its handler.
func (a *Guard) countRefused(why *refusal) {
	a.refused.WithLabelValues(why.reason).Inc()
	if why.reason == reasonTooMany {
		a.limited.Add(1)
	}
}

// flowFrom names the flow whose share a request from an address takes: the tenant if the client has only one, else the client,
// or its address if the client has no name.
func (c *Client) flowFrom(address string) string {
	switch {
	case len(c.Tenants) == 1:
		return c.Tenants[0]
	case c.Name != "":
		return c.Name
	}
	return server.Neighbourhood(address)
}

// countCall counts a call of gRPC. It does not know yet how many bytes the call has, so it only checks that some are left.
func (c *clientLimits) countCall(key string) *refusal {
	now := time.Now()
	switch {
	case c.requests.Spend(key, 1, now) != nil:
		return tooMany(fmt.Sprintf("limits.client_requests allows %s a second", spelling.Count(c.limits.Requests, "request")))
	case c.bytes != nil && c.bytes.Check(key, now) != nil:
		return tooMany(fmt.Sprintf("limits.client_bytes allows %s a second", spelling.Count(c.limits.Bytes, "byte")))
	}
	return nil
}
