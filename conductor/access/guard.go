package access

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/server"
)

// Policy is what a Guard allows. It may change while the server runs.
type Policy struct {
	// Anonymous and Loopback are the roles of clients without credentials, the latter of those
	// on the same machine. They have every tenant.
	Anonymous, Loopback Roles
	// Hosts are names by which clients without credentials may ask at a loopback address, besides those of loopback.
	Hosts  []string
	Limits Limits
	// Credentials are the clients that are known; nil is a server without a file of them.
	Credentials *Credentials
}

// policy is a Policy with what goes on under it.
type policy struct {
	anonymous, loopback *Client
	hosts               map[string]bool // by hostName
	credentials         *Credentials
	limits              clientLimits
	counts              *Counts
}

// Guard checks requests.
type Guard struct {
	policy   atomic.Pointer[policy]
	log      zerolog.Logger
	origins  *http.CrossOriginProtection
	attempts *bounds.Rates // of wrong credentials, by address
	refused  *prometheus.CounterVec
	limited  atomic.Uint64 // of refused, those beyond the limits of their clients
	calls    *prometheus.CounterVec
	askers   askers
}

// New returns a Guard with a policy.
func New(p Policy, log zerolog.Logger) *Guard {
	a := &Guard{
		log: log, origins: http.NewCrossOriginProtection(), attempts: bounds.NewRates(attemptsPerSecond, attemptsAtOnce),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conductor_requests_refused_total", Help: "Requests refused before their handler, by reason.",
		}, []string{"reason"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conductor_audited_calls_total", Help: "Registrations and calls of administration in the audit log, by result.",
		}, []string{"result"}),
	}
	a.Use(p)
	return a
}

// Use replaces the policy. The counts of limits that stay the same go on.
func (a *Guard) Use(p Policy) {
	p.Anonymous = p.Anonymous.complete()
	p.Loopback = (p.Loopback | p.Anonymous).complete()
	next := &policy{anonymous: &Client{Roles: p.Anonymous}, loopback: &Client{Roles: p.Loopback}, credentials: p.Credentials,
		hosts: make(map[string]bool)}
	for _, name := range p.Hosts {
		next.hosts[hostName(name)] = true
	}
	if old := a.policy.Load(); old != nil && old.limits.limits == p.Limits {
		next.limits = old.limits
	} else {
		next.limits = newClientLimits(p.Limits)
	}
	next.counts = next.countClients()
	a.policy.Store(next)
}

// Describe implements prometheus.Collector.
func (a *Guard) Describe(ch chan<- *prometheus.Desc) {
	a.refused.Describe(ch)
	a.calls.Describe(ch)
}

// Collect implements prometheus.Collector.
func (a *Guard) Collect(ch chan<- prometheus.Metric) {
	a.refused.Collect(ch)
	a.calls.Collect(ch)
}

// refusal is why a request does not reach its handler.
type refusal struct {
	status       int
	reason, text string
}

// refusesHost reports whether a request is refused on every route, because of the name that it asks for.
func (r *refusal) refusesHost() bool { return r != nil && r.reason == reasonHost }

var (
	errToken    = &refusal{http.StatusUnauthorized, "unauthorized", "the token is not known"}
	errNoToken  = &refusal{http.StatusUnauthorized, "unauthorized", "this needs a token: send Authorization: Bearer TOKEN"}
	errScheme   = &refusal{http.StatusUnauthorized, "unauthorized", "the Authorization header is not of the form Bearer TOKEN"}
	errSubject  = &refusal{http.StatusUnauthorized, "unauthorized", "the client certificate is not known"}
	errAttempts = &refusal{http.StatusTooManyRequests, "too_many_attempts", "too many wrong credentials from this address"}
	errWhole    = &refusal{
		http.StatusForbidden, "forbidden", "this is about the server as a whole: the credentials must be for every tenant",
	}
	errWithdrawn = &refusal{
		http.StatusUnauthorized, "unauthorized",
		"the credentials of the replica that sends the call on, or their roles, have been withdrawn",
	}
	errNoRule = &refusal{http.StatusForbidden, "forbidden", "no rule allows this path"}
	errOrigin = &refusal{http.StatusForbidden, "cross_origin", "a web page of another origin may not ask for this; auth.hosts has " +
		"the names that the server's own page has behind a proxy"}
	errPlainBody = &refusal{
		http.StatusUnsupportedMediaType, "unsupported_content_type",
		"Content-Type must be application/json or application/msgpack: browsers send other types for any web page",
	}
)

