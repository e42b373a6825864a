package access

import (
	"encoding/json"
	"net/http"
	"slices"

	"kvconductor/conductor/server"
)

// toldClient is who another replica says the client of a request is. The replica has identified the
// client, compared its roles and counted the request against its limits.
type toldClient struct {
	Name    string   `json:"name"`
	Roles   []string `json:"roles"`
	Tenants []string `json:"tenants"` // null is every tenant
	Weight  int      `json:"weight,omitempty"`
}

// Tell returns what a replica says of a client to another one, in server.ClientHeader.
func (c *Client) Tell() string {
	t := toldClient{Name: c.Name, Roles: []string{}, Tenants: c.Tenants, Weight: c.Weight}
	for i, name := range roleNames {
		if c.Roles&(1<<i) != 0 {
			t.Roles = append(t.Roles, name)
		}
	}
	text, err := json.Marshal(t)
	if err != nil {
		panic("BUG: a client cannot be encoded: " + err.Error())
	}
	return string(text)
}

var errTold = &refusal{http.StatusBadRequest, "invalid_value", server.ClientHeader + " cannot be read"}

// told returns the client of a request that another replica sends on: the sender has the role peer
// and says who the client is. From any other sender the header has no effect. forwarded says that the
// first replica has counted the request.
func told(sender *Client, h http.Header) (c *Client, forwarded bool, why *refusal) {
	text := h.Get(server.ClientHeader)
	if sender.Roles&Peer == 0 || text == "" || h.Get(server.ForwardedHeader) == "" {
		return sender, false, nil
	}
	var t toldClient
	if json.Unmarshal([]byte(text), &t) != nil {
		return sender, false, errTold
	}
	roles, err := ParseRoles(t.Roles)
	if err != nil {
		return sender, false, errTold
	}
	c = &Client{Name: t.Name, Roles: roles, Tenants: t.Tenants, Weight: max(t.Weight, 0)}
	if !sender.Tenants.All() { // it vouches for its own tenants
		if c.Tenants.All() {
			c.Tenants = sender.Tenants
		}
		c.Tenants = slices.DeleteFunc(slices.Clone(c.Tenants), func(tenant string) bool { return !sender.Tenants.Has(tenant) })
	}
	return c, true, nil
}
