package zmq

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"example.com/conductor/events/reach"
	"example.com/conductor/redact"
)

// endpointError says why no connection can ever be made to an endpoint.
type endpointError struct {
	Endpoint string
	why      string
}

func (e *endpointError) Error() string {
	text := fmt.Sprintf("endpoint %q %s", redact.URL(e.Endpoint), e.why)
	if meant := meantEndpoint(e.Endpoint); meant != "" && meant != e.Endpoint {
		text += fmt.Sprintf("; write %q", meant)
	}
	return text
}

// meantEndpoint returns the endpoint that one with a slip was probably meant to be: another spelling of its scheme or none, a slash
// behind its port, or space around it. It returns "" if there is none, or if the text may have secrets.
func meantEndpoint(text string) string {
	text = strings.TrimSpace(text)
	if redact.URL(text) != text {
		return ""
	}
	bind := ""
	if len(text) > len(bindScheme) && strings.EqualFold(text[:len(bindScheme)], bindScheme) {
		bind, text = bindScheme, text[len(bindScheme):]
	}
	scheme, rest, found := strings.Cut(text, "://")
	if scheme = strings.ToLower(scheme); !found {
		scheme, rest = "tcp", strings.TrimLeft(strings.TrimPrefix(text, "tcp:"), "/")
	}
	meant := ""
	switch {
	case !found && bind == "" && strings.HasPrefix(text, "/"), scheme == "unix":
		meant = "ipc://" + strings.TrimPrefix(text, "unix://")
	case scheme == "ipc":
		meant = "ipc://" + rest
	case scheme == "tcp", scheme == "zmq", scheme == "zmq+tcp", scheme == "tcp4", scheme == "tcp6":
		address, _, _ := strings.Cut(rest, "/")
		meant = bind + "tcp://" + address
	}
	if CheckLiveEndpoint(meant) != nil {
		return ""
	}
	return meant
}

// Permanent tells a caller that trying again is useless.
func (e *endpointError) Permanent() bool { return true }

// maxPath is what a unix socket address holds besides its terminating zero.
const maxPath = 107

// CheckEndpoint reports whether endpoint can be dialed: tcp://host:port,
// tcp://[ipv6]:port or ipc://path. It looks nothing up. The error, if any, is
// an *endpointError.
func CheckEndpoint(endpoint string) error {
	_, _, err := splitEndpoint(endpoint)
	return err
}

// CheckLiveEndpoint is CheckEndpoint for the endpoint of live events, which may also be one where
// publishers connect to us: bind:tcp://host:port, host * for every address.
func CheckLiveEndpoint(endpoint string) error {
	if strings.HasPrefix(endpoint, bindScheme) {
		_, _, err := splitBound(endpoint)
		return err
	}
	return CheckEndpoint(endpoint)
}

// errReach says that the rules for endpoints of clients refuse one.
var errReach = errors.New("is not one that register.allow allows")

// CheckReach reports whether rules refuse an endpoint, as far as that is known before a name is looked
// up. An endpoint that can never work is not theirs to judge; nil rules refuse nothing.
func CheckReach(rules *reach.Rules, endpoint string) error {
	if rules == nil {
		return nil
	}
	bound := strings.HasPrefix(endpoint, bindScheme)
	part := splitEndpoint
	if bound {
		part = splitBound
	}
	network, addr, err := part(endpoint)
	if err != nil {
		return nil
	}
	if network == "unix" {
		switch {
		case rules.AllowsPath(addr):
			return nil
		case path.IsAbs(addr):
			return fmt.Errorf("%q %w: add %q", endpoint, errReach, "ipc://"+path.Clean(addr))
		}
		return fmt.Errorf("%q %w: only the settings may name it under sources", endpoint, errReach)
	}
	host, text, _ := net.SplitHostPort(addr)
	number, _ := strconv.ParseUint(text, 10, 16)
	port, ok := uint16(number), false
	ip, err := netip.ParseAddr(host)
	switch {
	case bound && !rules.AllowsBind(port):
		return fmt.Errorf("%q %w: add %q", endpoint, errReach, fmt.Sprintf("bind:tcp://*:%d", port))
	case bound:
		ok = true
	case err == nil:
		ok = rules.AllowsTCP(netip.AddrPortFrom(ip, port))
	case strings.EqualFold(strings.TrimSuffix(host, "."), "localhost"):
		ok = rules.AllowsTCP(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)) ||
			rules.AllowsTCP(netip.AddrPortFrom(netip.IPv6Loopback(), port))
	default:
		ok = rules.AllowsName(port)
	}
	if !ok {
		return fmt.Errorf("%q %w", redact.URL(endpoint), errReach)
	}
	return nil
}