// Check is the middleware of all routers.
func (a *Guard) Check(g *gin.Context) {
	pattern, p := g.FullPath(), a.policy.Load()
	if pattern == "" {
		if why := p.refuseHost(callOf(g.Request)); why != nil {
			a.sendRefusal(g, why)
		}
		return // no route: the dialect says so
	}
	r, known := ruleOf(g.Request.Method, pattern)
	r.open = r.open || r.page && p.credentials != nil
	client, why := a.identifyClient(p, callOf(g.Request))
	forwarded := false
	if why == nil && r.forward {
		client, forwarded, why = clientBehind(client, g.Request.Header)
	}
	switch {
	case why != nil:
	case !known:
		why = errNoRule
	default:
		why = a.checkRequest(p, g, r, client)
	}
	if r.open && !why.refusesHost() {
		client, why = client.onOpenRoute(why), nil
	}
	var settle func()
	if why == nil && !r.open && !forwarded {
		settle, why = p.limits.countRequest(client, g.Request, r.change && !r.often)
	}
	if why != nil {
		a.sendRefusal(g, why)
		if r.audited {
			a.auditRequest(g, client)
		}
		return
	}
	if !r.open {
		server.Admits(server.PeerOf(g.Request.Context()))
	}
	g.Set(server.FlowKey, a.askers.askedBy(client, client.flowFrom(withoutPort(g.Request.RemoteAddr))))
	if settle == nil && !r.audited {
		return
	}
	g.Next()
	if settle != nil {
		settle()
	}
	if r.audited {
		a.auditRequest(g, client)
	}
}

// Again reports whether the client of a request that Check let pass may still make it, and would be
// the same client. Streams ask: credentials may have been withdrawn meanwhile.
func (a *Guard) Again(g *gin.Context) bool {
	r, known := ruleOf(g.Request.Method, g.FullPath())
	p := a.policy.Load()
	client, why := a.identifyClient(p, callOf(g.Request))
	if why == nil && r.forward {
		client, _, why = clientBehind(client, g.Request.Header)
	}
	if !known || why != nil || a.checkRequest(p, g, r, client) != nil {
		return false
	}
	was := Of(g)
	return client.Name == was.Name && client.Roles == was.Roles && slices.Equal(client.Tenants, was.Tenants) &&
		client.Tenants.All() == was.Tenants.All()
}

// stranger is the client of an open route who learns the status of the server, and no name of a tenant or source.
var stranger = &Client{Tenants: []string{}}

// onOpenRoute returns as whom an open route answers a client, or a request that is refused elsewhere. The names that it may
// tell are those of GET /services, so they need the same role.
func (c *Client) onOpenRoute(refused *refusal) *Client {
	if refused != nil || c.Roles&Query == 0 {
		return stranger
	}
	return c
}

// callOf returns the part of an HTTP request that identifies its client.
func callOf(r *http.Request) Call {
	who := Call{Address: r.RemoteAddr, Authority: r.Host, Authorization: r.Header.Get("Authorization")}
	who.Reached, _ = r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		who.Certificate = r.TLS.PeerCertificates[0]
	}
	return who
}

