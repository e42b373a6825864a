package access

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/scope"
)

// TestTold: only a sender with the role peer says who the client is, and for its own tenants alone.
func TestTold(t *testing.T) {
	f := func(sender *Client, text, forwarded string, roles Roles, tenants scope.Tenants, counted bool) {
		t.Helper()
		h := http.Header{}
		h.Set(forward.ClientHeader, text)
		if forwarded != "" {
			h.Set(forward.ForwardedHeader, forwarded)
		}
		c, is, why := clientBehind(sender, h)
		if why != nil || c.Roles != roles || !slices.Equal(c.Tenants, tenants) || c.Tenants.All() != tenants.All() || is != counted {
			t.Errorf("%+v with %s: %+v, counted %v, %v", sender, text, c, is, why)
		}
	}
	nobody := []string{}
	peer, client := &Client{Name: "r", Roles: Peer}, &Client{Name: "c", Roles: Query, Tenants: []string{"b"}}
	f(peer, client.Tell(), "r", Query, []string{"b"}, true)
	f(peer, (&Client{Roles: Query}).Tell(), "r", Query, nil, true)
	f(peer, (&Client{Tenants: nobody}).Tell(), "r", 0, nobody, true)
	f(peer, client.Tell(), "", Peer, nil, false)
	f(client, (&Client{Roles: every}).Tell(), "r", Query, []string{"b"}, false)
	f(&Client{Roles: every, Tenants: []string{"a", "b"}}, client.Tell(), "r", Query, []string{"b"}, true)
	f(&Client{Roles: Peer, Tenants: []string{"a"}}, client.Tell(), "r", Query, nobody, true)
	f(&Client{Roles: Peer, Tenants: []string{"a"}}, (&Client{Roles: Query}).Tell(), "r", Query, []string{"a"}, true)
	for _, text := range []string{"{", `{"roles": ["king"]}`, `[]`} {
		h := http.Header{}
		h.Set(forward.ClientHeader, text)
		h.Set(forward.ForwardedHeader, "r")
		if _, _, why := clientBehind(peer, h); why == nil || why.status != http.StatusBadRequest {
			t.Errorf("%s: %v", text, why)
		}
	}
	if text := (&Client{Weight: 3}).Tell(); text != `{"name":"","roles":[],"tenants":null,"weight":3}` {
		t.Error(text)
	}
}

// TestToldOfManyClients: a replica that tells of ever new clients costs no memory without end.
func TestToldOfManyClients(t *testing.T) {
	m := memo{clients: make(map[string]*Client)}
	for i := range 3 * maxHeard {
		name := strings.Repeat("x", i) // the later ones are long
		if c := m.readClient((&Client{Name: name, Roles: Query}).Tell()); c == nil || c.Name != name || c.Roles != Query {
			t.Fatalf("client %d: %+v", i, c)
		}
	}
	size := 0
	for text := range m.clients {
		size += len(text)
	}
	if len(m.clients) > maxHeard || size > maxHeard*longHeard {
		t.Errorf("%d clients of %d bytes are remembered", len(m.clients), size)
	}
}