// ListenAddress returns the address that a bound endpoint listens at: equal ones share a socket. It returns an endpoint that cannot be
// bound as it is.
func ListenAddress(endpoint string) string {
	_, addr, err := splitBound(endpoint)
	if err != nil {
		return endpoint
	}
	return bindScheme + addr
}

// splitBound turns a bound endpoint into arguments of a listen.
func splitBound(endpoint string) (network, addr string, err error) {
	rest := strings.TrimPrefix(endpoint, bindScheme)
	if !strings.HasPrefix(rest, "tcp://") {
		return "", "", &endpointError{Endpoint: endpoint, why: "cannot be bound to: want bind:tcp://host:port, host * for every address"}
	}
	network, addr, err = splitAs(rest, true)
	var bad *endpointError
	if errors.As(err, &bad) {
		bad.Endpoint = endpoint
	}
	return network, addr, err
}

// splitEndpoint turns an endpoint into arguments of a dial.
func splitEndpoint(endpoint string) (network, addr string, err error) {
	return splitAs(endpoint, false)
}

// splitAs turns an endpoint into arguments of a dial, or of a listen if it is to be bound.
func splitAs(endpoint string, bound bool) (network, addr string, err error) {
	bad := func(format string, args ...any) (string, string, error) {
		return "", "", &endpointError{Endpoint: endpoint, why: fmt.Sprintf(format, args...)}
	}
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case strings.TrimSpace(endpoint) != endpoint:
		return bad("has space around it")
	case strings.EqualFold(scheme, "http"), strings.EqualFold(scheme, "https"):
		return bad("is the address of an HTTP server: give that of an engine as discover, and that of its events as tcp://host:port")
	case strings.HasPrefix(scheme, bindScheme):
		return bad("cannot be bound to, only that of live events can: want tcp://host:port, where the engine waits")
	case !ok:
		return bad("has no scheme: want tcp://host:port or ipc://path")
	}
	if err := reach.CheckExpanded(rest); err != nil {
		return bad("%v", err)
	}
	switch scheme {
	case "ipc":
		switch {
		case rest == "" || rest == "*":
			return bad("names no socket path")
		case len(rest) > maxPath || strings.ContainsRune(rest, 0):
			return bad("is no valid socket path (limit is %d bytes)", maxPath)
		}
		return "unix", rest, nil
	case "tcp":
		if redact.URL(endpoint) != endpoint { // no part of it may be in an error
			return bad("has more than a host and a port")
		}
		host, port, err := net.SplitHostPort(rest)
		if err != nil {
			return bad("is not host:port (IPv6 addresses go in brackets): %v", err)
		}
		if bound && (host == "*" || host == "0.0.0.0") {
			rest = ":" + port // of both kinds of addresses
		} else if err := reach.CheckHost(host); err != nil && !(bound && reach.IsWildcard(host)) {
			return bad("%v", err)
		}
		if err := reach.CheckPort(port); err != nil {
			return bad("%v", err)
		}
		return "tcp", rest, nil
	}
	return bad("has an unsupported scheme: want tcp or ipc")
}