// identifyClient returns the client of a request. A request without credentials is the anonymous client's. If it comes from this
// machine and asks for a name of loopback, it is the loopback client's; see mayAsk. Credentials are looked up before
// attempts are counted: that costs less than it did to read the request, and a client with valid ones is
// never refused because others at its address, all clients of an ingress, guess.
func (a *Guard) identifyClient(p *policy, who Call) (*Client, *refusal) {
	if p.lacksCredentials(who) {
		switch allowed, local := p.mayAsk(who); {
		case !allowed:
			return nil, errHost(who.Authority)
		case local:
			return p.loopback, nil
		}
		return p.anonymous, nil
	}
	known := p.credentials
	var client *Client
	why := errSubject
	if who.Authorization != "" {
		scheme, text, _ := strings.Cut(who.Authorization, " ")
		if why = errToken; !strings.EqualFold(scheme, "Bearer") {
			why = errScheme
		} else {
			client = known.byToken(strings.TrimSpace(text))
		}
	} else {
		client = known.byCertificate(who.Certificate)
	}
	if client != nil {
		return client, nil
	}
	if a.attempts.Spend(server.Neighbourhood(withoutPort(who.Address)), 1, time.Now()) != nil {
		why = errAttempts
	}
	return nil, why
}

// withoutPort returns the host of host:port.
func withoutPort(address string) string {
	h, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return h
}

// checkRequest returns why a client may not send a request to a route, nil if it may.
func (a *Guard) checkRequest(p *policy, g *gin.Context, r rule, client *Client) *refusal {
	why := p.hasRole(r, client)
	switch {
	case why != nil || !r.change:
		return why
	case a.origins.Check(g.Request) != nil || !p.allowsOrigin(g.Request, client):
		return errOrigin
	case isPlainBody(g.Request.Header.Get("Content-Type")):
		return errPlainBody
	}
	return nil
}

// hasRole returns why a client does not meet what a rule asks for, nil if it does.
func (p *policy) hasRole(r rule, client *Client) *refusal {
	switch {
	case !r.open && client.Roles&r.role == 0:
		if client.Name == "" && p.credentials != nil {
			return errNoToken
		}
		text := "this needs the role " + r.role.String()
		if client.Name == "" {
			text += "; clients of other machines, and those that ask for a name of auth.hosts, have it if auth.anonymous or auth.file " +
				"says so"
		}
		return &refusal{http.StatusForbidden, "forbidden", text}
	case r.whole && !client.Tenants.All():
		return errWhole
	}
	return nil
}

// isPlainBody reports whether a body is of a type that a browser sends to any origin
// without asking it first.
func isPlainBody(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(kind)) {
	case "text/plain", "application/x-www-form-urlencoded", "multipart/form-data":
		return true
	}
	return false
}

// sendRefusal answers with an error, in the codec of the request.
func (a *Guard) sendRefusal(g *gin.Context, why *refusal) {
	a.countRefused(why)
	switch why.status {
	case http.StatusUnauthorized:
		g.Header("WWW-Authenticate", `Bearer realm="conductor"`)
	case http.StatusTooManyRequests:
		g.Header("Retry-After", "1") // seconds
	}
	codec := body.JSON
	if server.Speaks(g.GetHeader("Content-Type"), body.Msgpack) {
		codec = body.Msgpack
	}
	server.SendError(g, codec, why.status, why.reason, why.text)
	g.Abort()
}

// auditRequest writes the audit line of a request. Bodies are not in it: they may hold secrets.
func (a *Guard) auditRequest(g *gin.Context, client *Client) {
	a.writeAudit(withoutPort(g.Request.RemoteAddr), g.Request.Method, g.Request.URL.Path, g.Writer.Status(), client,
		g.GetString(subjectKey))
}

// writeAudit writes the audit line of a call. status is the status of its answer, or that which it would have over HTTP.
func (a *Guard) writeAudit(address, method, path string, status int, client *Client, subject string) {
	result := "done"
	if status >= http.StatusBadRequest {
		result = "refused"
	}
	a.calls.WithLabelValues(result).Inc()
	line := a.log.Info().Bool("audit", true).Str("address", address).Str("method", method).Str("path", path).Int("status", status)
	if client != nil && client.Name != "" {
		line = line.Str("client", client.Name)
	}
	if subject != "" {
		line = line.Str("subject", subject)
	}
	line.Msg("audit")
}

// subjectKey is where SetSubject leaves the key.
const subjectKey = "conductor.subject"

// SetSubject tells the audit log which source a request changes. A key that no source can have is as long as its client
// likes, so it is left out.
func SetSubject(g *gin.Context, key registration.Key) {
	if key.Check() == nil {
		g.Set(subjectKey, key.String())
	}
}
