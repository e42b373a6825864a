package sim

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/conductor/lab/harness"
)

const (
	// answersWithin is how long one of several servers may take until its answer begins: it may
	// wait for another one itself. Then the next one is asked.
	answersWithin = 5 * time.Second
	// avoided is how long a server that failed is left out.
	avoided = 3 * time.Second
)

// Servers are servers that share a store. Clients ask them in turn, and leave out those that fail.
// All methods are safe for concurrent use.
type Servers struct {
	mu      sync.Mutex
	urls    []*url.URL           // guarded by mu
	next    int                  // guarded by mu
	failed  map[string]time.Time // when, by host; guarded by mu
	retried int                  // requests that another server was asked instead; guarded by mu
}

// NewServers returns servers with the given base URLs.
func NewServers(urls ...string) (*Servers, error) {
	s := &Servers{failed: make(map[string]time.Time)}
	for _, text := range urls {
		if err := s.Add(text); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Add lets clients ask another server.
func (s *Servers) Add(base string) error {
	u, err := url.Parse(strings.TrimRight(base, "/"))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.urls = append(s.urls, u)
	return nil
}

// Remove lets no client ask a server any more.
func (s *Servers) Remove(base string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.urls = slices.DeleteFunc(s.urls, func(u *url.URL) bool { return u.String() == strings.TrimRight(base, "/") })
}

// Retried returns how many requests went to another server, because the first one failed.
func (s *Servers) Retried() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retried
}

// order returns the servers in the order in which they are asked: those that failed of late last.
func (s *Servers) order() []*url.URL {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.urls) == 0 {
		return nil
	}
	at := s.next % len(s.urls)
	s.next++
	out := append(slices.Clone(s.urls[at:]), s.urls[:at]...)
	slices.SortStableFunc(out, func(a, b *url.URL) int {
		return s.failedLocked(a).Compare(s.failedLocked(b))
	})
	return out
}

// well returns the servers that have not failed of late.
func (s *Servers) well() []*url.URL {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.urls), func(u *url.URL) bool { return !s.failedLocked(u).IsZero() })
}

// failedLocked returns when a server failed, zero if that is long ago.
func (s *Servers) failedLocked(u *url.URL) time.Time {
	at := s.failed[u.Host]
	if time.Since(at) > avoided {
		return time.Time{}
	}
	return at
}

// fail leaves a server out for a while.
func (s *Servers) fail(u *url.URL, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[u.Host] = time.Now()
	if again {
		s.retried++
	}
}

// turns is a transport that asks servers in turn.
type turns struct {
	servers *Servers
	to      http.RoundTripper
}

// RoundTrip implements http.RoundTripper. The bodies of all requests can be read again. Where no
// server answers, all are asked again after a pause: some are dead, and the others stopped.
func (t *turns) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	for range rounds {
		if resp, err = t.round(req); err == nil || !harness.Wait(req.Context(), time.Second) {
			break
		}
	}
	return resp, err
}

// rounds is how often all servers are asked.
const rounds = 5

// round asks all servers in turn until one answers.
func (t *turns) round(req *http.Request) (resp *http.Response, err error) {
	err = errors.New("there is no server to ask")
	all := t.servers.order()
	for i, u := range all {
		one := req.Clone(req.Context())
		one.URL.Scheme, one.URL.Host, one.Host = u.Scheme, u.Host, u.Host
		if req.GetBody != nil {
			if one.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
		if resp, err = t.to.RoundTrip(one); err == nil || req.Context().Err() != nil {
			return resp, err
		}
		t.servers.fail(u, i+1 < len(all))
	}
	return nil, err
}

// unserved reports whether the servers know a query's model, and none of them answers for it.
func unserved(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.status == http.StatusServiceUnavailable &&
		(strings.Contains(status.text, `"unserved"`) || strings.Contains(status.text, `"replicas"`))
}

// known waits until every server answers for all instances: servers hear of registrations from each
// other, and have no row for an instance that they have not heard of.
func (d *driver) known(ctx context.Context) error {
	body := append(d.fleet.queryHead(), `]}`...)
	for end := time.Now().Add(lastWait * max(d.fleet.SettleTimeout, time.Second)); ; {
		lag := error(nil)
		for _, u := range d.fleet.Servers.well() {
			rows, err := (&client{base: u.String(), http: d.client.direct}).query(ctx, body)
			if err == nil && len(rows[d.fleet.Tenant]) < len(d.fleet.instances) {
				err = fmt.Errorf("%s knows %d of %d instances of model %s", u, len(rows[d.fleet.Tenant]), len(d.fleet.instances),
					d.fleet.Model)
			}
			lag = errors.Join(lag, err)
		}
		if lag == nil || time.Now().After(end) {
			return lag
		}
		if !harness.Wait(ctx, lastPoll) {
			return ctx.Err()
		}
	}
}

// Outage is a time in which no server answered for a model.
type Outage struct {
	Began   time.Time `json:"began"` // the last answer before it
	Ended   time.Time `json:"ended"` // the first answer after it
	Queries int       `json:"queries"`
}

// maxOutages is how many outages a report lists.
const maxOutages = 100

// unserved counts a query that no server answered.
func (t *tally) unserved() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Unserved++
	if t.outage == nil {
		t.outage = &Outage{Began: t.served}
	}
	t.outage.Queries++
}

// servedLocked notes an answer. t.mu is held.
func (t *tally) servedLocked() {
	t.served = time.Now()
	if t.outage == nil {
		return
	}
	t.outage.Ended = t.served
	if len(t.outages) < maxOutages {
		t.outages = append(t.outages, *t.outage)
	}
	t.outage = nil
}
