package access

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"example.com/conductor/conductor/forward"
)

// toldClient is who another replica says the client of a request is. The replica has identified the
// client, compared its roles and counted the request against its limits.
type toldClient struct {
	Name    string   `json:"name"`
	Roles   []string `json:"roles"`
	Tenants []string `json:"tenants"` // null is every tenant
	Weight  int      `json:"weight,omitempty"`
}

// Tell returns what a replica says of a client to another one, in forward.ClientHeader.
func (c *Client) Tell() string {
	text, err := json.Marshal(toldClient{Name: c.Name, Roles: c.Roles.names(), Tenants: c.Tenants, Weight: c.Weight})
	if err != nil {
		panic("BUG: a client cannot be encoded: " + err.Error())
	}
	return string(text)
}

var errTold = &refusal{http.StatusBadRequest, "invalid_value", forward.ClientHeader + " cannot be read"}

// clientBehind returns the client of a request that another replica sends on: the sender has the role peer
// and says who the client is. From any other sender the header has no effect. forwarded says that the
// first replica has counted the request.
func clientBehind(sender *Client, h http.Header) (c *Client, forwarded bool, why *refusal) {
	text := h.Get(forward.ClientHeader)
	if sender.Roles&Peer == 0 || text == "" || h.Get(forward.ForwardedHeader) == "" {
		return sender, false, nil
	}
	if c = described.readClient(text); c == nil {
		return sender, false, errTold
	}
	if !sender.Tenants.All() { // it vouches for its own tenants
		of := c.Tenants
		if of.All() {
			of = sender.Tenants
		}
		of = slices.DeleteFunc(slices.Clone(of), func(tenant string) bool { return !sender.Tenants.Has(tenant) })
		c = &Client{Name: c.Name, Roles: c.Roles, Tenants: of, Weight: c.Weight}
	}
	return c, true, nil
}

// described remembers the clients that other replicas describe, because usually a few clients send most queries.
var described = memo{clients: make(map[string]*Client)}

// memo maps what replicas say of clients to the clients. It keeps up to maxHeard texts of up to longHeard bytes.
type memo struct {
	mu      sync.RWMutex
	clients map[string]*Client // guarded by mu; those in it never change
}

const maxHeard, longHeard = 1024, 1024

// readClient returns the client that Tell has written as text, nil if the text is not of that form.
func (m *memo) readClient(text string) *Client {
	m.mu.RLock()
	c := m.clients[text]
	m.mu.RUnlock()
	if c != nil {
		return c
	}
	var t toldClient
	if json.Unmarshal([]byte(text), &t) != nil {
		return nil
	}
	roles, err := ParseRoles(t.Roles)
	if err != nil {
		return nil
	}
	c = &Client{Name: t.Name, Roles: roles, Tenants: t.Tenants, Weight: max(t.Weight, 0)}
	if len(text) > longHeard {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.clients) >= maxHeard {
		clear(m.clients)
	}
	m.clients[text] = c
	return c
}
