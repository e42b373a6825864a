package access

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/stage"
)

// Call is a call of gRPC before its message is read, or a request over HTTP.
type Call struct {
	Method        string            // /package.Service/Method, "" over HTTP
	Address       string            // host:port of the client
	Reached       net.Addr          // of the server, where the client has reached it
	Authority     string            // the name by which the server is asked
	Authorization string            // header, or metadata, of the name authorization
	Certificate   *x509.Certificate // of the client, verified; nil without one
}

// Caller is the client of a call, and the flow whose share the call takes.
type Caller struct {
	guard  *Guard // nil without one
	policy *policy
	call   Call
	rule   rule
	client *Client
	flow   string
	again  func() bool // whether another replica may still carry the call; nil if none does
	by     string      // id of the replica that carries the call, "" for none
}

// Error implements error.
func (r *refusal) Error() string { return r.text }

// Refused returns the HTTP status of an error of Admit and Recheck.
func Refused(err error) int {
	var why *refusal
	if !errors.As(err, &why) {
		return http.StatusInternalServerError
	}
	return why.status
}

// Admit identifies the client of a call, and decides whether it may make the call. Calls that change something need no check
// of their Origin: a web page cannot make one without asking first, and no answer to that lets it.
func (a *Guard) Admit(call Call) (*Caller, error) {
	p := a.policy.Load()
	c, why := a.identifyCaller(p, call)
	if why == nil && !c.rule.open {
		why = p.limits.countCall(c.flow)
	}
	if why != nil {
		a.countRefused(why)
		if c.rule.audited {
			c.Done(why.status)
		}
		return nil, why
	}
	return c, nil
}

// identifyCaller identifies the client of a call and compares its roles.
func (a *Guard) identifyCaller(p *policy, call Call) (*Caller, *refusal) {
	c := &Caller{guard: a, policy: p, call: call}
	var known bool
	if c.rule, known = calls[call.Method]; !known {
		return c, errNoRule
	}
	var why *refusal
	if c.client, why = a.identifyClient(p, call); why == nil {
		why = p.hasRole(c.rule, c.client)
	}
	if c.rule.open && !why.refusesHost() {
		c.client, why = c.client.onOpenRoute(why), nil
	}
	if why == nil {
		c.flow = c.client.flowFrom(withoutPort(call.Address))
	}
	return c, why
}

// Recheck returns why a caller may not go on with a long call, after the credentials or their
// roles have changed.
func (c *Caller) Recheck() error {
	if c.again != nil && !c.again() {
		return errWithdrawn
	}
	if c.guard == nil || c.guard.policy.Load() == c.policy {
		return nil
	}
	p := c.guard.policy.Load()
	now, why := c.guard.identifyCaller(p, c.call)
	if why != nil {
		return why
	}
	*c = *now
	return nil
}

// Open reports whether the rule of the call lets everyone in.
func (c *Caller) Open() bool { return c.rule.open }

// Flow returns the flow that the call counts against: a tenant, a client or an address.
func (c *Caller) Flow() bounds.Flow { return bounds.Flow{Name: c.flow, Weight: c.client.Weight} }

// View returns a Conductor as the caller sees it.
func (c *Caller) View(of *conductor.Conductor) conductor.View {
	return of.For(c.client.reader()).From(conductor.Sender{Client: c.client, Replica: c.by})
}

// Charge counts the bytes of a message.
func (c *Caller) Charge(bytes int) {
	if c.guard != nil && c.policy.limits.bytes != nil && !c.rule.open {
		c.policy.limits.bytes.Charge(c.flow, bytes, time.Now())
	}
}

// CountMessage counts a further message of a long call, as Admit has counted the first. It returns why there
// are too many.
func (c *Caller) CountMessage() error {
	if c.guard == nil || c.rule.open {
		return nil
	}
	if why := c.policy.limits.countCall(c.flow); why != nil {
		c.guard.countRefused(why)
		return why
	}
	return nil
}

// Done writes the audit line of a call that has ended with a status of HTTP, if its rule asks for
// one.
func (c *Caller) Done(status int) {
	if c.guard != nil && c.rule.audited {
		c.guard.writeAudit(withoutPort(c.call.Address), http.MethodPost, c.call.Method, status, c.client, "")
	}
}

// Tell returns what a replica says of the caller to another one.
func (c *Caller) Tell() string { return c.client.Tell() }

// Carried returns the caller of a call that comes in a request of another replica. Check has
// admitted and counted the request.
func (a *Guard) Carried(g *gin.Context) *Caller {
	if a == nil {
		return &Caller{client: operator}
	}
	c, p := g.MustGet(server.FlowKey).(*asked), a.policy.Load()
	return &Caller{client: c.Client, flow: c.flow, by: g.GetHeader(forward.ForwardedHeader), again: func() bool {
		now := a.policy.Load()
		if now != p && !a.Again(g) {
			return false
		}
		p = now
		return true
	}}
}

type callerKey struct{}

// With returns a context of a call with its caller.
func (c *Caller) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller of a call, an operator if no Guard has admitted it.
func CallerOf(ctx context.Context) *Caller {
	if c, ok := ctx.Value(callerKey{}).(*Caller); ok {
		return c
	}
	return &Caller{client: operator}
}

// ViewOf returns a Conductor as the caller of a call sees it. The clock of the call measures its
// queries.
func ViewOf(ctx context.Context, c *conductor.Conductor) conductor.View {
	return CallerOf(ctx).View(c).Timed(stage.Of(ctx))
}
