package access

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

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

// maxBuckets bounds the clients that a limiter remembers. Beyond it the limiter forgets those
// that have used nothing of late.
const maxBuckets = 16_384

// limiter is a rate for each key.
type limiter struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	buckets map[string]*rate.Limiter // guarded by mu
}

func newLimiter(perSecond float64, burst int) *limiter {
	return &limiter{rate: rate.Limit(perSecond), burst: burst, buckets: make(map[string]*rate.Limiter)}
}

// bucket returns the rate of a key.
func (l *limiter) bucket(key string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[key]
	if b == nil {
		if len(l.buckets) >= maxBuckets {
			l.forget()
		}
		b = rate.NewLimiter(l.rate, l.burst)
		l.buckets[key] = b
	}
	return b
}

// forget drops full buckets, and all if none is full. l.mu is held.
func (l *limiter) forget() {
	now := time.Now()
	for key, b := range l.buckets {
		if b.TokensAt(now) >= float64(l.burst) {
			delete(l.buckets, key)
		}
	}
	if len(l.buckets) >= maxBuckets {
		clear(l.buckets)
	}
}

// take takes n from a key's bucket. It reports false, and takes nothing, if there is less.
func (l *limiter) take(key string, n int) bool {
	return l == nil || l.bucket(key).AllowN(time.Now(), min(n, l.burst))
}

// owe takes n from a key's bucket, which may fall below zero.
func (l *limiter) owe(key string, n int) { l.bucket(key).ReserveN(time.Now(), min(n, l.burst)) }

// exhausted reports whether the bucket of a key is empty.
func (l *limiter) exhausted(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[key]
	return b != nil && b.Tokens() < 1
}

// clientLimits are the limits of all clients. A nil limiter is no bound.
type clientLimits struct {
	limits                   Limits
	requests, bytes, changes *limiter
}

func newClientLimits(l Limits) (c clientLimits) {
	c.limits = l
	if l.Requests > 0 {
		c.requests = newLimiter(float64(l.Requests), l.Requests)
	}
	if l.Bytes > 0 {
		c.bytes = newLimiter(float64(l.Bytes), int(l.Bytes))
	}
	if l.Changes > 0 {
		c.changes = newLimiter(float64(l.Changes)/60, l.Changes)
	}
	return c
}

// take counts a request. It returns why the request is too much. settle, which may be nil, counts
// the bytes of a body whose length the header did not tell.
func (c *clientLimits) take(client *Client, r *http.Request, change bool) (settle func(), why *refusal) {
	if c.requests == nil && c.bytes == nil && c.changes == nil {
		return nil, nil
	}
	key, known := client.flow(withoutPort(r.RemoteAddr)), max(r.ContentLength, 0)
	switch {
	case !c.requests.take(key, 1):
		return nil, tooMany(fmt.Sprintf("limits.client_requests allows %s a second", spelling.Count(c.limits.Requests, "request")))
	case change && !c.changes.take(key, 1):
		return nil, tooMany(fmt.Sprintf("limits.client_changes allows %s a minute", spelling.Count(c.limits.Changes, "change")))
	case c.bytes == nil:
		return nil, nil
	case c.bytes.exhausted(key) || !c.bytes.take(key, int(min(known, c.limits.Bytes))):
		return nil, tooMany(fmt.Sprintf("limits.client_bytes allows %s a second", spelling.Count(c.limits.Bytes, "byte")))
	case r.ContentLength >= 0:
		return nil, nil
	}
	metered := &meteredBody{ReadCloser: r.Body}
	r.Body = metered
	return func() { c.bytes.owe(key, int(min(metered.read, c.limits.Bytes))) }, nil
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

// flow names whose share a request takes: that of the tenant if the client has one alone, else
// that of the client, or of its address.
func (c *Client) flow(address string) string {
	switch {
	case len(c.Tenants) == 1:
		return c.Tenants[0]
	case c.Name != "":
		return c.Name
	}
	return server.Neighbourhood(address)
}

// takeCall counts a call of gRPC, whose bytes are not known yet.
func (c *clientLimits) takeCall(key string) *refusal {
	switch {
	case !c.requests.take(key, 1):
		return tooMany(fmt.Sprintf("limits.client_requests allows %s a second", spelling.Count(c.limits.Requests, "request")))
	case c.bytes != nil && c.bytes.exhausted(key):
		return tooMany(fmt.Sprintf("limits.client_bytes allows %s a second", spelling.Count(c.limits.Bytes, "byte")))
	}
	return nil
}
