// Package access decides which client may ask what:
//
//	request --identify--> Client --rule of the route--> handler --conductor.View--> answer
//	                         |              |
//	                    401, 429       401, 403
//
// A Client has roles and a scope of tenants. It comes from a bearer token, from a client
// certificate, or from the address of a request without either. Guard.Check is a middleware of
// every router: it finds the Client, compares its roles with the rule of the route, refuses
// changes that a web page of another origin asks for, and writes the audit log. A route without
// a rule is refused. The handler asks Of for the Client and works on the conductor.View of its
// tenants.
//
// Concurrency: a Guard is safe for concurrent use. Its credentials are replaced as a whole.
package access

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"example.com/conductor/bounds"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/conductor/server"
)

// Roles are what a client may do, as a set of bits.
type Roles uint8

// The roles. Admin includes all others.
const (
	Query    Roles = 1 << iota // queries, and the lists of sources and workers
	Register                   // registrations
	Metrics                    // /metrics
	Peer                       // dumps, snapshots and digests, which hold all blocks and the salts of users
	Admin                      // everything

	every = Query | Register | Metrics | Peer | Admin
)

// roleNames are the names of the roles in files, in the order of the constants.
var roleNames = []string{"query", "register", "metrics", "peer", "admin"}

// ParseRoles reads names of roles.
func ParseRoles(names []string) (r Roles, err error) {
	for _, name := range names {
		i := slices.Index(roleNames, name)
		if i < 0 {
			return 0, fmt.Errorf("%q is no role; the roles are %s", name, strings.Join(roleNames, ", "))
		}
		r |= 1 << i
	}
	return r.complete(), nil
}

// complete adds the roles that Admin includes.
func (r Roles) complete() Roles {
	if r&Admin != 0 {
		return every
	}
	return r
}

// names returns the names of the roles. It is never nil.
func (r Roles) names() []string {
	names := []string{}
	for i, name := range roleNames {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// String returns the names of the roles, separated by commas.
func (r Roles) String() string { return strings.Join(r.names(), ",") }

// Client is a client of the API: what its credentials allow.
type Client struct {
	// Name is that of the credentials, "" of a client without any.
	Name    string
	Roles   Roles
	Tenants scope.Tenants
	// Weight is how many shares of the slots for queries the client has, 0 for one.
	Weight int
}

// asked is the client of a request, and the flow whose share the request takes.
type asked struct {
	*Client
	flow string
}

// askers remembers the asked of the last requests, which never change. It is safe for concurrent use.
type askers [256]atomic.Pointer[asked]

var askersSeed = maphash.MakeSeed()

// askedBy returns the asked of a client whose request takes the share of a flow, which is often that of an earlier request.
func (t *askers) askedBy(client *Client, flow string) *asked {
	at := &t[maphash.String(askersSeed, flow)%uint64(len(t))]
	who := at.Load()
	if who == nil || who.Client != client || who.flow != flow {
		who = &asked{client, flow}
		at.Store(who)
	}
	return who
}

// Flow implements what server.FlowOf looks for.
func (a *asked) Flow() bounds.Flow { return bounds.Flow{Name: a.flow, Weight: a.Weight} }

// reader returns the client in the form that a conductor.View needs.
func (c *Client) reader() conductor.Reader {
	return conductor.Reader{Name: c.Name, Tenants: c.Tenants, Secrets: c.Roles&(Register|Admin) != 0, Causes: c.Roles&Admin != 0}
}

// operator is the client of requests that no Guard has checked.
var operator = &Client{Roles: every}

// Of returns the client of a request.
func Of(g *gin.Context) *Client {
	if v, ok := g.Get(server.FlowKey); ok {
		return v.(*asked).Client
	}
	return operator
}

// View returns a Conductor as the client of a request sees it.
func View(c *conductor.Conductor, g *gin.Context) conductor.View {
	client := Of(g)
	from := conductor.Sender{Client: client}
	if from.Replica = g.GetHeader(forward.ForwardedHeader); from.Replica != "" {
		from.Mirrored = g.GetHeader(forward.MirroredHeader) != ""
	}
	return c.For(client.reader()).Timed(server.ClockOf(g)).From(from)
}
