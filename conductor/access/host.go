package access

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// A web page may point its own domain at 127.0.0.1 (DNS rebinding). To a browser on this machine the server is then of the
// page's origin, so that the page may read answers and change what it likes, with the rights that clients without
// credentials have here. Only the name gives it away: the browser asks for the page's domain. So a client without
// credentials that reaches the server at a loopback address has to ask for a name that no page can have, or for one
// of auth.hosts; this goes for every listener, whatever it listens on. A server that is reached at another address
// has names that it does not know, and every machine of its network has the same rights as such a page.

// reasonHost is the reason of a request for a name that the server does not answer to. Open routes refuse it too.
const reasonHost = "foreign_host"

// mayAsk reports whether a client without credentials may ask for a name, and whether it may have the rights of this machine:
// names of auth.hosts are those of proxies, whose clients are elsewhere.
func (p *policy) mayAsk(who Call) (allowed, local bool) {
	if !isLoopback(who.Reached) || p.loopback.Roles == 0 {
		return true, false
	}
	name := hostName(who.Authority)
	if isLoopbackName(name) || who.Authority == "" { // a browser always sends a name
		remote, err := netip.ParseAddrPort(who.Address)
		return true, err == nil && remote.Addr().Unmap().IsLoopback()
	}
	return p.hosts[name], false
}

// refuseHost returns why a call without credentials is for a name that the server does not answer to, nil if it may be.
func (p *policy) refuseHost(who Call) *refusal {
	if !p.lacksCredentials(who) {
		return nil
	}
	if allowed, _ := p.mayAsk(who); allowed {
		return nil
	}
	return errHost(who.Authority)
}

// lacksCredentials reports whether a call has nothing that the server could know its client by.
func (p *policy) lacksCredentials(who Call) bool {
	return p.credentials == nil || who.Authorization == "" && who.Certificate == nil
}

func errHost(authority string) *refusal {
	return &refusal{http.StatusForbidden, reasonHost, fmt.Sprintf("the server does not answer to the name %q: ask for localhost or "+
		"127.0.0.1, or add the name to auth.hosts if a proxy on this machine asks for it", hostName(authority))}
}

// allowsOrigin reports whether a web page of a request's Origin may change something: one of this server, whatever name it has
// to a client with credentials, which no page can guess. A request without Origin is no page's.
func (p *policy) allowsOrigin(r *http.Request, client *Client) bool {
	for _, origin := range r.Header["Origin"] {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" { // null too
			return false
		}
		name := hostName(u.Host)
		_, err = netip.ParseAddr(name)
		if client.Name == "" && err != nil && !isLoopbackName(name) && !p.hosts[name] {
			return false
		}
	}
	return true
}

// hostName returns the host of an authority such as [::1]:13333 or Localhost. in the form in which names are compared.
func hostName(authority string) string {
	name := authority
	if h, _, err := net.SplitHostPort(authority); err == nil {
		name = h
	} else if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		name = name[1 : len(name)-1]
	}
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// isLoopbackName reports whether a name is one of this machine that no web page can have.
func isLoopbackName(name string) bool {
	addr, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// isLoopback reports whether an address of this server is a loopback address.
func isLoopback(a net.Addr) bool {
	at, ok := a.(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}

// OnlyLocalNames returns a handler for a listener that asks for no credentials and has no settings. What comes to a loopback
// address has to ask for localhost or an address of it. Over TLS a browser itself makes sure that the name is the server's.
func OnlyLocalNames(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if r.TLS != nil || !isLoopback(reached) || r.Host == "" || isLoopbackName(hostName(r.Host)) {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		json.NewEncoder(w).Encode(map[string]string{"reason": reasonHost,
			"error": fmt.Sprintf("this listener does not answer to the name %q: ask for localhost or 127.0.0.1", hostName(r.Host))})
	})
}
